"""Members and offsets of share groups on real brokers, through kill -9, on one broker and on three."""

import base64
import json

import confluent_kafka as ck
import pytest

from millstream.testing import cluster
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from raw_line import Line
from waits import until

pytestmark = pytest.mark.process

MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"
PARTITIONS = 3


@pytest.fixture
def broker_of_shares(tmp_path):
    with Broker(None, {}, tmp_path) as broker:
        yield broker


def coordinator(bootstraps):
    """A line to the coordinator of the group, as any of these brokers finds it."""

    def look():
        for bootstrap in bootstraps:
            try:
                with Line(bootstrap) as line:
                    (found,) = line.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])).coordinators
                if not found.error_code:
                    return Line(f"{found.host}:{found.port}")
            except OSError:
                continue  # it was killed, or it does not know yet that another one was
        return None

    return until(look, "the group has a coordinator")


def lags(line):
    """Start and lag of each partition; None while one of them is not known."""
    asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup("g", None)])
    (group,) = line.ask(asked).groups
    parts = [one for topic in group.topics for one in topic.partitions]
    if group.error_code or any(one.error_code for one in parts):
        return None
    return {one.partition_index: (one.start_offset, one.lag) for one in parts}


def fill(bootstraps, factor):
    """A topic with five records a partition, a member that is given all of it and leaves, and starts for the group."""
    with Line(bootstraps[0]) as line:
        assert (
            line.ask(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, factor)], 60_000)).topics[0].error_code == 0
        )
    producer = ck.Producer({"bootstrap.servers": ",".join(bootstraps)})
    for number in range(5 * PARTITIONS):
        producer.produce("t", b"v", partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    with coordinator(bootstraps) as line:
        epoch = 0

        def assigned():
            """The member's partitions; until the state topic is there, some or all are missing."""
            nonlocal epoch
            answer = line.ask(ShareGroupHeartbeatRequest("g", MEMBER, epoch, None, ["t"]))
            if answer.error_code:
                assert not epoch, answer
                return []
            epoch = answer.member_epoch
            return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]

        until(lambda: assigned() == list(range(PARTITIONS)), "the member has all partitions")
        assert line.ask(ShareGroupHeartbeatRequest("g", MEMBER, -1)).error_code == 0
        starts = [AlterShareOffsetsPartition(index, index) for index in range(PARTITIONS)]
        altered = line.ask(AlterShareGroupOffsetsRequest("g", [AlterShareOffsetsTopic("t", starts)]))
        assert [one.error_code for one in altered.responses[0].partitions] == [0] * PARTITIONS


EXPECTED = {index: (index, 5 - index) for index in range(PARTITIONS)}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_group_and_its_offsets_outlive_a_kill(tmp_path, shards):
    with Broker(None, {}, tmp_path, shards=shards) as broker:
        fill([broker.bootstrap], 1)
        broker.kill()
        broker.start()
        with coordinator([broker.bootstrap]) as line:
            until(lambda: lags(line) == EXPECTED, "the offsets are there again")
            (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name="t")])).topics
            name = base64.urlsafe_b64encode(topic.topic_id).rstrip(b"=").decode()
            keys = [f"g:{name}:0", "g:0"]
            found = line.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=keys)).coordinators
            assert [one.error_code for one in found] == [0, 42]
            listed = line.ask(ListGroupsRequest([], ["share"])).groups
            assert [(one.group_id, one.group_state) for one in listed] == [("g", "Empty")]
            assert line.ask(DeleteGroupsRequest(["g"])).results[0].error_code == 0
            assert lags(line) == {}
            assert line.ask(ListGroupsRequest([], [])).groups == []


def test_the_next_coordinator_of_a_cluster_knows_the_group_and_asks_every_leader_for_its_end():
    with cluster(3) as made:
        addresses = {node: broker.bootstrap for node, broker in made.brokers.items()}
        fill([*addresses.values()], 3)
        with coordinator(addresses.values()) as line:
            until(lambda: lags(line) == EXPECTED, "the lag over all brokers")
            host, port = line.sock.getpeername()
        (former,) = [node for node, address in addresses.items() if address == f"{host}:{port}"]
        made.kill(former)
        del addresses[former]

        def known():
            with coordinator(addresses.values()) as line:
                return lags(line) == EXPECTED

        until(known, "the next coordinator knows the lag over all brokers")


@pytest.mark.ci
def test_the_command_line_shows_moves_and_deletes_a_share_group(broker_of_shares):
    bootstrap = broker_of_shares.bootstrap
    fill([bootstrap], 1)

    def group(*arguments):
        done = run_command("group", *arguments, "--bootstrap", bootstrap)
        return done.returncode, done.stdout or done.stderr

    code, listed = group("list")
    assert (code, listed.split()[3:]) == (0, ["g", "empty", "share"])
    code, described = group("describe", "g", "--json")
    assert code == 0
    document = json.loads(described)
    assert (document["type"], document["lag"], document["members"]) == ("share", 12, 0)
    assert {one["partition"]: (one["start"], one["lag"]) for one in document["partitions"]} == EXPECTED
    assert group("reset", "g", "--topic", "t:1", "--to", "latest")[0] == 0
    assert json.loads(group("describe", "g", "--json")[1])["lag"] == 12
    assert group("reset", "g", "--topic", "t:1", "--to", "latest", "--execute")[0] == 0
    assert json.loads(group("describe", "g", "--json")[1])["lag"] == 8
    with coordinator([bootstrap]) as line:
        assert line.ask(ShareGroupHeartbeatRequest("g", MEMBER, 0, None, ["t"])).error_code == 0
    code, refused = group("reset", "g", "--all-topics", "--to", "earliest", "--execute")
    assert (code, "stop its consumers first" in refused) == (1, True)
    with coordinator([bootstrap]) as line:
        assert line.ask(ShareGroupHeartbeatRequest("g", MEMBER, -1)).error_code == 0
    assert group("delete", "g")[0] == 0
    code, gone = group("describe", "g")
    assert (code, "there is no group 'g'" in gone) == (1, True)
