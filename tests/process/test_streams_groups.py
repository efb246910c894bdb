"""Streams groups on a real broker, request by request: internal topics, tasks, offsets, kill -9, and what tools show.

Kafka Streams itself runs in ``make conformance``.
"""

import json
import urllib.error
import urllib.request

import pytest

from millstream.cli.__main__ import main
from millstream.console.application import create as create_console
from millstream.console.settings import Settings
from millstream.testing.process import Broker
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTopology,
)
from raw_line import Line
from streams_app import GROUP, SETTINGS, TOPOLOGY, App, running
from waits import until

pytestmark = pytest.mark.process

MISSING_SOURCE, MISSING_INTERNAL = 1, 3
GROUP_RESOURCE = 32


@pytest.fixture
def broker(tmp_path):
    with Broker(None, SETTINGS, tmp_path, shards=2) as started:
        yield started


def found(broker):
    """A line to the coordinator."""
    line = Line(broker.bootstrap)
    seek = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    until(lambda: not line.ask(seek).coordinators[0].error_code, "the group has a coordinator")
    return line


def create(line, name, partitions):
    (made,) = line.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 60_000)).topics
    assert not made.error_code


def partitions_of(line, name):
    (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name=name)], False)).topics
    return len(topic.partitions)


def codes(answer):
    return [status.status_code for status in answer.status]


def ask(broker, method, path, body=None):
    """An answer of the HTTP port."""
    headers = {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def test_a_streams_group_is_described_moved_and_deleted_over_http(broker):
    line, one, path = found(broker), App("one"), f"/v1/groups/{GROUP}"
    create(line, "words", 3)
    running(line, one)
    group = ask(broker, "GET", path)
    assert (group["type"], group["state"]) == ("streams", "Stable")
    read = {(place["topic"], place["partition"]) for place in group["members"][0]["partitions"]}
    assert {("words", 0), ("words", 1), ("words", 2)} <= read
    for query in ("", "?dry_run=true"):
        assert ask(broker, "POST", f"{path}/offsets{query}", {"to": "latest"})["error"] == "NON_EMPTY_GROUP"
    forget = f"{path}/offsets?topic=words"
    assert ask(broker, "DELETE", forget)["error"] == "GROUP_SUBSCRIBED_TO_TOPIC"
    leave = StreamsGroupHeartbeatRequest(GROUP, "one", -1, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assert not line.ask(leave).error_code
    set_there = {"to": "earliest", "topics": {"words": [1, 2]}}
    assert [edit["what"] for edit in ask(broker, "POST", f"{path}/offsets", set_there)["edits"]] == [
        "words-1",
        "words-2",
    ]
    at = {"topic": "words", "partition": 1, "offset": 0, "end_offset": 0, "lag": 0}
    assert ask(broker, "GET", f"{path}/offsets")["offsets"] == [at, {**at, "partition": 2}]
    assert len(ask(broker, "DELETE", f"{forget}&dry_run=true")["edits"]) == 2
    assert len(ask(broker, "DELETE", forget)["edits"]) == 2
    assert ask(broker, "GET", f"{path}/offsets")["offsets"] == []
    assert ask(broker, "DELETE", path)["edits"][0]["what"] == f"streams group {GROUP}"
    assert ask(broker, "GET", path)["error"] == "GROUP_ID_NOT_FOUND"


def test_an_application_gets_its_topics_and_its_tasks_and_keeps_them_through_a_kill(broker, capsys):
    line = found(broker)
    one, two = App("one"), App("two", "q")
    answer = one.beat(line)
    assert (answer.error_code, codes(answer), answer.active_tasks) == (0, [MISSING_SOURCE], [])
    assert "words" in answer.status[0].status_detail
    create(line, "words", 3)
    assert codes(one.beat(line)) == [MISSING_INTERNAL]
    running(line, one, two)
    assert one.tasks()
    assert two.tasks()
    assert (partitions_of(line, "counter-by-word"), partitions_of(line, "counter-counts")) == (3, 3)

    (group,) = line.ask(StreamsGroupDescribeRequest([GROUP])).groups
    assert (group.group_state, [topology.subtopology_id for topology in group.topology.subtopologies]) == (
        "Stable",
        ["0", "1"],
    )
    assert group.topology.subtopologies[1].state_changelog_topics[0].partitions == 3
    assert {member.process_id for member in group.members} == {"p", "q"}
    (listed,) = line.ask(ListGroupsRequest([], ["streams"])).groups
    assert (listed.group_id, listed.protocol_type, listed.group_type) == (GROUP, "streams", "streams")

    tasks = one.tasks()
    line.sock.close()
    broker.kill()
    broker.start()
    line = found(broker)
    running(line, one, two)
    assert one.tasks() == tasks, "the group goes on where it was"

    reads = next(index for name, index in sorted(one.tasks()) if name == "0")

    def commit(member, epoch):
        topic = OffsetCommitRequestTopic("words", partitions=[OffsetCommitRequestPartition(reads, 7)])
        return line.ask(OffsetCommitRequest(GROUP, epoch, member, topics=[topic]), 9).topics[0].partitions[0].error_code

    assert commit("one", one.epoch) == 0
    assert commit("one", one.epoch + 1) == 113, "STALE_MEMBER_EPOCH"
    assert commit("nobody", 1) == 25, "UNKNOWN_MEMBER_ID"

    assert main(["group", "describe", GROUP, "--json", "--bootstrap", broker.bootstrap]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["type"], shown["state"], shown["members"], len(shown["tasks"])) == ("streams", "stable", 2, 6)
    assert [part["committed"] for part in shown["partitions"] if part["topic"] == "words"].count(7) == 1
    assert main(["group", "list", "--type", "streams", "--json", "--bootstrap", broker.bootstrap]) == 0
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == [GROUP]

    application = create_console(Settings(broker.bootstrap))
    pages = application.test_client()
    assert ">streams<" in pages.get("/groups").text
    page = pages.get(f"/group?id={GROUP}").text
    assert all(f">{word}<" in page for word in ("one", "two", "sticky", "streams", "Reset offsets"))
    application.extensions["console"].close()

    assert line.ask(DeleteGroupsRequest([GROUP])).results[0].error_code == 68, "NON_EMPTY_GROUP"
    for app in (one, two):
        app.epoch = -1
        assert app.beat(line).error_code == 0
    assert line.ask(DeleteGroupsRequest([GROUP])).results[0].error_code == 0
    assert line.ask(StreamsGroupDescribeRequest([GROUP])).groups[0].error_code == 69, "GROUP_ID_NOT_FOUND"
    line.sock.close()


def test_endpoints_standby_tasks_and_the_wish_to_shut_down_reach_all_members(broker):
    with found(broker) as line:
        create(line, "words", 3)
        wanted = AlterConfigsResource(GROUP_RESOURCE, GROUP, [AlterableConfig("streams.num.standby.replicas", 0, "1")])
        assert not line.ask(IncrementalAlterConfigsRequest([wanted])).responses[0].error_code
        one, two = App("one"), App("two", "q")
        one.beat(line, user_endpoint=StreamsEndpoint("a", 1))
        two.beat(line, user_endpoint=StreamsEndpoint("b", 2))
        running(line, one, two)

        def copied():
            running(line, one, two)
            return sorted(index for app in (one, two) for ids in app.standby for index in ids.partitions) == [0, 1, 2]

        until(copied, "each stateful task has a standby task")
        answer = one.beat(line)
        known = {
            end.user_endpoint.host: {part.topic for part in end.active_partitions}
            for end in answer.partitions_by_user_endpoint
        }
        assert known.keys() == {"a", "b"}
        assert set().union(*known.values()) == {"words", "counter-by-word"}
        assert (
            one.beat(line, endpoint_information_epoch=answer.endpoint_information_epoch).partitions_by_user_endpoint
            is None
        )
        assert codes(two.beat(line, shutdown_application=True)) == [4]
        assert codes(one.beat(line)) == [4]


def test_what_is_no_topology_is_refused_in_words(broker):
    with found(broker) as line:

        def asked(topology, **more):
            request = StreamsGroupHeartbeatRequest(
                GROUP,
                "m",
                0,
                rebalance_timeout_ms=1_000,
                topology=topology,
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
                process_id="p",
                **more,
            )
            answer = line.ask(request)
            return answer.error_code, answer.error_message

        of_broker = StreamsTopology(0, [StreamsSubtopology("0", ["__consumer_offsets"])])
        assert asked(of_broker) == (
            130,
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
        )
        assert asked(StreamsTopology(0, [StreamsSubtopology("0", ["a/b"])]))[0] == 130
        assert asked(TOPOLOGY, instance_id="i") == (42, "Static membership is not yet supported.")
        owned = StreamsGroupHeartbeatRequest(GROUP, "m", 3, active_tasks=[StreamsTaskIds("0", [0])])
        assert line.ask(owned).error_message == "If one task-type is non-null, all must be non-null."
