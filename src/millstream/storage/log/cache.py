"""The log cache: the newest bytes of every log, in ranges of arena memory, from which the WAL, segments and consumers
are fed.

::

    log    │ range │ range │ range (open) │       a stream of bytes, whole batches; each range in one segment
             └ shared by sends, by the writer and by the worker; dropped oldest first once it is in the segment

Appending copies a batch once, to the end of the log's open range; a batch that does not fit continues in the next one,
except small ones, which start there. A log's ranges grow with its traffic (``LADDER``): ten thousand quiet logs hold a
few KiB each, a busy one is sent in 128 KiB pieces, and one that has ``BLOCKS_FROM`` here has ranges of a MiB, while
there are any: what a range costs is paid for eight batches of 128 KiB then. The longer the stream that is here, the
larger also what is written at once (``write_behind``), so what is open or waits to be written stays below a quarter of
the budget each. Cold reads have memory of their own, so reading history evicts nothing here.

A range may go when everything in it is durable and in the segment, to the end of the batch that continues in the next
range: what is not found here is read from the segment, in whole batches. ``take`` evicts the oldest such ranges of the
whole shard; logs with ranges after the newest ``_UNWRITTEN_PART`` of the budget are asked to ``write_out``, so that
quiet logs do not fill the cache with unwritten bytes. When nothing can go, ``ArenaFull``: the append is
refused before anything happened. A range that is being sent stays readable: sends hold references of their own. Shard:
the owner's reactor only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from millstream.format.index import OFFSETS_PER_SEGMENT
from millstream.format.segment import BATCH_SPAN
from millstream.iobuf import BLOCK_BYTES, MAX_FRAGMENT_BYTES, ArenaFull, IoBuf, MemoryClass
from millstream.model.quantities import BytePosition
from millstream.storage.disk import DIRECT_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Arena, Fragment, Piece
    from millstream.model.quantities import Offset
    from millstream.storage.log.segment_list import Segment
    from millstream.telemetry.metrics import StatsSlab

LADDER: Final = (2592, 8748, 29525, MAX_FRAGMENT_BYTES)
"""Sizes of successive ranges of a log: those of the allocation table that divide a slab with little rest."""

BLOCKS_FROM: Final = 4 * BLOCK_BYTES
"""A log with so long a stream in the cache has ranges of ``BLOCK_BYTES``."""

SPLIT_MIN: Final = 4096
"""Smaller batches stay in one piece; larger ones fill a range to its end, but for what has no room for a header."""

PLACE_BYTES: Final = 4096
"""A range remembers the place of one batch per so many bytes; reading walks headers from there."""

_UNWRITTEN_PART: Final = 0.5
_EVICT_ATTEMPTS: Final = 64

_span = BATCH_SPAN.unpack_from


def skew_of(capacity: int, segment_position: int) -> int:
    """Bytes left unused at the front of a fragment, so that blocks of the segment file are blocks in memory."""
    return segment_position % DIRECT_BLOCK_BYTES if capacity >= MAX_FRAGMENT_BYTES else 0


class CachedLog(Protocol):
    """What the cache asks of the log that a range belongs to."""

    @property
    def written_position(self) -> BytePosition:
        """End of what is in the segments' page cache."""
        ...

    def release_oldest(self, one: Range) -> bool:
        """Give up a range, unless an older one is still there."""
        ...

    def write_out(self) -> None:
        """Write what is durable to the segment."""
        ...

    def guard(self, verb: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a verb of the log behind its boundary."""
        ...


class Range:
    """One fragment's worth of a log's stream.

    ``base_offset`` is the base offset of the first batch that starts in it (or would start there). ``used`` bytes are
    filled, at most ``limit``. Bytes are never changed once they are in, except by a cut of the log's end.
    """

    __slots__ = (
        "arena_offset",
        "base_offset",
        "fragment",
        "limit",
        "log",
        "batch_offsets",
        "next_batch_offset",
        "offset_max",
        "positions",
        "segment",
        "segment_position",
        "stream",
        "tail_end",
        "used",
        "view",
    )

    def __init__(
        self,
        log: CachedLog,
        segment: Segment,
        fragment: Fragment,
        base_offset: Offset,
        stream: BytePosition,
        segment_position: int,
        limit: int,
    ) -> None:
        self.log = log
        self.segment = segment
        self.fragment: Fragment | None = fragment
        skew = skew_of(fragment.capacity, segment_position)
        self.view = fragment.view[skew:]
        self.arena_offset = fragment.offset + skew
        """Where ``view`` starts."""

        self.base_offset = base_offset
        self.offset_max = segment.base_offset + OFFSETS_PER_SEGMENT
        """The last offset that may be in its segment."""

        self.stream: BytePosition = stream
        self.segment_position = segment_position
        self.limit = limit
        self.used = 0
        self.batch_offsets = array("q")  # base offsets of batches that start here …
        self.positions = array("l")  # … and where
        self.next_batch_offset = 0
        self.tail_end = 0
        """Stream position after the batch that continues in the next range, if one does."""

    @property
    def end(self) -> BytePosition:
        """Stream position after the last byte."""
        return BytePosition(self.stream + self.used)

    def note(self, start: int, base_offset: Offset) -> None:
        """Remember that a batch starts at byte ``start``."""
        self.batch_offsets.append(base_offset)
        self.positions.append(start)
        self.next_batch_offset = start + PLACE_BYTES

    def find(self, offset: Offset) -> int:
        """Where the batch with this offset starts; it must start in this range."""
        place = bisect_right(self.batch_offsets, offset) - 1
        position = self.positions[place]
        view = self.view
        while True:
            base, length, delta = _span(view, position)
            if offset <= base + delta:
                return position
            position += length + 12

    def cut(self, used_bytes: int) -> None:
        """Let the range end after ``used_bytes``, where a batch ends, and take nothing more. The bytes after that stay
        in place, for the writer and for sends that hold them.
        """
        self.used = self.limit = used_bytes
        self.tail_end = 0
        while self.positions and self.positions[-1] >= used_bytes:
            self.positions.pop()
            self.batch_offsets.pop()

    def floor(self, limit: int) -> int:
        """The last batch start at or before byte ``limit``; -1 if no batch starts that early."""
        place = bisect_right(self.positions, limit) - 1
        if place < 0:
            return -1
        position = self.positions[place]
        view = self.view
        while True:
            following = position + _span(view, position)[1] + 12
            if following > limit or following >= self.used:
                return following if following <= limit else position
            position = following


class NoRange(Range):
    """Stands for the open range of a log that has none: takes nothing, and knows where the next one starts."""

    __slots__ = ()

    def __init__(self, stream: BytePosition) -> None:
        self.stream = stream
        self.used = 0
        self.limit = -1
        self.fragment = None


_NO_READ: Final[tuple[int, int, int, tuple[tuple[Piece, int, int], ...]]] = (-1, -1, 0, ())
"""A read of ``LogCache``: offset, end as a stream position, bytes, parts."""


class LogCache:
    """The ranges of one log, oldest first.

    The last read is remembered: ten groups at the tail of a log read the same bytes one after the other. What is
    remembered holds no reference to memory, so it is forgotten when any range leaves the cache or is cut.
    """

    __slots__ = ("_bases", "_first", "_last_read", "_ranges", "level", "none", "open")

    def __init__(self, stream: BytePosition) -> None:
        """``stream`` is the position at which the first range starts."""
        self._ranges: list[Range] = []
        self._bases: list[int] = []
        self._first = 0  # those before were dropped
        self._last_read = _NO_READ
        self.none = NoRange(stream)
        """Stands for the open range while no range is open; its ``stream`` is where the next range starts."""
        self.open: Range = self.none
        """The range that the next batch goes to: the newest one, or ``none``."""
        self.level = 0
        """Place in ``LADDER`` of the open range's size."""

    @property
    def next_position(self) -> BytePosition:
        """Stream position at which the next batch starts."""
        one = self.open
        return BytePosition(one.stream + one.used)

    def close_open(self) -> None:
        """Append no more to the open range; the next batch starts another."""
        self.none.stream = self.next_position
        self.open.limit = self.open.used
        self.open = self.none
        self.none.limit = -1

    def add(self, one: Range) -> None:
        self._ranges.append(one)
        self._bases.append(one.base_offset)

    @property
    def oldest(self) -> Range | None:
        return self._ranges[self._first] if self._first < len(self._ranges) else None

    @property
    def newest(self) -> Range | None:
        return self._ranges[-1] if self._first < len(self._ranges) else None

    @property
    def span(self) -> int:
        """Bytes of the log's stream that are here."""
        return self._ranges[-1].end - self._ranges[self._first].stream if self._first < len(self._ranges) else 0

    def drop_oldest(self) -> None:
        """Forget the oldest range; its memory is the caller's."""
        self._last_read = _NO_READ
        self._first += 1
        if self._first > 64 and self._first * 2 > len(self._ranges):
            del self._ranges[: self._first]
            del self._bases[: self._first]
            self._first = 0

    def cut(self, position: BytePosition) -> list[Range]:
        """Forget what follows stream ``position``, where a batch ends. Returns the ranges that left, newest first;
        their memory is the caller's.
        """
        self._last_read = _NO_READ
        self.close_open()
        dropped: list[Range] = []
        while (newest := self.newest) is not None and newest.stream >= position:
            self._bases.pop()
            dropped.append(self._ranges.pop())
        if newest is not None and newest.end > position:
            newest.cut(position - newest.stream)
        self.none.stream = position
        return dropped

    def live(self) -> list[Range]:
        """All ranges, oldest first."""
        return self._ranges[self._first :]

    def clear(self) -> list[Range]:
        """Forget all ranges; their memory is the caller's."""
        self._last_read = _NO_READ
        ranges = self.live()
        self._ranges.clear()
        self._bases.clear()
        self._first = 0
        return ranges

    @property
    def bytes(self) -> int:
        return sum(one.used for one in self.live())

    def read(self, offset: Offset, end: int, max_bytes: int, *, minimum_one: bool) -> IoBuf | None:
        """Whole batches from the one with ``offset`` up to stream position ``end``; None if that batch is not here.

        At most ``max_bytes``, but with ``minimum_one`` always the first batch.
        """
        last_offset, last_end, size, parts = self._last_read
        if offset == last_offset and end == last_end and size <= max_bytes:
            return IoBuf.sharing(parts, size)
        place = bisect_right(self._bases, offset, self._first) - 1
        if place < self._first:
            return None
        ranges = self._ranges
        one = ranges[place]
        at = one.find(offset)
        start = one.stream + at
        found = IoBuf()
        whole = end - start <= max_bytes
        if not whole:
            end = self._whole(place, start, start + max_bytes, minimum_one=minimum_one)
        while start < end:
            one = ranges[place]
            upto = min(one.used, end - one.stream)
            fragment = one.fragment
            if upto > at and fragment is not None:
                skew = one.arena_offset - fragment.offset
                found.append(fragment.share(), at + skew, upto + skew)
            start = one.stream + upto
            place += 1
            at = 0
        if whole:
            self._last_read = (offset, end, len(found), tuple(found.parts))
        return found

    def _whole(self, place: int, start: int, limit: int, *, minimum_one: bool) -> int:
        """The last stream position ≤ ``limit`` at which a batch ends, for a read from ``start`` on."""
        ranges = self._ranges
        last = place
        while last + 1 < len(ranges) and ranges[last + 1].stream <= limit:
            last += 1
        while last >= place:
            one = ranges[last]
            floor = one.floor(limit - one.stream)
            if floor >= 0 and one.stream + floor > start:
                return one.stream + floor
            last -= 1
        if not minimum_one:
            return start
        first = ranges[place]
        return start + _span(first.view, start - first.stream)[1] + 12

    def position_of(self, offset: Offset) -> BytePosition | None:
        """Stream position at which the batch with ``offset`` starts; None if it is not here."""
        place = bisect_right(self._bases, offset, self._first) - 1
        if place < self._first:
            return None
        one = self._ranges[place]
        return BytePosition(one.stream + one.find(offset))

    def offset_at(self, position: BytePosition) -> Offset:
        """Base offset of the batch that starts at stream ``position``, which is here."""
        one = self._ranges[bisect_right(self._ranges, position, self._first, key=_stream) - 1]
        return _span(one.view, position - one.stream)[0]


def _stream(one: Range) -> BytePosition:
    return one.stream


class CacheMemory:
    """The cache's share of the arena, over all logs of a shard."""

    def __init__(self, arena: Arena, stats: StatsSlab) -> None:
        self.arena = arena
        self._order: deque[Range] = deque()  # all ranges, oldest first
        self._unwritten: deque[Range] = deque()  # the same, without those that ``_write_oldest`` has handled
        self._unwritten_bytes = 0
        self._unwritten_max = int(arena.limit_bytes(MemoryClass.CACHE) * _UNWRITTEN_PART)
        self._live = 0
        self._aside: list[Fragment] = []  # what ``take`` falls back on
        self._evicted = stats.counter("cache_evicted_bytes")
        self._held = stats.gauge("cache_bytes")
        arena.on_pressure = self._on_pressure

    def take(self, size: int) -> Fragment:
        """Memory for a range of ``size`` bytes or more, evicting what may go.

        Raises:
            ArenaFull: nothing may go now, and nothing is set aside.
        """
        try:
            return self._take(size)
        except ArenaFull:
            if self._aside:
                return self._aside.pop()
            raise

    def set_aside(self, count: int) -> None:
        """Keep memory for ``count`` ranges of the largest size, which ``take`` gives out when it finds none, until
        ``put_back``.

        Raises:
            ArenaFull: there is not as much; nothing is set aside.
        """
        try:
            for _ in range(count):
                self._aside.append(self._take(MAX_FRAGMENT_BYTES))
        except ArenaFull:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Free what was set aside and not given out."""
        while self._aside:
            self.free(self._aside.pop())

    def _take(self, size_bytes: int) -> Fragment:
        arena = self.arena
        if not self._reserve(size_bytes):
            raise ArenaFull(f"the log cache of shard {arena.owner_shard} is full of bytes that are not on disk yet")
        try:
            fragment = arena.allocate(size_bytes)
        except ArenaFull:
            arena.unreserve(MemoryClass.CACHE, size_bytes)
            raise
        if fragment.capacity != size_bytes:
            raise AssertionError(f"{size_bytes} is no size of the allocation table")
        self._live += 1
        return fragment

    def take_block(self) -> Fragment | None:
        """Memory for a range of ``BLOCK_BYTES``, evicting what may go; None when there is no such piece now."""
        if not self._reserve(BLOCK_BYTES):
            return None
        fragment = self.arena.allocate_block()
        if fragment is None:
            self.arena.unreserve(MemoryClass.CACHE, BLOCK_BYTES)
            return None
        self._live += 1
        return fragment

    def _reserve(self, size: int) -> bool:
        reserve = self.arena.reserve
        return reserve(MemoryClass.CACHE, size) or (self._evict(size) and reserve(MemoryClass.CACHE, size))

    def enter(self, one: Range) -> None:
        """A new range of a log."""
        self._order.append(one)
        self._unwritten.append(one)
        self._unwritten_bytes += len(one.view)
        if self._unwritten_bytes > self._unwritten_max:
            self._write_oldest()
        if len(self._order) > 2 * self._live + 1024:
            # Logs that were deleted took their ranges out of the middle.
            self._order = deque(one for one in self._order if one.fragment is not None)
            self._unwritten = deque(one for one in self._unwritten if one.fragment is not None)
            self._unwritten_bytes = sum(len(one.view) for one in self._unwritten)

    def give_back(self, one: Range) -> None:
        """The range is out of its log: free its memory. Sends that still hold it keep it readable."""
        fragment = one.fragment
        if fragment is not None:
            one.fragment = None
            self.free(fragment)

    def free(self, fragment: Fragment) -> None:
        """Free memory that ``take`` gave, and that no range has."""
        self._live -= 1
        self.arena.unreserve(MemoryClass.CACHE, fragment.capacity)
        fragment.release()

    def show(self) -> None:
        """Bring the gauge up to date."""
        self._held.set(self.arena.reserved_bytes(MemoryClass.CACHE))

    def _write_oldest(self) -> None:
        """Have the oldest ranges that were not requested yet written to their segments."""
        unwritten = self._unwritten
        while self._unwritten_bytes > self._unwritten_max:
            one = unwritten.popleft()
            self._unwritten_bytes -= len(one.view)
            if one.fragment is not None and one.end > one.log.written_position:
                one.log.guard("write behind", one.log.write_out)

    def _evict(self, size: int) -> bool:
        """Drop the oldest ranges that may go until ``size`` bytes are free; False if that many cannot go."""
        order = self._order
        freed = 0
        for _ in range(min(_EVICT_ATTEMPTS + size // LADDER[0], len(order))):
            one = order.popleft()
            if one.fragment is None:
                continue
            log = one.log
            if max(one.end, one.tail_end) > log.written_position or not log.release_oldest(one):
                log.guard("write behind", log.write_out)
                order.append(one)
                continue
            freed += len(one.view)
            self._evicted.inc(one.used)
            self.give_back(one)
            if freed >= size:
                return True
        return False

    def _on_pressure(self, size: int) -> None:
        """The arena has no slab left for an allocation."""
        self._evict(max(size, MAX_FRAGMENT_BYTES))
