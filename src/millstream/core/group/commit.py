"""OffsetCommit: stores the offsets that a group, or a consumer without a group, has read.

Members commit with the current generation; an older generation is fenced (invariant D1). A consumer without membership
commits with generation -1, which an empty group accepts, and which creates a group that does not exist.

Offsets become visible, and the response leaves, when they are durable, so an offset that was once fetched is never
lost. Commits of one group take effect in log order; the last one wins (D2).
"""

from typing import Final

from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.offset_checks import check_consumer_commit, check_streams_commit
from millstream.core.group.offsets import CommittedOffset
from millstream.core.group.outputs import Commit, Key, Value
from millstream.core.group.rebalance import renew_session
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion, Offset
from millstream.wire.messages.group_storage import OffsetCommitKey, OffsetCommitValue
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

GROUP_ID_NOT_FOUND_FROM = 9
NO_RETENTION_TIME = -1


def commit_error(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The response that refuses every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def check_unknown_group(commit: Commit) -> ErrorCode:
    """Whether a commit may create its group."""
    if commit.request.generation_id_or_member_epoch < 0:
        return ErrorCode.NONE
    if commit.producer is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.GROUP_ID_NOT_FOUND if commit.version >= GROUP_ID_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION


def commit_offsets(step: Step, group: Group, commit: Commit) -> None:
    """Handle an OffsetCommit. The response is sent when the offsets are durable."""
    request = commit.request
    error = _check_all(group, commit)
    if error is not ErrorCode.NONE:
        step.out.answer(commit.token, commit_error(request, error))
        return
    if (
        group.assigned is None
        and request.member_id in group.members
        and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
    ):
        renew_session(step, group.members[request.member_id])
    limit = step.settings.offset_metadata_max_bytes
    offsets: list[tuple[str, int, CommittedOffset]] = []
    records: list[tuple[Key, Value | None]] = []
    topics: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        results: list[OffsetCommitResponsePartition] = []
        for partition in topic.partitions:
            index = partition.partition_index
            if len(partition.committed_metadata or "") > limit:
                results.append(
                    OffsetCommitResponsePartition(partition_index=index, error_code=ErrorCode.OFFSET_METADATA_TOO_LARGE)
                )
                continue
            offset = _offset(partition, request.retention_time_ms, topic.topic_id, step)
            offsets.append((topic.name, index, offset))
            records.append(offset_record(group.group_id, topic.name, index, offset))
            results.append(OffsetCommitResponsePartition(partition_index=index))
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
    response = OffsetCommitResponse(topics=topics)
    if records:
        step.write(tuple(records), PendingCommit(group, commit, offsets, response), commit.producer)
    else:
        step.out.answer(commit.token, response)


def _check_all(group: Group, commit: Commit) -> ErrorCode:
    """Whether this commit may be stored. A producer need not say on whose behalf it commits (KIP-447)."""
    request = commit.request
    if group.share is not None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if commit.producer is not None and (
        request.generation_id_or_member_epoch < 0 and not request.member_id and request.group_instance_id is None
    ):
        return ErrorCode.NONE
    if group.consumer is not None or group.streams is not None:
        error = _check_assigned(group, request, commit.version)
        stale = error is ErrorCode.STALE_MEMBER_EPOCH and commit.producer is not None
        return ErrorCode.ILLEGAL_GENERATION if stale else error
    error = _check(group, request)
    # A member without an assignment may commit what it processed before, as part of its transaction.
    return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS and commit.producer is not None else error


def _check_assigned(group: Group, request: OffsetCommitRequest, version: ApiVersion) -> ErrorCode:
    if group.streams is not None:
        return check_streams_commit(group.streams, request, version)
    assert group.consumer is not None
    return check_consumer_commit(group.consumer, request, version)


def _check(group: Group, request: OffsetCommitRequest) -> ErrorCode:
    generation = request.generation_id_or_member_epoch
    if generation < 0 and group.is_empty:
        return ErrorCode.NONE
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        # A valid member without an assignment: its assignment was lost, and it is about to rejoin.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _offset(partition: OffsetCommitRequestPartition, retention_ms: int, topic_id: bytes, step: Step) -> CommittedOffset:
    wall_ms = step.wall_ms
    return CommittedOffset(
        partition.committed_offset,
        max(partition.committed_leader_epoch, -1),
        partition.committed_metadata or "",
        wall_ms,
        -1 if retention_ms == NO_RETENTION_TIME else min(wall_ms + retention_ms, _TIME_MAX_MS),
        topic_id,
        step.next_receipt,
    )


def offset_record(
    group_id: str, topic: str, partition: int, offset: CommittedOffset | None
) -> tuple[Key, Value | None]:
    """The record that stores an offset, or (None) deletes it."""
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    if offset is None:
        return key, None
    return key, OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_ms,
        expire_timestamp=offset.expire_ms,
        topic_id=offset.topic_id,
    )


def stored_offset(value: OffsetCommitValue, offset: Offset) -> CommittedOffset:
    """The committed offset in the record at ``offset`` of the log."""
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        offset - _BEFORE_RECEIPTS,
    )


def offsets_under_way(step: Step, group: Group) -> set[tuple[str, int]]:
    """Partitions of ``group`` with a commit in flight to the log."""
    if not group.writes.in_flight:
        return set()
    return {
        (topic, partition)
        for pending in step.writes.values()
        if isinstance(pending, PendingCommit) and pending.group is group
        for topic, partition, _ in pending.offsets
    }


_BEFORE_RECEIPTS: Final = 1 << 62
"""More than any offset: what was read from the log comes before all that was written since."""

_TIME_MAX_MS: Final = (1 << 63) - 1
"""Maximum time in a record, in ms. The maximum retention time means for ever."""


class PendingCommit:
    """A commit in flight to the log."""

    __slots__ = ("group", "offsets", "producer", "response", "token")

    def __init__(
        self,
        group: Group,
        commit: Commit,
        offsets: list[tuple[str, int, CommittedOffset]],
        response: OffsetCommitResponse,
    ) -> None:
        self.group = group
        self.token: Token = commit.token
        self.producer = commit.producer
        self.offsets = offsets
        self.response = response

    def settle(self, step: Step, error: ErrorCode) -> None:
        """Make durable offsets visible, now or with their transaction, or drop them."""
        if error is ErrorCode.NONE and self.producer is not None:
            for topic, partition, offset in self.offsets:
                self.group.offsets.pending.put(self.producer[0], topic, partition, offset)
            step.out.answer(self.token, self.response)
        elif error is ErrorCode.NONE:
            put = self.group.offsets.put
            for topic, partition, offset in self.offsets:
                put(topic, partition, offset)
            step.counts.committed_offsets += len(self.offsets)
            step.out.answer(self.token, self.response)
        else:
            step.out.answer(self.token, _failed(self.response, error))


def _failed(response: OffsetCommitResponse, error: ErrorCode) -> OffsetCommitResponse:
    """The response with ``error`` for every partition whose offset was to be stored."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=partition.error_code or error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )
