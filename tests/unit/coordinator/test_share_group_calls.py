"""Share groups through the shells: requests of any shard, records in the log, share state that is asked for."""

from types import SimpleNamespace

import pytest
from coordinator_fakes import Broker, call
from group_calls import ID_T, ID_U, broker_of, group_on

from millstream.coordinator.asks import DESCRIBE_SHARE_GROUP_OFFSETS, SHARE_GROUP_HEARTBEAT
from millstream.coordinator.share_asks import no_share_coordinator
from millstream.kafka.handlers.groups import (
    alter_share_group_offsets,
    delete_groups,
    delete_share_group_offsets,
    describe_share_group_offsets,
    find_coordinator,
    share_group_describe,
    share_group_heartbeat,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from millstream.wire.messages.delete_share_group_state import DeleteShareGroupStateResponse
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic,
)
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryResponse,
    StateSummary,
    StateSummaryTopic,
)
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.share_state_results import StatePartitionResult, StateTopicResult


def succeed(request, done) -> None:
    """A share coordinator to which everything succeeds."""
    results = [
        StateTopicResult(topic.topic_id, [StatePartitionResult(one.partition) for one in topic.partitions])
        for topic in request.topics
    ]
    kind = (
        InitializeShareGroupStateResponse
        if isinstance(request, InitializeShareGroupStateRequest)
        else DeleteShareGroupStateResponse
    )
    done(kind(results))


def given(broker: Broker, ask_states) -> None:
    for router in broker.routers:
        for groups in router.local.partitions.values():
            groups.ask_states = ask_states


def ask(broker: Broker, handler, request, version: int = 1):
    (answer,) = call(broker, handler, request, version)
    return answer


@pytest.mark.parametrize("shards", [1, 2])
def test_a_share_group_lives_through_every_request(shards: int) -> None:
    broker = broker_of(shards)
    given(broker, succeed)
    group = group_on(broker, 1)
    joined = ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest(group, "m", 0, None, ["t"]))
    assert (joined.error_code, joined.member_epoch) == (ErrorCode.NONE, 3)
    assert [(one.topic_id, one.partitions) for one in joined.assignment.topic_partitions] == [(ID_T, [0, 1])]
    (described,) = ask(broker, share_group_describe, ShareGroupDescribeRequest([group])).groups
    assert (described.group_state, [one.client_host for one in described.members]) == ("Stable", ["/10.1.2.3"])
    answers: list = []
    asked = DescribeShareGroupOffsetsGroup(group)
    broker.routers[0].ask(group, DESCRIBE_SHARE_GROUP_OFFSETS, 1, "c", "h", asked, answers.append)
    broker.reactor.turn()
    (states,) = answers
    assert [(one.topic_name, len(one.partitions)) for one in states.topics] == [("t", 2)]
    left = ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest(group, "m", -1))
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)
    start = AlterShareOffsetsTopic("t", [AlterShareOffsetsPartition(0, 4)])
    altered = ask(broker, alter_share_group_offsets, AlterShareGroupOffsetsRequest(group, [start]), 0)
    assert altered.responses[0].partitions[0].error_code == ErrorCode.NONE
    forget = DeleteShareGroupOffsetsRequest(group, [DeleteShareOffsetsTopic("t")])
    assert ask(broker, delete_share_group_offsets, forget, 0).responses[0].error_code == ErrorCode.NONE
    assert ask(broker, delete_groups, DeleteGroupsRequest([group]), 2).results[0].error_code == ErrorCode.NONE
    (gone,) = ask(broker, share_group_describe, ShareGroupDescribeRequest([group])).groups
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_is_there_after_a_restart() -> None:
    broker = broker_of(1)
    given(broker, succeed)
    ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"]))
    (partition,) = [one for one in broker.partitions.values() if one.batches]
    for callback in broker.tables[0].closed:
        callback(partition)
    for callback in broker.tables[0].opened:
        callback(partition)
    broker.reactor.turn()
    again = ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest("g", "m", 3))
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.NONE, 3, None)


def test_without_a_share_coordinator_members_have_nothing_and_ask_again() -> None:
    broker = broker_of(1)
    asked: list = []

    def refuse(request, done) -> None:
        asked.append(request)
        no_share_coordinator(request, done)

    given(broker, refuse)
    joined = ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"]))
    assert (joined.error_code, joined.assignment.topic_partitions) == (ErrorCode.NONE, [])
    broker.reactor.advance(1_000)
    ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest("g", "m", joined.member_epoch))
    assert len(asked) == 2


