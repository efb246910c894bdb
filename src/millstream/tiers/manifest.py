"""The archive of one partition in memory: committed segments, packed; the oldest ones in objects of their own.

::

    start ─┬─ part ─┬─ part ─┬─ run ─┬─ run ─┬─ … ─┬─ open run ─┐ end
           │ in the store     │ in memory, at most `memory_bytes_max`
           └ name, offsets and times in memory

Every replica applies the same commands in the same order, so every replica has the same archive. The commands:

- ``append``: a committed segment, which starts at the archive's end;
- ``spilled``: the oldest segments are in a part object from now on (``next_spill`` says which);
- ``replaced``: other segments have the batches of some segments, in memory or in one part;
- ``trim``: the log starts later.

The last two return what may be deleted from the store.

**Versions.** ``version`` counts replacements. A part that was made from the segments of another version is refused, and
so is a replacement that expects another version, on every replica alike: what decides is the version alone, because
replicas trim at different times. For the same reason a replacement compares only the segments that this replica still
has; those before the start have left, and the new ones before the start leave at once. The newest
`REPLACEMENTS_MAX` replacements are remembered, so that one that is asked for again is known as done.

A command that does not fit is `Corruption`, and nothing changes: the archive never has a gap or an overlap.

Lookups cost a binary search and the decoding of one run. A lookup that ends in a part returns the part; the caller
reads its object and asks ``find_in``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Corruption
from millstream.format.archive import Archived, Replaced, Spilled
from millstream.format.manifest import (
    RUN_COUNT_MAX,
    ArchivedSegment,
    ArchiveId,
    Manifest,
    ManifestPart,
    Run,
    describe_part,
    pack_run,
    unpack_run,
)
from millstream.model.quantities import ManifestVersion, Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.format.archive import Entry
    from millstream.model.replication import Term

MEMORY_BYTES_MAX: Final = 64 * 1024
"""Packed bytes of one partition, without what is in parts: more than 3,200 segments."""

REPLACEMENTS_MAX: Final = 64
"""Replacements of one partition that are remembered. A job has one at a time in flight."""

_FIRST: Final = Offset(0)
_NONE_LATER: Final = (-2, 0)
"""Before every (largest time, negative base offset)."""
_RUN_OVERHEAD_BYTES: Final = 160
"""Memory of one run beside its packed bytes: the record, its integers, its places in two lists."""


class Freed(msgspec.Struct, frozen=True):
    """What no offset of the log needs now, for deletion after a grace period."""

    parts: tuple[ManifestPart, ...] = ()
    """All segments of these, and then the part objects themselves."""

    segments: tuple[ArchivedSegment, ...] = ()

    part_objects: tuple[ManifestPart, ...] = ()
    """The objects of these parts alone: other parts have their segments."""


class PartObject(msgspec.Struct, frozen=True):
    """The object of a part alone, to be deleted."""

    part: ManifestPart


class Spill(msgspec.Struct, frozen=True):
    """The oldest runs, to be written into a part object."""

    part: ManifestPart
    runs: tuple[Run, ...]


class Archive:
    """One partition's archive. Invariants: parts, then runs, then the open run, each beginning where the one before
    ends; ``start_offset`` lies in the first of them, or is ``end_offset``.
    """

    __slots__ = (
        "_memory_bytes_max",
        "_open",
        "_parts",
        "_run_bytes",
        "_run_times",
        "_runs",
        "end_offset",
        "replacements",
        "size_bytes",
        "start_offset",
        "version",
    )

    def __init__(self, start_offset: Offset, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.start_offset = start_offset
        """First offset of the log. Segments that end at or before it are not in the archive."""

        self.end_offset = start_offset
        """Everything below it is archived. Exclusive."""

        self.size_bytes = 0
        """Bytes of all segments, those in parts included."""

        self.version = ManifestVersion(0)
        """How often segments were replaced."""

        self.replacements: dict[bytes, int] = {}
        """Version after each of the newest replacements, by id; the oldest first."""

        self._memory_bytes_max = memory_bytes_max
        self._parts: list[ManifestPart] = []
        self._runs: list[Run] = []
        self._run_times: list[TimestampMs] = []  # largest timestamp of each run
        self._run_bytes = 0
        self._open: list[ArchivedSegment] = []  # fewer than RUN_COUNT_MAX, after all runs

    # -- commands ------------------------------------------------------------------------------------------------------

    def take_up(self, entry: Entry) -> Freed:
        """Do what a committed entry says. One that was taken up before, or that is of another version, changes nothing.

        Raises:
            Corruption: it does not fit. Nothing changes.
        """
        match entry:
            case Archived():
                freed = self.trim(entry.start_offset)
                if entry.segment.end_offset > self.end_offset:
                    self.append(entry.segment)
                return freed
            case Spilled():
                if entry.version == self.version and entry.part not in self._parts:
                    self.spilled(entry.part)
                return Freed()
            case Replaced():
                return self.replaced(entry) or Freed()

    def append(self, segment: ArchivedSegment) -> None:
        """Add a committed segment. The first one may start before the end, which is the log's start then.

        Raises:
            Corruption: it does not start at the end, or is empty.
        """
        begins = segment.base_offset <= self.end_offset if self.is_empty else segment.base_offset == self.end_offset
        if not begins or segment.end_offset <= max(self.end_offset, segment.base_offset):
            raise Corruption(
                f"the segment {segment.base_offset}–{segment.end_offset} does not follow an archive that ends at "
                f"{self.end_offset}"
            )
        self._open.append(segment)
        self.end_offset = segment.end_offset
        self.size_bytes += segment.size_bytes
        if len(self._open) == RUN_COUNT_MAX:
            self._close_run(self._open)
            self._open = []

    def next_spill(self) -> Spill | None:
        """The runs to write into a part object; None while memory suffices. They are half of all, the oldest ones."""
        if self._run_bytes <= self._memory_bytes_max:
            return None
        runs = tuple(self._runs[: (len(self._runs) + 1) // 2])
        return Spill(describe_part(runs, self.version), runs)

    def spilled(self, part: ManifestPart) -> None:
        """The part object is written: drop the segments that it has. Some of them may have left since the part was
        made, or may stand in other runs here. A part that is needed no more changes nothing, and neither does one that
        overlaps another part, because two leaders made one each.

        Raises:
            Corruption: the part does not end where a segment ends. Nothing changes.
        """
        overlaps = bool(self._parts) and part.base_offset < self._parts[-1].end_offset
        if part.end_offset <= self.start_offset or overlaps:
            return
        following = self.find_offset(part.end_offset)
        if part.end_offset > self.end_offset or (following is not None and following.base_offset < part.end_offset):
            raise Corruption(f"the part {part.base_offset}–{part.end_offset} ends inside of a segment, or after all")
        left = self._trim_runs(part.end_offset)
        self.size_bytes += part.size_bytes - sum(one.size_bytes for one in left)
        self._parts.append(part)

    def replaced(self, entry: Replaced) -> Freed | None:
        """Have the new segments of the entry in the place of the old ones. Returns what that frees; None if the entry
        is of another version, or was taken up before: nothing changes.

        Raises:
            Corruption: this replica has other segments than the entry names. Nothing changes.
        """
        if entry.id in self.replacements or entry.expected_version != self.version:
            return None
        live = tuple(one for one in entry.after if one.end_offset > self.start_offset)
        if entry.part_before is None:
            freed = self._replaced_in_memory(entry, live)
        else:
            freed = self._replaced_in_part(entry, entry.part_before)
        self.version = ManifestVersion(self.version + 1)
        self.replacements[entry.id] = self.version
        while len(self.replacements) > REPLACEMENTS_MAX:
            del self.replacements[next(iter(self.replacements))]
        return freed

    def _replaced_in_part(self, entry: Replaced, before: ManifestPart) -> Freed:
        after = entry.part_after
        if after is None:
            raise Corruption("a replacement inside of a part without another part")
        if before.end_offset <= self.start_offset:  # it left with its segments
            return Freed(parts=(after,), segments=entry.after)
        if before not in self._parts:
            raise Corruption(f"the part {before.base_offset}–{before.end_offset} of a replacement is not here")
        self._parts[self._parts.index(before)] = after
        self.size_bytes += after.size_bytes - before.size_bytes
        return Freed((), entry.before, (before,))

    def _replaced_in_memory(self, entry: Replaced, live: tuple[ArchivedSegment, ...]) -> Freed:
        known = [one for one in entry.before if one.end_offset > self.start_offset]
        gone = tuple(one for one in entry.after if one not in live)
        if not known:
            return Freed(segments=gone)
        first = bisect_right(self._runs, known[0].base_offset, key=lambda run: run.base_offset) - 1
        last = bisect_right(self._runs, entry.end_offset - 1, key=lambda run: run.base_offset)
        first = max(first, 0)
        in_runs = [one for run in self._runs[first:last] for one in unpack_run(run)]
        opened = bool(self._open) and entry.end_offset > self._open[0].base_offset
        segments = [*in_runs, *(self._open if opened else ())]
        at = next((place for place, one in enumerate(segments) if one == known[0]), -1)
        if at < 0 or segments[at : at + len(known)] != known:
            raise Corruption(
                f"the archive has other segments from offset {known[0].base_offset} on than a replacement names"
            )
        segments[at : at + len(known)] = live
        self._run_bytes -= sum(map(_memory_bytes, self._runs[first:last]))
        rest = segments if opened else []
        whole = [] if opened else segments
        while len(rest) >= RUN_COUNT_MAX:
            whole, rest = [*whole, *rest[:RUN_COUNT_MAX]], rest[RUN_COUNT_MAX:]
        runs = [pack_run(whole[begin : begin + RUN_COUNT_MAX]) for begin in range(0, len(whole), RUN_COUNT_MAX)]
        self._runs[first:last] = runs
        self._run_times[first:last] = [max(one.max_timestamp for one in unpack_run(run)) for run in runs]
        self._run_bytes += sum(map(_memory_bytes, runs))
        if opened:
            self._open = rest
        self.size_bytes += sum(one.size_bytes for one in live) - sum(one.size_bytes for one in known)
        return Freed(segments=(*known, *gone))

    def trim(self, start_offset: Offset) -> Freed:
        """Move the log's start. One that is not later changes nothing; beyond the end it empties the archive, which
        then ends at the start: what is between them was never archived.
        """
        if start_offset <= self.start_offset:
            return Freed()
        self.start_offset = start_offset
        count = bisect_right(self._parts, start_offset, key=lambda part: part.end_offset)
        parts = tuple(self._parts[:count])
        del self._parts[:count]
        segments: list[ArchivedSegment] = []
        if not self._parts:
            segments = self._trim_runs(start_offset)
        self.size_bytes -= sum(one.size_bytes for one in [*parts, *segments])
        self.end_offset = max(self.end_offset, start_offset)
        return Freed(parts, tuple(segments))

    # -- lookups -------------------------------------------------------------------------------------------------------

    def find_offset(self, offset: Offset) -> ArchivedSegment | ManifestPart | None:
        """The segment with this offset, or the part that has it; None outside of the archive and below the start."""
        if not self.start_offset <= offset < self.end_offset:
            return None
        if self._parts and offset < self._parts[-1].end_offset:
            return self._parts[bisect_right(self._parts, offset, key=lambda part: part.base_offset) - 1]
        if self._open and offset >= self._open[0].base_offset:
            return find_in(self._open, offset)
        run = self._runs[bisect_right(self._runs, offset, key=lambda run: run.base_offset) - 1]
        return find_in(unpack_run(run), offset)

    def find_time(self, timestamp: TimestampMs, after: Offset = _FIRST) -> ArchivedSegment | ManifestPart | None:
        """The first segment that ends after ``after`` with a record of this time or later, or the part that may have
        it; None without one.
        """
        for part in self._parts:
            if part.max_timestamp >= timestamp and part.end_offset > after:
                return part
        for run, newest in zip(self._runs, self._run_times, strict=True):
            if newest >= timestamp:
                found = first_at(unpack_run(run), timestamp, after)
                if found is not None:
                    return found
        return first_at(self._open, timestamp, after)

    def find_latest(
        self, after: Offset, end_offset: Offset, before: tuple[TimestampMs, Offset] | None = None
    ) -> ArchivedSegment | ManifestPart | None:
        """The segment, or the part, with the largest time of those that overlap [``after``, ``end_offset``); the first
        of several. ``before`` is (largest time, base offset) of the one that was found last: what comes after it in
        this order. None without one.
        """
        found: ArchivedSegment | ManifestPart | None = None
        best = _NONE_LATER

        def look_at(entries: Iterable[ArchivedSegment | ManifestPart]) -> None:
            nonlocal found, best
            for one in entries:
                rank = (one.max_timestamp, -one.base_offset)
                inside = one.base_offset < end_offset and one.end_offset > after
                if inside and rank > best and (before is None or rank < (before[0], -before[1])):
                    found, best = one, rank

        look_at(self._parts)
        look_at(self._open)
        for newest, place in sorted(zip(self._run_times, range(len(self._runs)), strict=True), reverse=True):
            if newest < best[0]:
                break
            look_at(unpack_run(self._runs[place]))
        return found

    def between(self, start_offset: Offset, end_offset: Offset) -> list[ArchivedSegment | ManifestPart]:
        """The parts, then segments in memory, that overlap the range, in order."""
        found: list[ArchivedSegment | ManifestPart] = [
            part for part in self._parts if part.base_offset < end_offset and part.end_offset > start_offset
        ]
        first = max(0, bisect_right(self._runs, start_offset, key=lambda run: run.base_offset) - 1)
        last = bisect_right(self._runs, end_offset - 1, key=lambda run: run.base_offset)
        segments = [*(one for run in self._runs[first:last] for one in unpack_run(run)), *self._open]
        found += [one for one in segments if one.base_offset < end_offset and one.end_offset > start_offset]
        return found

    def from_run(self, offset: Offset) -> list[ArchivedSegment]:
        """The segments in memory from the run with this offset on, in order."""
        first = max(0, bisect_right(self._runs, offset, key=lambda run: run.base_offset) - 1)
        return [*(one for run in self._runs[first:] for one in unpack_run(run)), *self._open]

    def entries(self) -> Iterator[ArchivedSegment | ManifestPart]:
        """Parts, then segments, oldest first. The archive must not change during it."""
        yield from self._parts
        for run in self._runs:
            yield from unpack_run(run)
        yield from self._open

    @property
    def first_offset(self) -> Offset:
        """First offset of the first segment or part, at or before the start; the start without one."""
        first = next(iter(self._parts or self._runs or self._open), None)
        return self.start_offset if first is None else min(first.base_offset, self.start_offset)

    @property
    def parts(self) -> Sequence[ManifestPart]:
        """What is in part objects, oldest first."""
        return self._parts

    @property
    def is_empty(self) -> bool:
        """Whether it has no segment."""
        return not (self._parts or self._runs or self._open)

    @property
    def segment_count(self) -> int:
        """Number of segments, those in parts included."""
        inner = sum(run.segment_count for run in self._runs)
        return sum(part.segment_count for part in self._parts) + inner + len(self._open)

    @property
    def memory_bytes(self) -> int:
        """Packed bytes in memory and what belongs to them, without the open run."""
        return self._run_bytes

    # -- the object ----------------------------------------------------------------------------------------------------

    def manifest(self, owner: ArchiveId, epochs: Iterable[tuple[Term, Offset]] = ()) -> Manifest:
        """The content of the manifest object; ``epochs`` are the leader epochs of the log."""
        runs = [*self._runs, *([pack_run(self._open)] if self._open else [])]
        done = tuple(self.replacements.items())
        return Manifest(owner, self.start_offset, tuple(self._parts), tuple(runs), tuple(epochs), self.version, done)

    @classmethod
    def of(cls, manifest: Manifest, memory_bytes_max: int = MEMORY_BYTES_MAX) -> Archive:
        """The archive of a manifest object."""
        archive = cls(manifest.start_offset, memory_bytes_max)
        archive._parts = list(manifest.parts)
        archive.version = manifest.version
        archive.replacements = dict(manifest.replacements)
        archive.size_bytes = sum(one.size_bytes for one in manifest.parts)
        for run in manifest.runs:
            segments = unpack_run(run)
            archive.end_offset = segments[-1].end_offset
            archive.size_bytes += sum(one.size_bytes for one in segments)
            archive._close_run(segments)
        if manifest.runs and manifest.runs[-1].segment_count < RUN_COUNT_MAX:
            archive._open = unpack_run(archive._runs[-1])
            archive._drop_run_at_end()
        elif not manifest.runs and archive._parts:
            archive.end_offset = archive._parts[-1].end_offset
        return archive

    # -- the runs ------------------------------------------------------------------------------------------------------

    def _close_run(self, segments: Sequence[ArchivedSegment]) -> None:
        run = pack_run(segments)
        self._runs.append(run)
        self._run_times.append(max(one.max_timestamp for one in segments))
        self._run_bytes += _memory_bytes(run)

    def _drop_run_at_end(self) -> None:
        self._run_bytes -= _memory_bytes(self._runs.pop())
        self._run_times.pop()

    def _drop_runs(self, count: int) -> None:
        self._run_bytes -= sum(map(_memory_bytes, self._runs[:count]))
        del self._runs[:count], self._run_times[:count]

    def _trim_runs(self, start_offset: Offset) -> list[ArchivedSegment]:
        """Remove the segments that end at or before the offset, and return them."""
        freed: list[ArchivedSegment] = []
        while self._runs:
            segments = unpack_run(self._runs[0])
            kept = [one for one in segments if one.end_offset > start_offset]
            freed += segments[: len(segments) - len(kept)]
            if len(kept) == len(segments):
                return freed
            self._drop_runs(1)
            if kept:
                run = pack_run(kept)
                self._runs.insert(0, run)
                self._run_times.insert(0, max(one.max_timestamp for one in kept))
                self._run_bytes += _memory_bytes(run)
                return freed
        freed += [one for one in self._open if one.end_offset <= start_offset]
        self._open = [one for one in self._open if one.end_offset > start_offset]
        return freed


def find_in(segments: Sequence[ArchivedSegment], offset: Offset) -> ArchivedSegment | None:
    """The segment with this offset."""
    index = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
    found = segments[index] if index >= 0 else None
    return found if found is not None and offset < found.end_offset else None


def first_at(
    segments: Iterable[ArchivedSegment], timestamp: TimestampMs, after: Offset = _FIRST
) -> ArchivedSegment | None:
    """The first segment that ends after ``after`` with a record of this time or later."""
    return next((one for one in segments if one.max_timestamp >= timestamp and one.end_offset > after), None)


def _memory_bytes(run: Run) -> int:
    return len(run.data) + _RUN_OVERHEAD_BYTES
