"""A place for a batch that does not simply fit: another range, tick, segment or leader epoch, a batch in pieces.

One small batch in a hundred comes here, and every batch that is larger than what is left of the log's open range:
that one is laid over as many ranges as it needs. Everything that can be refused is refused here, before anything of
the log has changed; ``Log.write`` then fills the pieces.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import Rejected, Unavailable
from millstream.format.index import OFFSETS_PER_SEGMENT
from millstream.format.segment import BATCH_HEADER_BYTES
from millstream.iobuf import MAX_FRAGMENT_BYTES, ArenaFull, Fragment
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition, Offset
from millstream.storage.log.cache import BLOCKS_FROM, LADDER, SPLIT_MIN, Range, skew_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.model.replication import Term
    from millstream.storage.log.open_log import OpenLog

HEAD: Final = struct.Struct(">I6xq")
"""CRC and first timestamp of a batch, from byte ``HEAD_AT`` on."""
HEAD_AT: Final = 17


class Piece(NamedTuple):
    """A part of a range that a batch, or a part of it, is to fill."""

    range: Range
    start: int
    """Byte of the range, inclusive."""
    end: int
    """Byte of the range, exclusive."""


def place(log: OpenLog, size: int, last_offset: Offset, leader_epoch: Term) -> list[Piece]:
    """What ``Log.make_room`` does for a batch of ``size`` bytes that does not simply fit."""
    wal = log.host.wal
    if log.closed:
        raise Unavailable("the log is closed", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if size > wal.record_bytes_max:
        raise Rejected(
            f"a batch of {size} bytes, a file of the write-ahead log takes {wal.record_bytes_max}",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    if leader_epoch < log.raft.epoch or log.ends.cutting:
        raise AssertionError(f"{log.name}: epoch {leader_epoch} after {log.raft.epoch}, cutting: {log.ends.cutting}")
    wal.make_room(size, size // MAX_FRAGMENT_BYTES + 2)
    return _place(log, size, log.next_offset, last_offset)


def fill(views: Sequence[memoryview], pieces: list[Piece], spans: list[int]) -> None:
    """Fill the pieces with the views' bytes, which have the same total; ``spans`` gets where they are in the arena."""
    _copy(views, pieces)
    for part, begin, end in pieces:
        spans += (part.arena_offset + begin, part.arena_offset + end)
        part.used = end


def _place(log: OpenLog, size: int, base_offset: int, last_offset: int) -> list[Piece]:
    """Room for a batch in the open range or in new ones. A new segment is started where one is due."""
    active = log.files.segments.active
    filled = log.next_position - active.stream
    if filled and (filled + size > log.sizes.segment_bytes or last_offset - active.base_offset > OFFSETS_PER_SEGMENT):
        log.roll()
    one = log.cache.open
    room = one.limit - one.used
    if room >= size:
        return [Piece(one, one.used, one.used + size)]
    split = room if room >= BATCH_HEADER_BYTES and size > SPLIT_MIN else 0
    level = log.cache.level if one is log.cache.none else min(log.cache.level + 1, len(LADDER) - 1)
    first_base = base_offset if not split else last_offset + 1
    if split:
        one.tail_end = one.end + size  # or its memory could be taken from it for what follows
    try:
        ranges = _new_ranges(log, level, size - split, first_base, last_offset + 1, split)
    except ArenaFull:
        one.tail_end = 0
        raise
    pieces = [Piece(one, one.used, one.used + split)] if split else []
    rest = size - split
    for fresh in ranges:
        taken = min(rest, fresh.limit)
        if taken < rest:
            fresh.tail_end = fresh.stream + rest
        pieces.append(Piece(fresh, 0, taken))
        rest -= taken
        log.host.memory.enter(fresh)
        log.behind.add(fresh)
    log.cache.level = level
    log.cache.open = ranges[-1]
    log.behind.filled(ranges[-1].stream)
    return pieces


def _new_ranges(log: OpenLog, level: int, size: int, first_base: int, following_base: int, split: int) -> list[Range]:
    """Ranges for ``size`` more bytes, in the log's cache; all of them or, if anything raises, none."""
    memory = log.host.memory
    segment = log.files.segments.active
    stream = log.next_position + split
    segment_end = segment.stream + log.sizes.segment_bytes
    ranges: list[Range] = []
    base = first_base
    fragment: Fragment | None = None
    try:
        while size > 0:
            fragment = _memory_for(log, level, size)
            position = stream - segment.stream
            room = fragment.capacity - skew_of(fragment.capacity, position)
            limit = max(min(size, room), min(room, segment_end - stream))
            ranges.append(Range(log, segment, fragment, Offset(base), BytePosition(stream), position, limit))
            stream += min(size, limit)
            size -= min(size, limit)
            base = following_base
            fragment = None
        for one in ranges:
            log.cache.add(one)
        return ranges
    except BaseException:
        for one in ranges:
            if one.fragment is fragment:
                fragment = None
            memory.give_back(one)
        if fragment is not None:
            memory.free(fragment)
        raise


def _memory_for(log: OpenLog, level: int, size: int) -> Fragment:
    """Memory for a range of the log that takes ``size`` more bytes or a part of them; ArenaFull without any."""
    memory = log.host.memory
    if level == len(LADDER) - 1 and log.cache.span >= BLOCKS_FROM:
        block = memory.take_block()
        if block is not None:
            return block
    wanted = MAX_FRAGMENT_BYTES
    if size < MAX_FRAGMENT_BYTES:
        wanted = next(step for step in LADDER[level:] if step >= size)
    return memory.take(wanted)


def _copy(views: Sequence[memoryview], pieces: list[Piece]) -> None:
    """Fill the pieces with the views' bytes; both have the same total."""
    place = 0
    target, at, end = pieces[0]
    for view in views:
        taken = 0
        size = len(view)
        while taken < size:
            if at == end:
                place += 1
                target, at, end = pieces[place]
            count = min(size - taken, end - at)
            target.view[at : at + count] = view[taken : taken + count]
            taken += count
            at += count
