"""Removing shared objects in which no offset is left, and finding again what the objects of a store hold.

An object is deleted when each of its ranges is: the log of the partition starts at or after the end of the range, or
the range is small (`core.shared.joins`) and was joined into an object of the partition's own, or the topic was deleted.
A topic that is not known here is deleted only if the store does not describe it either, because the objects may be
those of a broker that was lost (`tier recover`). An object that cannot be read stays.

The caller gives log starts that are old enough: readers that started before them are done.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.shared.joins import LARGE_BYTES
from millstream.errors import Corruption, Rejected
from millstream.format.archive import topic_key
from millstream.format.shared_object import SHARED_FOLDER, parse_shared_key
from millstream.model.quantities import Offset
from millstream.model.shared import NO_OBJECT, SharedPartition
from millstream.objects import ObjectKey
from millstream.tiers.packing import archive_id, segment_of
from millstream.tiers.shared_objects import read_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.format.manifest import ArchivedSegment
    from millstream.format.shared_object import SharedBlock, SharedIndex
    from millstream.model.replication import Term
    from millstream.model.shared import ObjectId
    from millstream.objects import ObjectInfo, ObjectStore, Version
    from millstream.tiers.messages import Sweep

READ_AT_ONCE: Final = 200
"""Objects whose index one sweep reads for the first time; the next one continues."""

_RANGES_KEPT: Final = 500_000


class SweepResult(NamedTuple):
    """How a sweep went."""

    objects: int
    removed: list[ObjectId]
    after: str
    """Where to continue; empty at the end."""


class RangeEnd(NamedTuple):
    """What a sweep needs to know of one range of an object."""

    partition: SharedPartition
    end_offset: Offset
    """Exclusive."""
    is_large: bool
    """Large ranges stay in the object until the log starts after them."""


class Sweeper:
    """Sweeps of one store. It keeps the ends of the ranges of objects that it has read. One caller."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._ends: dict[ObjectId, tuple[Version, tuple[RangeEnd, ...]]] = {}
        self._kept = 0

    def sweep(self, command: Sweep) -> SweepResult:
        """Look at objects from a key on, and remove the unused ones. Raises what the store raises."""
        starts: dict[SharedPartition, tuple[Offset, Offset]] = {}
        for one in command.starts:
            key = SharedPartition(one.topic_id, one.partition_index)
            start, joined_to = starts.get(key, (one.start_offset, one.joined_to))
            starts[key] = max(start, one.start_offset), max(joined_to, one.joined_to)
        known = set(command.topics)
        described: dict[bytes, bool] = {}
        dead: list[ObjectId] = []
        keys: list[ObjectKey] = []
        objects = read = 0
        after = ""
        for info in self._store.list(SHARED_FOLDER, command.after):
            object_id = parse_shared_key(info.key)
            if object_id is None:
                continue
            if self._known(info, object_id) is None:
                if read == READ_AT_ONCE:
                    break
                read += 1
            objects, after = objects + 1, info.key
            ends = self._ends_of(info, object_id)
            if ends and all(self._is_gone(one, starts, known, described) for one in ends):
                dead.append(object_id)
                keys.append(info.key)
        else:
            after = ""
        self._store.delete(keys)
        for one in dead:
            self._forget(one)
        return SweepResult(objects, dead, after)

    def _is_gone(
        self,
        found: RangeEnd,
        starts: dict[SharedPartition, tuple[Offset, Offset]],
        known: set[bytes],
        described: dict[bytes, bool],
    ) -> bool:
        start = starts.get(found.partition)
        if start is not None:
            return start[0 if found.is_large else 1] >= found.end_offset
        topic = found.partition.topic_id
        if topic in known:
            return False
        if topic not in described:
            described[topic] = self._store.head(ObjectKey(topic_key(archive_id(found.partition)))) is not None
        return not described[topic]

    def _known(self, info: ObjectInfo, object_id: ObjectId) -> tuple[RangeEnd, ...] | None:
        """What was read of this object before; not of another one that had its number."""
        found = self._ends.get(object_id)
        return None if found is None or found[0] != info.version else found[1]

    def _ends_of(self, info: ObjectInfo, object_id: ObjectId) -> tuple[RangeEnd, ...]:
        """Each partition of the object with the end of what is in it; empty for an object that cannot be read."""
        found = self._known(info, object_id)
        if found is None:
            try:
                index = read_index(self._store, object_id)
            except (Corruption, Rejected):
                return ()
            found = _range_ends(index)
            if object_id in self._ends:
                self._forget(object_id)
            while self._kept > _RANGES_KEPT:
                self._forget(next(iter(self._ends)))
            self._ends[object_id] = info.version, found
            self._kept += len(found)
        return found

    def _forget(self, object_id: ObjectId) -> None:
        self._kept -= len(self._ends.pop(object_id)[1])


def _range_ends(index: SharedIndex) -> tuple[RangeEnd, ...]:
    ends: dict[SharedPartition, tuple[Offset, int]] = {}
    for one in index.blocks:
        size = ends.get(one.partition, (one.end_offset, 0))[1] + one.size_bytes
        ends[one.partition] = one.end_offset, size
    return tuple(RangeEnd(key, end, size >= LARGE_BYTES) for key, (end, size) in ends.items())


