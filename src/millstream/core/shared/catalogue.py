"""The controller's catalogue of shared storage: who leads each partition, and which object has which offsets.

::

    register ─► take_lead ─► prepare ─► (upload) ─► commit ─► find …          one order for the whole cluster
    fence ────► take_lead by another broker                                   only after it
    trim, replace, delete ─► freed ─► grace, no lease ─► removable ─► removed

**Laws.** The objects of a partition cover its offsets from start to end without a hole and without an overlap. A range
is committed by the leader of that epoch alone, and only at the committed end. A broker whose epoch is fenced changes
nothing any more. A command is taken whole or not at all; a commit that is repeated changes nothing and succeeds,
because a broker repeats a command whose answer was lost. An object is removable when no offset needs it, nobody leases
it, and the grace period is over: readers that found it a moment ago still read it.

Every command raises Rejected when it breaks a law, and changes nothing then.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.model.shared import ObjectId, SharedRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.model.cluster import BrokerEpoch, NodeId
    from millstream.model.quantities import TimestampMs
    from millstream.model.shared import SharedPartition

_FIRST: Final = Offset(0)


class Writer(msgspec.Struct, frozen=True):
    """One life of a broker."""

    node_id: NodeId
    broker_epoch: BrokerEpoch


class Commit(msgspec.Struct, frozen=True):
    """A verified object, to be made visible."""

    writer: Writer
    object_id: ObjectId
    size_bytes: int
    ranges: tuple[SharedRange, ...]


class Placed(msgspec.Struct, frozen=True):
    """Committed offsets of one partition, and their object."""

    base_offset: Offset
    end_offset: Offset
    object_id: ObjectId


class Lead(msgspec.Struct, frozen=True):
    """What a new leader begins with."""

    leader_epoch: Term
    start_offset: Offset
    end_offset: Offset
    """Committed end: what the write-ahead log of the leader before has from here on must be taken over."""


class _Partition(msgspec.Struct):
    leader: Writer | None = None
    leader_epoch: Term = Term(0)
    start_offset: Offset = _FIRST
    end_offset: Offset = _FIRST
    placed: list[Placed] = []
    """By offset, contiguous; the first one has ``start_offset``, the last one ends at ``end_offset``."""


class _Object(msgspec.Struct):
    commit: Commit
    freed_ms: TimestampMs | None = None
    """When the last offset left it."""


class Catalogue:
    """The state that all commands in order come to; every controller that applied the same commands has the same."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._alive: dict[NodeId, BrokerEpoch] = {}
        self._epochs: dict[NodeId, BrokerEpoch] = {}
        self._partitions: dict[SharedPartition, _Partition] = {}
        self._objects: dict[ObjectId, _Object] = {}
        self._prepared: dict[ObjectId, Writer] = {}
        self._replacing: set[ObjectId] = set()
        self._orphans: dict[ObjectId, TimestampMs] = {}
        self._leases: dict[ObjectId, int] = {}
        self._next_id = 1
        self.takeovers = 0
        """Leaderships that were taken from a fenced broker."""

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register(self, writer: Writer, now_ms: TimestampMs) -> None:
        """A broker starts. Its life before, if any, is fenced by that."""
        before = self._epochs.get(writer.node_id)
        if before is not None and writer.broker_epoch <= before:
            raise Rejected(f"broker {writer.node_id} has had epoch {before}", ErrorCode.STALE_BROKER_EPOCH)
        if before is not None:
            self.fence(Writer(writer.node_id, before), now_ms)
        self._alive[writer.node_id] = self._epochs[writer.node_id] = writer.broker_epoch

    def fence(self, writer: Writer, now_ms: TimestampMs) -> None:
        """Fence a broker epoch: it changes nothing from now on. The objects that it prepared become orphans."""
        if self._alive.get(writer.node_id) == writer.broker_epoch:
            del self._alive[writer.node_id]
        for object_id in [one for one, by in self._prepared.items() if by == writer]:
            del self._prepared[object_id]
            self._replacing.discard(object_id)
            self._orphans[object_id] = now_ms

    def is_alive(self, writer: Writer) -> bool:
        """Whether the broker is alive and not fenced."""
        return self._alive.get(writer.node_id) == writer.broker_epoch

    def _check_alive(self, writer: Writer) -> None:
        if not self.is_alive(writer):
            raise Rejected(
                f"epoch {writer.broker_epoch} of broker {writer.node_id} is fenced", ErrorCode.STALE_BROKER_EPOCH
            )

    # -- partitions ----------------------------------------------------------------------------------------------------

    def create(self, partition: SharedPartition) -> None:
        """A partition that was never there."""
        if partition in self._partitions:
            raise Rejected("the partition is there", ErrorCode.TOPIC_ALREADY_EXISTS)
        self._partitions[partition] = _Partition()

    def delete(self, partition: SharedPartition, now_ms: TimestampMs) -> None:
        """The partition's topic is deleted. Its id is never used again."""
        self._found(partition)
        del self._partitions[partition]
        self._free(now_ms)

    def take_lead(self, partition: SharedPartition, writer: Writer) -> Lead:
        """Lead the partition. The leader before has resigned or is fenced; its write-ahead log is read after this."""
        self._check_alive(writer)
        found = self._found(partition)
        before = found.leader
        if before is not None and before != writer:
            self._check_free(before)
            self.takeovers += 1
        if before != writer:
            found.leader = writer
            found.leader_epoch = Term(found.leader_epoch + 1)
        return Lead(found.leader_epoch, found.start_offset, found.end_offset)

    def _check_free(self, before: Writer) -> None:
        if self.is_alive(before):
            raise Rejected(f"broker {before.node_id} leads the partition", ErrorCode.INELIGIBLE_REPLICA)

    def resign(self, partition: SharedPartition, writer: Writer, end_offset: Offset) -> None:
        """Give a partition away: everything up to the end of its log is committed, so the next leader needs no log."""
        self._check_alive(writer)
        found = self._found(partition)
        if found.leader != writer:
            raise Rejected("the broker does not lead the partition", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if end_offset != found.end_offset:
            raise Rejected(
                f"the log ends at {end_offset}, {found.end_offset} is uploaded", ErrorCode.INELIGIBLE_REPLICA
            )
        found.leader = None

    def leader(self, partition: SharedPartition) -> tuple[Writer | None, Term]:
        """Who leads, and in which epoch."""
        found = self._found(partition)
        return found.leader, found.leader_epoch

    def trim(self, partition: SharedPartition, start_offset: Offset, now_ms: TimestampMs) -> None:
        """The log starts later: at most at its committed end."""
        found = self._found(partition)
        if start_offset > found.end_offset:
            raise Rejected("what is not uploaded cannot be deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
        if start_offset > found.start_offset:
            found.start_offset = start_offset
            found.placed = [one for one in found.placed if one.end_offset > start_offset]
            self._free(now_ms)

    def bounds(self, partition: SharedPartition) -> tuple[Offset, Offset]:
        """Start, and committed end (exclusive)."""
        found = self._found(partition)
        return found.start_offset, found.end_offset

    def find(self, partition: SharedPartition, offset: Offset) -> Placed | None:
        """The object with an offset; None if it is not committed. Raises Rejected below the start."""
        found = self._found(partition)
        if offset < found.start_offset:
            raise Rejected(f"offset {offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
        at = bisect_right(found.placed, offset, key=_base_offset) - 1
        return found.placed[at] if at >= 0 and offset < found.placed[at].end_offset else None

    def placed(self, partition: SharedPartition) -> Sequence[Placed]:
        """All committed ranges of a partition, by offset."""
        return tuple(self._found(partition).placed)

    def _found(self, partition: SharedPartition) -> _Partition:
        found = self._partitions.get(partition)
        if found is None:
            raise Rejected("there is no such partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    # -- objects -------------------------------------------------------------------------------------------------------

    def prepare(self, writer: Writer, count: int, *, replaces: bool = False) -> list[ObjectId]:
        """Numbers for objects that the broker is about to write; with ``replaces`` in the place of others."""
        self._check_alive(writer)
        made = [ObjectId(self._next_id + at) for at in range(count)]
        self._next_id += count
        self._prepared |= dict.fromkeys(made, writer)
        if replaces:
            self._replacing.update(made)
        return made

    def give_up(self, writer: Writer, object_id: ObjectId, now_ms: TimestampMs) -> None:
        """An object that was to replace others is not wanted any more."""
        if self._prepared.get(object_id) == writer and object_id in self._replacing:
            del self._prepared[object_id]
            self._replacing.discard(object_id)
            self._orphans[object_id] = now_ms

    def commit(self, commit: Commit, now_ms: TimestampMs) -> None:
        """Make an object visible: each range at the end of its partition. Ranges of deleted partitions are dropped."""
        if self._is_repeated(commit):
            return
        self._check_prepared(commit)
        self._check_order(commit)
        ends: dict[SharedPartition, Offset] = {}
        for one in commit.ranges:
            found = self._partitions.get(one.partition)
            if found is None:
                continue
            if (found.leader, found.leader_epoch) != (commit.writer, one.leader_epoch):
                raise Rejected("the partition has another leader", ErrorCode.FENCED_LEADER_EPOCH)
            end = ends.get(one.partition, found.end_offset)
            _check_follows(one, end)
            ends[one.partition] = one.end_offset
        self._add(commit)
        for one in commit.ranges:
            if one.partition in ends:
                found = self._partitions[one.partition]
                found.placed.append(Placed(one.base_offset, one.end_offset, commit.object_id))
                found.end_offset = one.end_offset
        self._free(now_ms)

    def _check_order(self, commit: Commit) -> None:
        """Of what the broker has prepared, this object is the oldest."""
        mine = [one for one, by in self._prepared.items() if by == commit.writer and one not in self._replacing]
        oldest = min(mine, default=None)
        if commit.object_id != oldest:
            raise Rejected(f"object {commit.object_id} is committed before object {oldest}")

    def replace(self, commit: Commit, old: Iterable[ObjectId], now_ms: TimestampMs) -> None:
        """Put one object in the place of several, with the same records. The old ones leave as a whole."""
        if self._is_repeated(commit):
            return
        self._check_prepared(commit)
        leaving = set(old)
        if not leaving or any(one not in self._objects for one in leaving):
            raise Rejected("an object that is to be replaced is not in the catalogue")
        new: dict[SharedPartition, list[Placed]] = {}
        for partition, found in self._partitions.items():
            if any(one.object_id in leaving for one in found.placed):
                new[partition] = self._replaced(found, partition, commit, leaving)
        self._add(commit)
        for partition, placed in new.items():
            self._partitions[partition].placed = placed
        self._free(now_ms)

    def _replaced(
        self, found: _Partition, partition: SharedPartition, commit: Commit, leaving: set[ObjectId]
    ) -> list[Placed]:
        """The ranges of a partition after the replacement: each run of leaving ranges is one range of the new object,
        which may begin earlier, where the log has been trimmed since.
        """
        placed: list[Placed] = []
        offered = {one.end_offset: one for one in commit.ranges if one.partition == partition}
        run: list[Placed] = []
        for one in [*found.placed, None]:
            if one is not None and one.object_id in leaving:
                run.append(one)
                continue
            if run:
                base, end = run[0].base_offset, run[-1].end_offset
                offer = offered.get(end)
                trimmed = base <= found.start_offset and not placed
                if offer is None or not (offer.base_offset == base or (trimmed and offer.base_offset < base)):
                    raise Rejected(f"the new object does not have the offsets {base}–{end} of a partition")
                placed.append(Placed(base, end, commit.object_id))
                run = []
            if one is not None:
                placed.append(one)
        return placed

    def _is_repeated(self, commit: Commit) -> bool:
        found = self._objects.get(commit.object_id)
        if found is None:
            return False
        if found.commit != commit:
            raise Rejected(f"object {commit.object_id} is committed with other contents")
        return True

    def _check_prepared(self, commit: Commit) -> None:
        self._check_alive(commit.writer)
        if self._prepared.get(commit.object_id) != commit.writer:
            raise Rejected(f"object {commit.object_id} was not prepared by this broker")

    def _add(self, commit: Commit) -> None:
        del self._prepared[commit.object_id]
        self._replacing.discard(commit.object_id)
        self._objects[commit.object_id] = _Object(commit)

    # -- removal -------------------------------------------------------------------------------------------------------

    def lease(self, object_id: ObjectId) -> None:
        """A reader is about to read the object; `release` follows. Raises Rejected if no offset is in it any more."""
        found = self._objects.get(object_id)
        if found is None or found.freed_ms is not None:
            raise Rejected(f"object {object_id} has been replaced: look the offset up again")
        self._leases[object_id] = self._leases.get(object_id, 0) + 1

    def release(self, object_id: ObjectId) -> None:
        """The reader is done."""
        left = self._leases.pop(object_id) - 1
        if left:
            self._leases[object_id] = left

    def removable(self, now_ms: TimestampMs) -> list[ObjectId]:
        """Objects that may be deleted from the store now; `removed` follows when they are."""
        due = now_ms - self._grace_ms
        freed = {one: it.freed_ms for one, it in self._objects.items() if it.freed_ms is not None} | self._orphans
        return sorted(one for one, since in freed.items() if since <= due and one not in self._leases)

    def removed(self, object_ids: Iterable[ObjectId]) -> None:
        """They are not in the store any more."""
        for one in object_ids:
            self._orphans.pop(one, None)
            self._objects.pop(one, None)

    @property
    def live_objects(self) -> set[ObjectId]:
        """Objects that offsets are read from."""
        return {one.object_id for found in self._partitions.values() for one in found.placed}

    def _free(self, now_ms: TimestampMs) -> None:
        live = self.live_objects
        for object_id, found in self._objects.items():
            if found.freed_ms is None and object_id not in live:
                found.freed_ms = now_ms


def _check_follows(one: SharedRange, end: Offset) -> None:
    if one.base_offset != end or one.end_offset <= end:
        raise Rejected(f"the range {one.base_offset}–{one.end_offset} does not begin at the end {end}")


def _base_offset(placed: Placed) -> Offset:
    return placed.base_offset
