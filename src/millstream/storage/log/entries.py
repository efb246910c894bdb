"""Entries that a leader sends to this replica: taken apart and checked before anything of the log changes.

A leader sends a stretch of its log: record batches as they stand there, and among them the control entries, which take
a Raft position each and no Kafka offset. ``parse_entries`` finds the position of each and holds it against what the
leader says: the terms, the offsets, the end, the checksums. ``check_room`` tells whether the log has memory and
write-ahead log for all of them; then ``Log.append_entries`` takes all of them in the same step. So an append is made as
a whole or not at all.

Bad input (bytes that are no batches, a batch in the wrong place or of another term) is ``Rejected``, and nothing has
happened. Overload is ``ArenaFull``; the leader sends again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import Corruption, Rejected
from millstream.format.index import OFFSETS_PER_SEGMENT
from millstream.format.segment import BATCH_HEADER_BYTES, WalkEnd, parse_batch
from millstream.iobuf import MAX_FRAGMENT_BYTES
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition
from millstream.model.replication import RaftPosition
from millstream.storage.disk import DIRECT_BLOCK_BYTES
from millstream.storage.log.cache import SPLIT_MIN
from millstream.storage.log.cutting import CONTROL_BYTES_MAX
from millstream.storage.log.opening import position_of
from millstream.storage.segments.reads import Pieces
from millstream.storage.wal.wal import WalFull
from millstream.wire.records import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.iobuf import Fragment
    from millstream.model.quantities import Offset, TimestampMs
    from millstream.model.replication import Term, TermRun
    from millstream.storage.log.open_log import OpenLog

_RANGE_BYTES: Final = MAX_FRAGMENT_BYTES - DIRECT_BLOCK_BYTES
"""What a range of the largest size takes at least."""

_NOTES: Final = ((0, 0),) * 2
"""Records of the write-ahead log that may come between the check and the append: a vote, a cut."""


class EncodedControl(NamedTuple):
    """A control entry in its place, as the replication layer encodes it."""

    position: RaftPosition
    """Position at which the entry starts; it ends at the next one."""
    term: Term
    payload: bytes


class SentBatch(NamedTuple):
    """A record batch in its place."""

    position: RaftPosition
    """Where its first record stands."""
    base_offset: Offset
    last_offset: Offset
    """Inclusive."""
    term: Term
    max_timestamp: TimestampMs
    size_bytes: int
    views: Sequence[memoryview]
    """Its bytes, lent."""


class SentEntries:
    """A stretch of a leader's log, whole batches and control entries in the order of their positions.

    The bytes are lent until ``copied`` gives a stretch that owns them.
    """

    __slots__ = ("end", "entries", "start")

    def __init__(self, start: RaftPosition, end: RaftPosition, entries: list[SentBatch | EncodedControl]) -> None:
        self.start = start
        self.end = end
        """Exclusive."""
        self.entries = entries
        """Each starts where the previous one ends."""

    def from_position(self, position: RaftPosition) -> SentEntries:
        """The rest from ``position`` on, which is the end of an entry or the start."""
        if position == self.start:
            return self
        return SentEntries(position, self.end, [one for one in self.entries if one.position >= position])

    def up_to(self, position: RaftPosition) -> SentEntries:
        """Those before ``position``, which is the end of an entry."""
        return SentEntries(self.start, position, [one for one in self.entries if one.position < position])

    def copied(self) -> SentEntries:
        """The same with bytes of its own."""
        entries = [
            one._replace(views=(memoryview(b"".join(one.views)),)) if isinstance(one, SentBatch) else one
            for one in self.entries
        ]
        return SentEntries(self.start, self.end, entries)


def parse_entries(
    start: RaftPosition, runs: Sequence[TermRun], controls: Sequence[EncodedControl], views: Sequence[memoryview]
) -> SentEntries:
    """The entries from ``start`` on.

    Args:
        start: Raft position of the first entry.
        runs: the terms of the entries, in order; the last run ends where the entries do.
        controls: the control entries among them, in order.
        views: the bytes of the record batches, in order and without anything between; lent.

    Raises:
        Rejected: they do not add up, or a batch does not match its checksum.
    """
    end = runs[-1].end_position if runs else start
    pieces = Pieces(list(views))
    limit = sum(map(len, views))
    entries: list[SentBatch | EncodedControl] = []
    position = int(start)
    at = 0
    shift: int | None = None  # Raft position minus offset
    control = 0
    for run in runs:
        while position < run.end_position:
            if control < len(controls) and controls[control].position == position:
                one = controls[control]
                if one.term != run.term:
                    raise _rejected(f"a control entry of term {one.term} in a run of term {run.term}")
                if len(one.payload) > CONTROL_BYTES_MAX:
                    raise _rejected(f"a control entry of {len(one.payload)} bytes")
                entries.append(one)
                control += 1
                position += 1
                shift = None if shift is None else shift + 1
                continue
            batch = _batch_at(pieces, FilePosition(at), limit, RaftPosition(position))
            shift = position - batch.base_offset if shift is None else shift
            if batch.base_offset + shift != position or batch.term != run.term:
                raise _rejected(
                    f"a batch at offset {batch.base_offset} of term {batch.term}, where offset {position - shift} of"
                    f" term {run.term} follows"
                )
            entries.append(batch)
            at += batch.size_bytes
            position += batch.last_offset - batch.base_offset + 1
        if position != run.end_position:
            raise _rejected(f"an entry up to {position}, its run ends at {run.end_position}")
    if at != limit or control != len(controls):
        raise _rejected(f"more than the entries up to position {end}")
    return SentEntries(start, end, entries)


def _batch_at(pieces: Pieces, at: FilePosition, limit_bytes: int, position: RaftPosition) -> SentBatch:
    try:
        found = parse_batch(pieces.peek(at, BATCH_HEADER_BYTES), 0, at, limit_bytes) if at < limit_bytes else None
    except WalkEnd as end:
        raise _rejected(f"byte {at}: {end.reason}") from end
    if found is None:
        raise _rejected(f"the bytes end before position {position}")
    views = pieces.views(at, found.size)
    if checksum(views) != found.crc:
        raise _rejected(f"the batch at offset {found.base_offset} does not match its checksum")
    return SentBatch(
        position,
        found.base_offset,
        found.last_offset,
        found.leader_epoch,
        found.max_timestamp,
        found.size,
        views,
    )


def _rejected(what: str) -> Rejected:
    return Rejected(f"sent entries: {what}", ErrorCode.CORRUPT_MESSAGE)


def check_place(log: OpenLog, sent: SentEntries, start: RaftPosition) -> None:
    """Whether the entries from ``start`` on, which lies in ``log`` or at its end, continue ``log`` once it is cut
    there.

    Raises:
        Rejected: no entry starts at ``start``, here or in what was sent, or its offset or term is not what follows.
    """
    rest = sent.from_position(start).entries
    if not rest or rest[0].position != start:
        raise _rejected(f"no entry starts at position {start}")
    term = log.raft.term_before(start)
    if rest[0].term < term:
        raise _rejected(f"an entry of term {rest[0].term} after one of term {term}")
    offset = log.raft.controls.offset_at(start)
    for one in rest:
        if isinstance(one, SentBatch):
            if one.base_offset != offset:
                raise _rejected(f"a batch at offset {one.base_offset}, but this log ends at offset {offset}")
            break
    if offset < log.next_offset and not _begins_batch(log, offset):
        raise _rejected(f"position {start} is inside of a batch of this log")


def _begins_batch(log: OpenLog, offset: Offset) -> bool:
    position = log.cache.position_of(offset)
    if position is not None:
        return log.cache.offset_at(position) == offset
    segment = log.files.segments.find(offset)
    if segment is None:
        return False
    try:
        position_of(log.host.disk, segment.path, segment.base_offset, offset)
    except Corruption:
        return False
    return True


def _fit(log: OpenLog, sent: SentEntries) -> bool:
    """Whether the entries are batches that the open range and the open tick take as they are: then there is room. So it
    is for most appends of a leader.
    """
    size, last_offset = 0, -1
    for entry in sent.entries:
        if not isinstance(entry, SentBatch):
            return False
        size += entry.size_bytes
        last_offset = entry.last_offset
    one = log.cache.open
    return (
        one.used + size <= one.limit
        and last_offset <= one.offset_max
        and log.host.wal.takes_small(len(sent.entries) + len(_NOTES), size)
    )


def check_room(log: OpenLog, sent: SentEntries) -> None:
    """What ``Log.check_room`` does."""
    for fragment in take_room(log, sent):
        fragment.release()
    log.host.memory.put_back()


def take_room(log: OpenLog, sent: SentEntries) -> list[Fragment]:
    """Memory for each control entry that has a payload. For the batches, memory is set aside in the log cache until
    ``put_back``, and the write-ahead log has room.

    Raises:
        ArenaFull, Rejected: as ``Log.check_room``; nothing is taken.
    """
    if _fit(log, sent):
        return []
    _check_wal(log, sent)
    fragments: list[Fragment] = []
    try:
        for size in [len(one.payload) for one in sent.entries if isinstance(one, EncodedControl) and one.payload]:
            fragments.append(log.host.arena.allocate(size))  # noqa: PERF401 - those before one that fails are released
        log.host.memory.set_aside(ranges_needed(log, sent))
    except Exception:
        for fragment in fragments:
            fragment.release()
        raise
    return fragments


def _check_wal(log: OpenLog, sent: SentEntries) -> None:
    wal = log.host.wal
    largest = max((one.size_bytes for one in sent.entries if isinstance(one, SentBatch)), default=0)
    if largest > wal.record_bytes_max:
        raise Rejected(
            f"a batch of {largest} bytes was sent, a file of the write-ahead log takes {wal.record_bytes_max}",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    if not wal.takes(_records(sent)):
        raise WalFull("the write-ahead log takes no more until what was appended is on disk")


def _records(sent: SentEntries) -> Iterator[tuple[int, int]]:
    """(Payload bytes, pieces at most) of each record of the write-ahead log."""
    yield from _NOTES
    for one in sent.entries:
        if isinstance(one, SentBatch):
            yield one.size_bytes, one.size_bytes // MAX_FRAGMENT_BYTES + 2
        else:
            yield len(one.payload), 1


def ranges_needed(log: OpenLog, sent: SentEntries) -> int:
    """Ranges of the largest size that are enough for the batches, independent of the sizes that the log would choose; 0
    if its open range takes all of them.
    """
    batches = [one for one in sent.entries if isinstance(one, SentBatch)]
    total = sum(one.size_bytes for one in batches)
    one = log.cache.open
    active = log.files.segments.active
    filled = log.next_position - active.stream
    if (
        one.used + total <= one.limit
        and filled + total <= log.sizes.segment_bytes
        and (not batches or batches[-1].last_offset - active.base_offset <= OFFSETS_PER_SEGMENT)
    ):
        return 0
    count = room = 0
    base = int(active.base_offset)
    for batch in batches:
        size = batch.size_bytes
        if filled and (filled + size > log.sizes.segment_bytes or batch.last_offset - base > OFFSETS_PER_SEGMENT):
            filled = room = 0
            base = batch.base_offset
        filled += size
        if room >= size:
            room -= size
            continue
        if room >= BATCH_HEADER_BYTES and size > SPLIT_MIN:
            size -= room
        count += -(-size // _RANGE_BYTES)
        room = -size % _RANGE_BYTES
        room = min(room, max(0, log.sizes.segment_bytes - filled))
    return count