class StoredRange(NamedTuple):
    """What one object has of one partition: a shared object, or one of the partition's own."""

    segment: ArchivedSegment
    epochs: tuple[tuple[Term, Offset], ...]


def shared_ids(store: ObjectStore) -> Iterator[ObjectId]:
    """The numbers of all shared objects of a store. Raises Unavailable."""
    for info in store.list(SHARED_FOLDER):
        object_id = parse_shared_key(info.key)
        if object_id is not None:
            yield object_id


def ranges_of(index: SharedIndex) -> list[tuple[SharedPartition, StoredRange]]:
    """What a shared object has of each partition."""
    found: list[tuple[SharedPartition, StoredRange]] = []
    for partition, blocks in _by_partition(index):
        epochs = tuple((one.leader_epoch, one.base_offset) for one in blocks)
        found.append((partition, StoredRange(segment_of(index.object_id, blocks), epochs)))
    return found


def stored_ranges(store: ObjectStore) -> dict[SharedPartition, list[StoredRange]]:
    """What all shared objects of a store have of each partition. An object that cannot be read is left out.

    Raises:
        Unavailable: the store.
    """
    found: dict[SharedPartition, list[StoredRange]] = {}
    for object_id in shared_ids(store):
        try:
            index = read_index(store, object_id)
        except (Corruption, Rejected):
            continue
        for partition, one in ranges_of(index):
            found.setdefault(partition, []).append(one)
    return found


def own_ranges(segments: Iterable[ArchivedSegment], epochs: Sequence[tuple[Term, Offset]]) -> Iterator[StoredRange]:
    """What objects of the partition's own have, by the segments of its manifest; ``epochs`` are those of its log."""
    return ranges_with((one for one in segments if one.object_id == NO_OBJECT), epochs)


def ranges_with(segments: Iterable[ArchivedSegment], epochs: Sequence[tuple[Term, Offset]]) -> Iterator[StoredRange]:
    """The segments of an archive, with the leader epochs in each; ``epochs`` are those of its log. A leader epoch
    without a record, at whose first offset the next one wrote, has nothing in them.
    """
    for one in segments:
        inside: dict[Offset, Term] = {}
        for epoch, offset in epochs:
            if offset < one.end_offset:
                inside[max(offset, one.base_offset)] = epoch
        yield StoredRange(one, tuple((epoch, offset) for offset, epoch in inside.items()))


def longest_chain(ranges: Sequence[StoredRange], known: Sequence[tuple[Term, Offset]] = ()) -> list[StoredRange]:
    """Ranges that follow each other without a gap and reach the largest end of the newest leader epoch, from the
    smallest offset on. Where two ranges start at one offset, because an upload was cut off before its commit and made
    again, either may be taken: of two that reach as far the one of the newer object is, and before that an object of
    the partition's own.

    After an unclean cut, objects may be left with records that it has given up. What another range, or the log of
    which ``known`` are the leader epochs, has in a later epoch from an earlier offset on is no part of the log.
    """
    begins = _begins([*known, *(epoch for one in ranges for epoch in one.epochs)])
    reach: dict[Offset, tuple[tuple[int, Offset], StoredRange]] = {}
    for one in sorted(ranges, key=lambda one: (-one.segment.base_offset, _rank(one))):
        if any(_is_given_up(epoch, offset, begins) for epoch, offset in one.epochs):
            continue
        following = reach.get(one.segment.end_offset)
        end = (_last_epoch(one), one.segment.end_offset) if following is None else following[0]
        best = reach.get(one.segment.base_offset)
        if best is None or end >= best[0]:
            reach[one.segment.base_offset] = (end, one)
    if not reach:
        return []
    furthest = max(end for end, _ in reach.values())
    at = min(base for base, (end, _) in reach.items() if end == furthest)
    chain: list[StoredRange] = []
    while at in reach:
        chain.append(reach[at][1])
        at = chain[-1].segment.end_offset
    return chain


def _begins(epochs: Iterable[tuple[Term, Offset]]) -> list[tuple[Term, Offset]]:
    """Of each leader epoch the first offset that it, or a later one, has; epochs and offsets rise."""
    begins: list[tuple[Term, Offset]] = []
    for epoch, offset in sorted(epochs, key=lambda one: (-one[0], one[1])):
        if not begins or offset < begins[-1][1]:
            begins.append((epoch, offset))
    return begins[::-1]


def _is_given_up(epoch: Term, offset: Offset, begins: Sequence[tuple[Term, Offset]]) -> bool:
    """Whether a later epoch has the offset, too."""
    later = bisect_right(begins, epoch, key=lambda one: one[0])
    return later < len(begins) and begins[later][1] <= offset


def _last_epoch(found: StoredRange) -> int:
    return found.epochs[-1][0] if found.epochs else -1


def _rank(found: StoredRange) -> tuple[int, bool, int]:
    return _last_epoch(found), found.segment.object_id == NO_OBJECT, found.segment.object_id


def _by_partition(index: SharedIndex) -> Iterator[tuple[SharedPartition, list[SharedBlock]]]:
    run: list[SharedBlock] = []
    for one in index.blocks:
        if run and (one.partition != run[0].partition or one.base_offset != run[-1].end_offset):
            yield run[0].partition, run
            run = []
        run.append(one)
    if run:
        yield run[0].partition, run