def test_an_answer_after_the_partition_closed_is_dropped() -> None:
    broker = broker_of(1)
    open_asks: list = []
    given(broker, lambda request, done: open_asks.append((request, done)))
    answers: list = []
    request = ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"])
    broker.routers[0].ask("g", SHARE_GROUP_HEARTBEAT, 1, "c", "h", request, answers.append)
    broker.reactor.turn()
    assert not answers
    for partition in list(broker.partitions.values()):
        for callback in broker.tables[0].closed:
            callback(partition)
    assert answers == [ErrorCode.NOT_COORDINATOR]
    succeed(*open_asks[0])
    broker.reactor.turn()
    assert len(answers) == 1


def described(broker: Broker, group: DescribeShareGroupOffsetsGroup, states: dict, ends: dict) -> dict:
    """Start, lag and error by topic and partition. ``states``: start and count, or an error; ``ends``: end or error."""

    def summarise(request, done) -> None:
        def one(topic_id: bytes, index: int) -> StateSummary:
            state = states.get((topic_id, index), ErrorCode.GROUP_ID_NOT_FOUND)
            if isinstance(state, ErrorCode):
                return StateSummary(index, state)
            return StateSummary(index, start_offset=state[0], delivery_complete_count=state[1], leader_epoch=7)

        topics = [
            StateSummaryTopic(topic.topic_id, [one(topic.topic_id, part.partition) for part in topic.partitions])
            for topic in request.topics
        ]
        done(ReadShareGroupStateSummaryResponse(topics))

    def find(place, done) -> None:
        end = ends[place]
        done(end, -1) if isinstance(end, ErrorCode) else done(ErrorCode.NONE, end)

    answers: list = []
    node = SimpleNamespace(
        coordinator=broker.routers[0],
        metadata=broker.metadata,
        share_states=SimpleNamespace(ask=summarise),
        end_offsets=SimpleNamespace(find=find),
    )
    context = SimpleNamespace(api_version=1, client_id="c", host="10.0.0.1", principal="", respond=answers.append)
    describe_share_group_offsets.handle(node, context, DescribeShareGroupOffsetsRequest([group]))
    broker.reactor.turn()
    ((answer,),) = [one.groups for one in answers]
    assert (answer.group_id, answer.error_code) == (group.group_id, ErrorCode.NONE)
    return {
        (topic.topic_name, one.partition_index): (one.start_offset, one.lag, ErrorCode(one.error_code))
        for topic in answer.topics
        for one in topic.partitions
    }


def test_lag_is_what_lies_between_start_and_end_and_is_not_finished() -> None:
    broker = broker_of(2)
    given(broker, succeed)
    group = group_on(broker, 1)
    ask(broker, share_group_heartbeat, ShareGroupHeartbeatRequest(group, "m", 0, None, ["t", "u"]))
    states = {(ID_T, 0): (10, 3), (ID_T, 1): (-1, 0), (ID_U, 0): (5, -1)}
    found = described(broker, DescribeShareGroupOffsetsGroup(group), states, {("t", 0): 20})
    assert found == {
        ("t", 0): (10, 7, ErrorCode.NONE),
        ("t", 1): (-1, -1, ErrorCode.NONE),
        ("u", 0): (5, -1, ErrorCode.NONE),
    }


def test_what_does_not_exist_has_no_start_and_no_error() -> None:
    broker = broker_of(1)
    topics = [DescribeShareGroupOffsetsTopic("t", [0, 1, 9]), DescribeShareGroupOffsetsTopic("no", [0])]
    states = {(ID_T, 0): (10, 0), (ID_T, 1): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    ends = {("t", 0): ErrorCode.LEADER_NOT_AVAILABLE}
    assert described(broker, DescribeShareGroupOffsetsGroup("g", topics), states, ends) == {
        ("t", 0): (10, -1, ErrorCode.LEADER_NOT_AVAILABLE),
        ("t", 1): (-1, -1, ErrorCode.NONE),
        ("t", 9): (-1, -1, ErrorCode.NONE),
        ("no", 0): (-1, -1, ErrorCode.NONE),
    }
    assert described(broker, DescribeShareGroupOffsetsGroup("no such group"), {}, {}) == {}


@pytest.mark.parametrize(
    ("key", "valid"),
    [
        ("g:AAAAAAAAAAAAAAAAAAAAAA:0", True),
        ("a:b:AAAAAAAAAAAAAAAAAAAAAA:12", True),
        (":AAAAAAAAAAAAAAAAAAAAAA:0", False),
        ("g:AAAAAAAAAAAAAAAAAAAAAB:0", False),
        ("g:AAAAAAAAAAAAAAAAAAAAAA:-1", False),
        ("g:AAAAAAAAAAAAAAAAAAAAAA:01", False),
        ("g:short:0", False),
        ("g", False),
        ("", False),
    ],
)
def test_share_partitions_are_told_by_kafkas_notation(key: str, valid: bool) -> None:
    assert find_coordinator.is_share_partition(key) is valid
