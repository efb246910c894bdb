"""OffsetFetch: the committed offsets of a group.

Only durable offsets are returned. A reader that requires stable offsets (KIP-447) also waits for the commits in flight
to the log, so that it cannot take over a partition below what its former owner is about to have acknowledged, and asks
again for an offset that an open transaction is going to change. A group
that does not exist has no offsets, which is no error. Offsets of a deleted topic are not returned, even if a crash or a
full disk kept their tombstones from being written.
"""

from typing import Final

from millstream.core.group.group import Group
from millstream.core.group.offset_checks import check_fetch
from millstream.core.group.offsets import NO_OFFSET, CommittedOffset, PendingOffsets
from millstream.core.group.topics import Topics
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millstream.wire.schema import ZERO_UUID

METADATA_CHARACTERS_MAX: Final = 16 << 20
"""Maximum characters of metadata in one response. A request of some kilobytes may name one partition thousands of
times.
"""

_NOTHING_PENDING: Final = PendingOffsets()
_NO_PARTITIONS: dict[int, CommittedOffset] = {}


def fetch_offsets(
    group: Group | None, asked: OffsetFetchRequestGroup, existing: Topics, *, require_stable: bool = False
) -> OffsetFetchResponseGroup:
    """The committed offsets of ``group`` that are requested. ``topics`` None requests all of them. With
    ``require_stable`` an offset that an open transaction may change is refused with UNSTABLE_OFFSET_COMMIT.
    """
    topics: list[OffsetFetchResponseTopics] = []
    if group is not None:
        error = _check(group, asked)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    pending = group.offsets.pending if group is not None and require_stable else _NOTHING_PENDING
    held = pending.holds
    if asked.topics is None:
        for name, partitions in group.offsets.topics.items() if group is not None else ():
            current = existing.by_name(name)
            topic_id = ZERO_UUID if current is None else current.topic_id
            found = [
                _unstable(index) if held(name, index) else _found(index, offset)
                for index, offset in partitions.items()
                if _same_topic(offset, topic_id) is not None
            ]
            if found:
                topics.append(OffsetFetchResponseTopics(name=name, partitions=found))
    else:
        for topic in asked.topics:
            partitions = _NO_PARTITIONS if group is None else group.offsets.topics.get(topic.name, _NO_PARTITIONS)
            found = [
                _unstable(index)
                if held(topic.name, index)
                else _found(index, _same_topic(partitions.get(index), topic.topic_id))
                for index in topic.partition_indexes
            ]
            topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=found))
    answer = OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)
    return answer if metadata_characters(answer) <= METADATA_CHARACTERS_MAX else metadata_too_large(asked.group_id)


def _check(group: Group, asked: OffsetFetchRequestGroup) -> ErrorCode:
    """Whether a member of an assigned group asks with its epoch."""
    with_epochs = group.consumer if group.consumer is not None else group.streams
    return ErrorCode.NONE if with_epochs is None else check_fetch(with_epochs, asked)


def metadata_characters(answer: OffsetFetchResponseGroup) -> int:
    """Characters of metadata in a response."""
    return sum(len(found.metadata or "") for topic in answer.topics for found in topic.partitions)


def metadata_too_large(group_id: str) -> OffsetFetchResponseGroup:
    """The response in the place of one that is too large."""
    return OffsetFetchResponseGroup(group_id=group_id, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def _same_topic(offset: CommittedOffset | None, topic_id: bytes) -> CommittedOffset | None:
    """The offset, or None if it belongs to an earlier topic of the same name."""
    if offset is None or topic_id in (ZERO_UUID, offset.topic_id) or offset.topic_id == ZERO_UUID:
        return offset
    return None


def _unstable(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
    )


def _found(index: int, offset: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if offset is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )
