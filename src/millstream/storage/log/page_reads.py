"""Reads of segments that are in the page cache, by the shard itself: no message, no second turn, no look at each batch.

What is read are *runs*: the whole batches between two entries of a segment's index, whose CRC-32C the index has
(``segments.run_sums``). The shard asks the worker for the runs around an offset once, keeps them (``_WINDOWS_MAX``),
and reads straight into the memory that is sent. Every byte of an answer lay in a run whose checksum matched there.

Anything unusual is left to the worker, which looks at each batch, knows what is wrong and says where: bytes that are
not in the page cache, a run whose checksum is unknown or does not match, a file that is short or cannot be read, runs
larger than ``BLOCK_BYTES``, what follows the last index entry of a segment. ``read`` is None then; the caller asks the
worker.

The runs of a file are forgotten when it is cut or removed (``forget``), and do not count if the log's end was cut after
they were asked for. While batches are being appended at most ``_ROOM_BUSY`` bytes are read in a turn, so that a reader
of old data does not delay those who write.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.format.index import NO_SUM
from millstream.format.segment import WalkEnd, parse_batch
from millstream.iobuf import IoBuf
from millstream.iobuf.arena import ArenaFull
from millstream.iobuf.sizes import BLOCK_BYTES, MAX_FRAGMENT_BYTES
from millstream.model.quantities import FilePosition
from millstream.storage.disk import FileCache
from millstream.storage.messages.commands import FindRuns, RunsFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Arena, Fragment
    from millstream.model.quantities import Offset
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import WorkerLink
    from millstream.telemetry.metrics import StatsSlab

_WINDOWS_MAX: Final = 128
"""Of 24 KiB at most: runs of 8 GiB with the default distance of index entries."""

_FILES_MAX: Final = 64
_ROOM_BUSY: Final = 256 * 1024
_ROOM_IDLE: Final = 8 * 1024 * 1024
_BUSY_US: Final = 20_000
"""So long after an append it counts as busy."""

_ASK_AGAIN_BYTES: Final = 256 * 1024
"""So much must have been written to a segment before runs are asked for that were not known."""


class _Runs:
    """Some runs of one segment, which follow each other."""

    __slots__ = ("generation", "offsets", "positions", "sums")

    def __init__(self, data: bytes, generation: int) -> None:
        size = len(data) // 3
        view = memoryview(data)
        self.generation = generation
        """Of the log's end when they were asked for."""
        self.offsets = view[:size].cast("I")
        """From the segment's base offset; one more than there are runs, as with ``positions``."""
        self.positions = view[size : 2 * size].cast("I")
        self.sums = view[2 * size :].cast("I")
        """At each mark the sum of the run that ends there."""


class RunTables:
    """The known runs of one shard's segments."""

    def __init__(self, worker: WorkerLink) -> None:
        self._worker = worker
        self._windows: OrderedDict[tuple[str, int], _Runs] = OrderedDict()  # (path, first offset)
        self._unknown: dict[str, tuple[int, int]] = {}
        """By path: no runs are known from this offset (from the base offset) on, until the segment has so many bytes.
        """

        self.requested: set[str] = set()
        """Files whose runs the worker looks up."""
        self.stopped = False

    def forget(self, path: str) -> set[str]:
        """Forget the runs of a file, or of those in a directory. Returns the files."""
        inside = path + "/"
        paths = {path} | {one for one, _ in self._windows if one.startswith(inside)}
        for key in [key for key in self._windows if key[0] in paths]:
            del self._windows[key]
        for one in paths:
            self._unknown.pop(one, None)
        return paths

    def find(self, log: OpenLog, segment: Segment, offset: Offset, written: FilePosition) -> _Runs | None:
        """The known runs around an offset of a segment with so many bytes; without them the worker is asked, for the
        next time.
        """
        path, relative, generation = segment.path, offset - segment.base_offset, log.ends.generation
        for key, runs in reversed(self._windows.items()):
            if key[0] == path and runs.offsets[0] <= relative < runs.offsets[-1]:
                if runs.generation != generation:
                    self.forget(path)
                    break
                self._windows.move_to_end(key)
                return runs
        if path not in self.requested and not self.stopped:
            from_offset, again = self._unknown.get(path, (0, 0))
            if relative < from_offset or written >= again:
                self._ask(log, segment, offset, written)
        return None

    def _ask(self, log: OpenLog, segment: Segment, offset: Offset, written: FilePosition) -> None:
        path, generation, worker = segment.path, log.ends.generation, self._worker
        self.requested.add(path)

        def found(reply: RunsFound) -> None:
            self.requested.discard(path)
            if reply.runs and not log.closed and not segment.dead:
                runs = _Runs(reply.runs, generation)
                self._windows[path, runs.offsets[0]] = runs
                if len(self._windows) > _WINDOWS_MAX:
                    self._windows.popitem(last=False)
                return
            if len(self._unknown) > _WINDOWS_MAX:
                self._unknown.clear()
            from_offset = min(offset - segment.base_offset, self._unknown.get(path, (offset, 0))[0])
            self._unknown[path] = from_offset, written + (1 if segment.sealed else _ASK_AGAIN_BYTES)

        def failed(_: Exception) -> None:
            self.requested.discard(path)

        worker.ask(FindRuns(worker.next_id(), path, segment.base_offset, offset), RunsFound, found, failed)


class TurnShare:
    """How many bytes of segments may be read in a turn."""

    def __init__(self, reactor: Reactor, appends: Callable[[], int]) -> None:
        """``appends`` rises with what is appended."""
        self._reactor = reactor
        self._appends = appends
        self._appended = -1
        self._busy_until_us = 0
        self.bytes = -1
        """What is left of it in this turn; -1 before the first read."""

    def left(self) -> int:
        """Bytes that may still be read in this turn."""
        if self.bytes < 0:
            now_us, appended = self._reactor.now_us(), self._appends()
            if appended != self._appended:
                self._appended = appended
                self._busy_until_us = now_us + _BUSY_US
            self.bytes = _ROOM_BUSY if now_us < self._busy_until_us else _ROOM_IDLE
            self._reactor.end_of_turn(self._turn_ended)
        return self.bytes

    def take(self, size_bytes: int) -> None:
        """So many were read."""
        self.bytes = max(0, self.bytes - size_bytes)

    def _turn_ended(self) -> None:
        self.bytes = -1


class PageReads:
    """Those of one shard's logs."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        worker: WorkerLink,
        disk: Disk,
        appends: Callable[[], int],
    ) -> None:
        """``appends`` rises with what is appended."""
        self._arena = arena
        self._files = FileCache(disk, _FILES_MAX)
        self.tables = RunTables(worker)
        self.share = TurnShare(reactor, appends)
        self._off = False
        self._reads = stats.counter("page_reads")
        self._bytes = stats.counter("read_bytes", source="segment")

    def stop(self) -> None:
        """Ask for nothing more: the worker is to end."""
        self.tables.stopped = True
        self._files.close()

    def forget(self, path: str) -> None:
        """A segment file, or a directory of them, changes other than by growing, or goes."""
        for one in self.tables.forget(path):
            self._files.forget(one)

    def read(
        self, log: OpenLog, offset: Offset, end_offset: Offset, max_bytes: int, *, minimum_one: bool
    ) -> IoBuf | None:
        """Whole batches from the one that holds ``offset``, below ``end_offset``; None if the worker has to read them.

        At most ``max_bytes``, but with ``minimum_one`` at least one batch. The caller releases it.
        """
        segment = log.files.segments.find(offset)
        if self._off or segment is None or segment.dead or offset < log.start_offset:
            return None
        room = min(max_bytes, self.share.left())
        limit = min(log.ends.written_position, segment.end if segment.sealed else log.refresh().end) - segment.stream
        runs = self.tables.find(log, segment, offset, FilePosition(limit))
        if runs is None or room <= 0:
            return None
        return self._read(segment, runs, (offset, end_offset), (max_bytes, room), limit, minimum_one)

    def _read(
        self,
        segment: Segment,
        runs: _Runs,
        bounds: tuple[Offset, Offset],
        sizes: tuple[int, int],
        limit: int,
        minimum_one: bool,
    ) -> IoBuf | None:
        base = segment.base_offset
        start, stop = bounds[0] - base, bounds[1] - base
        max_bytes, room = sizes
        offsets, positions, sums = runs.offsets, runs.positions, runs.sums
        first = bisect_right(offsets, start) - 1
        begin = positions[first]
        last = bisect_right(positions, min(begin + min(room, BLOCK_BYTES), limit)) - 1
        while last > first and offsets[last] > stop:
            last -= 1
        whole = last > first
        if not whole:  # not even one run is asked for as a whole: what is of it is found by its batches' headers
            last = first + 1
        end = positions[last]
        if end > limit or end - begin > BLOCK_BYTES or sums[first + 1] == NO_SUM:
            return None
        memory = self._memory(end - begin)
        if memory is None:
            return None
        view = memory.view
        sound = first + self._sound(segment.path, view, positions[first : last + 1], sums[first : last + 1])
        if sound == first:
            memory.release()
            return None
        at, size = 0, positions[sound] - begin
        if not whole:
            at, size = _batches(view[:size], bounds, max_bytes, minimum_one=minimum_one)
        elif offsets[first] != start:
            first_run = view[: positions[first + 1] - begin]
            at, looked_at = _batches(first_run, bounds, max_bytes, minimum_one=True)
            if at < 0 and looked_at == len(first_run) < size:
                at = looked_at  # compaction has removed the rest of this run: the next one follows
        if at < 0 or (at == size and segment.generation):
            memory.release()
            return None
        self.share.take(size - at)
        self._reads.inc()
        self._bytes.inc(size - at)
        chain = IoBuf()
        chain.append(memory, at, size)
        return chain

    def _memory(self, size: int) -> Fragment | None:
        if size > MAX_FRAGMENT_BYTES:
            return self._arena.allocate_block()
        try:
            return self._arena.allocate(size)
        except ArenaFull:
            return None

    def _sound(self, path: str, view: memoryview, positions: memoryview, sums: memoryview) -> int:
        """Read runs to the front of the view; how many of them, from the first on, are there and match."""
        begin = positions[0]
        try:
            file = self._files.acquire(path)
            try:
                got = file.preadv_cached([view[: positions[-1] - begin]], FilePosition(begin))
            finally:
                self._files.release(file)
        except OSError as error:
            self._off = error.errno == errno.EOPNOTSUPP
            return 0
        at = 0
        for number in range(1, len(positions)):
            until, expected = positions[number] - begin, sums[number]
            if until > got or expected == NO_SUM or crc32c(view[at:until]) != expected:
                return number - 1
            at = until
        return len(positions) - 1


def _batches(view: memoryview, bounds: tuple[Offset, Offset], max_bytes: int, *, minimum_one: bool) -> tuple[int, int]:
    """Where the batches that are asked for start and end in a run that matches; (-1, -1) if the worker is to look,
    (-1, length) if all of them end before the offset.
    """
    start, stop = bounds
    at, begin = 0, -1
    while at < len(view):
        try:
            batch = parse_batch(view, at, at, len(view))
        except WalkEnd:
            return -1, -1
        if batch.last_offset >= start:
            if begin < 0:
                begin = at
            if batch.last_offset >= stop or (at + batch.size - begin > max_bytes and (at > begin or not minimum_one)):
                break
        at += batch.size
    return begin, at
