"""Expiry of committed offsets and of groups (KIP-211).

- A group with members keeps its offsets. A stable consumer group loses those of topics that no member consumes,
  ``offsets.retention.minutes`` after their commit.
- An empty group loses all its offsets that long after its last member left.
- Offsets of consumers without membership expire that long after their commit, and offsets with their own retention time
  (OffsetCommit up to version 4) after that time.

An empty group without offsets is deleted, too; a share group, which never has any, is not. An offset for whose
partition an open transaction has another one does not expire, and neither does its group; those of other partitions do.
Groups with a write in flight wait for the next round: a tombstone must not overtake a commit.
"""

from collections.abc import Iterator
from typing import Final

from millstream.core.group.commit import offset_record
from millstream.core.group.group import CONSUMER_PROTOCOL, Group
from millstream.core.group.image import group_tombstones
from millstream.core.group.offsets import CommittedOffset
from millstream.core.group.outputs import Key, Value
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode

WRITE_RECORDS_MAX: Final = 1_000
"""Maximum number of tombstones in one write, to bound the batch."""
_WRITE_BYTES_MAX: Final = 1 << 20
_PLACE_BYTES: Final = 300
"""Maximum size of topic, partition and overhead in one tombstone."""

_Removal = tuple[list[tuple[str, int]], tuple[tuple[Key, Value | None], ...]]
"""Topic partitions, and the records that delete their offsets."""


def tombstones(group_id: str, topic_partitions: list[tuple[str, int]]) -> Iterator[_Removal]:
    """The tombstones for these offsets, write by write. A write has fewer of them if the group's id, which each
    repeats, is long.
    """
    at_once = min(_WRITE_BYTES_MAX // (len(group_id.encode()) + _PLACE_BYTES), WRITE_RECORDS_MAX)
    for start in range(0, len(topic_partitions), at_once):
        removed = topic_partitions[start : start + at_once]
        yield removed, tuple(offset_record(group_id, topic, partition, None) for topic, partition in removed)


def expire_group(step: Step, group: Group, forgotten: list[Group]) -> None:
    """Write tombstones for what has expired. ``forgotten`` gets the group once its deletion is durable."""
    if group.writes.in_flight or group.share is not None:
        return
    held = group.offsets.pending.topic_partitions()
    expired = [
        (topic, partition)
        for topic, partition, offset in group.offsets
        if (topic, partition) not in held
        and _is_expired(group, topic, offset, step.wall_ms, step.settings.offsets_retention_ms)
    ]
    kept = sum(len(partitions) for partitions in group.offsets.topics.values()) - len(expired)
    goes = not kept and not held and group.is_empty and not group.rebalance.pending_joins
    for removed, records in tombstones(group.group_id, expired):
        step.write(records, PendingRemoval(group, removed, None))
        step.counts.expired_offsets += len(removed)
    if goes:
        step.write(group_tombstones(group), PendingRemoval(group, [], forgotten))


def _is_expired(group: Group, topic: str, offset: CommittedOffset, wall_ms: int, retention_ms: int) -> bool:
    if group.protocol_type is None or group.assigned is not None:
        since_ms = offset.commit_ms
    elif group.is_empty:
        since_ms = offset.commit_ms if group.standing.since_ms < 0 else group.standing.since_ms
    elif (
        group.state is GroupState.STABLE
        and group.protocol_type == CONSUMER_PROTOCOL
        and group.assignors.topics is not None
    ):
        since_ms = offset.commit_ms
    else:
        return False
    if not group.is_empty and group.consumes(topic):
        return False
    if offset.expire_ms >= 0:
        return wall_ms >= offset.expire_ms
    return wall_ms - since_ms >= retention_ms


class PendingRemoval:
    """Tombstones in flight to the log: of offsets, and of the group itself if ``forgotten`` is given."""

    __slots__ = ("forgotten", "group", "offsets")

    def __init__(self, group: Group, offsets: list[tuple[str, int]], forgotten: list[Group] | None) -> None:
        self.group = group
        self.offsets = offsets
        self.forgotten = forgotten

    def settle(self, step: Step, error: ErrorCode) -> None:
        """Remove the offsets, also those in open transactions. What is known now was written before the tombstones;
        later commits are not known yet.
        """
        _ = step
        if error is not ErrorCode.NONE:
            return  # the next round retries
        group = self.group
        for topic, partition in self.offsets:
            group.offsets.remove(topic, partition)
            group.offsets.pending.remove((topic, partition))
        has_offsets = group.offsets or group.offsets.pending
        if self.forgotten is not None and group.is_empty and not group.rebalance.pending_joins and not has_offsets:
            group.forget_generations()
            self.forgotten.append(group)
