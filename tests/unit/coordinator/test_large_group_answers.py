"""What requests about groups may have told: bounds, and errors where they would be passed."""

import pytest
from coordinator_fakes import Broker, call
from group_calls import ID_NONE, ID_T, group_on, joining, stable

from millstream.coordinator.asks import DESCRIBE, decode_describe_ask
from millstream.coordinator.router import DESCRIBED_AT_ONCE
from millstream.kafka import repeats
from millstream.kafka.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    offset_commit,
    offset_fetch,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)


def test_an_answer_tells_no_more_metadata_than_it_may(broker: Broker):
    groups = [group_on(broker, 1), group_on(broker, 0) + "-2"]
    longest = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 4096)
    for group in groups:
        topics = [OffsetCommitRequestTopic(name="u", partitions=[longest])]
        call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)

    def codes(*asked: tuple[str, int]) -> list[tuple[int, int]]:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group, topics=[OffsetFetchRequestTopics(name="u", partition_indexes=[0] * times)]
                )
                for group, times in asked
            ]
        )
        (answer,) = call(broker, offset_fetch, request, 8)
        return [(group.error_code, sum(len(t.partitions) for t in group.topics)) for group in answer.groups]

    one, other = groups
    assert codes((one, 2_100)) == [(0, 2_100)]
    assert codes((one, 4_097)) == [(ErrorCode.UNKNOWN_SERVER_ERROR, 0)]
    assert codes((one, 2_100), (other, 2_100)) == [(0, 2_100), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)]


def test_a_group_that_a_request_names_again_is_told_again_within_bounds(broker: Broker):
    """A request of some kilobytes could have a large group told thousands of times."""
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    stable(broker, large, b"m" * (repeats.REPEATED_BYTES_MAX * 2 // 5))
    stable(broker, small)

    def codes(*names: str) -> list[tuple[int, int]]:
        (answer,) = call(broker, describe_groups, DescribeGroupsRequest(groups=list(names)), 6)
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, len(group.members)) for group in answer.groups]

    told, refused = (0, 1), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert codes(*[large] * 3) == [told] * 3
    assert codes(*[large] * 6, small) == [told] * 3 + [refused] * 3 + [told]
    assert codes(large, small, *[small] * 1000, large) == [told] * 1003


def test_a_consumer_group_that_a_request_names_again_is_told_again_within_bounds(broker: Broker):
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    topics = [f"{i:04}" + "t" * 240 for i in range(repeats.REPEATED_BYTES_MAX * 2 // 5 // 247)]
    for group, subscribed in ((large, topics), (small, ["t"])):
        (answer,) = call(broker, consumer_group_heartbeat, joining(group, subscribed), 1)
        assert answer.error_code == 0

    def codes(*names: str) -> list[tuple[int, int]]:
        request = ConsumerGroupDescribeRequest(group_ids=list(names))
        (answer,) = call(broker, consumer_group_describe, request, 1)
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, len(group.members)) for group in answer.groups]

    told, refused = (0, 1), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert codes(*[large] * 5, small, small) == [told] * 3 + [refused] * 2 + [told, refused]
    assert codes() == []


def test_groups_of_another_shard_are_described_a_few_at_a_time():
    """All of a large broker's in one answer would be more than may wait between two shards."""
    broker = Broker(2, logs={})
    names = [f"group-{i}" for i in range(3 * DESCRIBED_AT_ONCE)]
    stable(broker, names[-1])
    calls = []
    serve = broker.mailboxes[1].handlers[DESCRIBE]

    def counted(sender, payload, reply):
        calls.append(len(decode_describe_ask(payload).groups))
        serve(sender, payload, reply)

    broker.mailboxes[1].handlers[DESCRIBE] = counted
    (answer,) = call(broker, describe_groups, DescribeGroupsRequest(groups=names), 6)
    assert [group.group_id for group in answer.groups] == names
    assert answer.groups[-1].group_state == "Stable"
    assert len(calls) > 1 and max(calls) == DESCRIBED_AT_ONCE


def test_all_offsets_of_a_group_that_a_request_names_again_are_told_again_within_bounds(broker: Broker):
    """A kilobyte could name a group with thousands of offsets hundreds of times."""
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    broker.metadata.add("wide", b"w" * 16, [0] * (repeats.REPEATED_BYTES_MAX * 2 // 5 // 4096))
    wide = len(broker.metadata.topic("wide").partitions)
    for group, count in ((large, wide), (small, 1)):
        offsets = [
            OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="m" * 4096)
            for i in range(count)
        ]
        topics = [OffsetCommitRequestTopic(name="wide", partitions=offsets)]
        call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)

    def told(version: int, *names: str) -> list[tuple[int, int]]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
        calls = sum(mailbox.calls for mailbox in broker.mailboxes)
        (answer,) = call(broker, offset_fetch, request, version)
        assert sum(mailbox.calls for mailbox in broker.mailboxes) - calls <= len(set(names))
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, sum(len(t.partitions) for t in group.topics)) for group in answer.groups]

    refused = (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    for version in (8, 10):
        assert told(version, *[large] * 4) == [(0, wide)] * 3 + [refused]
        assert told(version, large, *[small] * 100, large) == [(0, wide), *[(0, 1)] * 100, (0, wide)]


@pytest.mark.parametrize("version", [8, 9, 10])
@pytest.mark.parametrize("everything", [False, True])
def test_an_error_of_a_group_is_told_in_every_version(broker: Broker, version: int, everything: bool):
    """Beside a topic id that nobody knows, too."""
    group = group_on(broker, 1)
    (joined,) = call(broker, consumer_group_heartbeat, joining(group, ["t"]), 1)
    topics = [
        OffsetFetchRequestTopics(name="t", topic_id=ID_T, partition_indexes=[0]),
        OffsetFetchRequestTopics(name="no", topic_id=ID_NONE, partition_indexes=[0]),
    ]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                member_id="a",
                member_epoch=joined.member_epoch + 1,
                topics=None if everything else topics,
            )
        ]
    )
    (answer,) = call(broker, offset_fetch, request, version)
    assert [(told.error_code, told.topics) for told in answer.groups] == [(ErrorCode.STALE_MEMBER_EPOCH, [])]


def test_offsets_that_are_too_much_to_tell_are_no_empty_answer_in_the_first_versions(broker: Broker, monkeypatch):
    monkeypatch.setattr("millstream.core.group.fetch.METADATA_CHARACTERS_MAX", 10)
    group = group_on(broker, 1)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 11)
    topics = [OffsetCommitRequestTopic(name="u", partitions=[partition])]
    call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name="u", partition_indexes=[0])])
    (answer,) = call(broker, offset_fetch, request, 1)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [ErrorCode.UNKNOWN_SERVER_ERROR]
