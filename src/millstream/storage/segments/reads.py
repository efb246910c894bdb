"""Reading segments in the worker: whole batches into arena fragments, and records by timestamp.

No byte leaves here unchecked: every batch that is returned has matched its CRC-32C in the bytes that were just read
(16–28 GB/s, a few percent of reading them), its offsets continue the batch before, and its leader epoch is the one
that the log knows. A batch that does not is a ``Fault`` that names file, byte and offset; what stands before it is
served.

A reader that continues where it stopped finds its place again without the index (``_places``, the ends of recent
reads).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.format.epochs import epoch_at
from millstream.format.segment import BATCH_CRC_START, BATCH_HEADER_BYTES, Batch, WalkEnd, parse_batch
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import Term
from millstream.storage.messages.commands import FoundRecord
from millstream.storage.segments.index import batches_from, sound_bytes
from millstream.wire.errors import BatchError
from millstream.wire.records import checksum, iter_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.format.epochs import Epochs
    from millstream.storage.disk import File
    from millstream.storage.messages.commands import Find, Read
    from millstream.storage.segments.files import SegmentFiles
    from millstream.storage.segments.index import SegmentIndex

_PLACES_MAX: Final = 1024


class Fault(Exception):
    """Bytes of a segment are not what they should be."""


class ReadResult(NamedTuple):
    """How a read went."""

    size_bytes: int
    """Bytes that are whole batches."""
    need_bytes: int
    """Size of the first batch, if it does not fit into the spans; else 0."""
    end_offset: int
    """End (exclusive) of the batches that were read."""


class Reader:
    """Reads of one shard's segments; every method may run on several threads at once."""

    def __init__(self, files: SegmentFiles, arena: memoryview) -> None:
        self._files = files
        self._arena = arena
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, int], int] = OrderedDict()  # (path, offset) → position

    def read(self, command: Read) -> ReadResult:
        """Fill the command's spans.

        Raises:
            Fault: the first batch is damaged.
            OSError: the disk says so.
        """
        file = self._files.files.acquire(command.path)
        try:
            position = self._position(file, command)
            ends = iter(command.spans)
            views = [self._arena[start:end] for start, end in zip(ends, ends, strict=True)]
            wanted = min(sum(map(len, views)), command.limit - position)
            got = _fill(file, views, position, wanted)
            found = self._whole(command, Pieces(views), position, got)
            if got < wanted and not found.size_bytes and (found.need_bytes or got < BATCH_HEADER_BYTES):
                what = f"the file ends at byte {position + got}, {command.limit} were written"
                raise Fault(f"{command.path}: offset {command.offset}: {what}")
            return found
        finally:
            self._files.files.release(file)

    def _position(self, file: File, command: Read) -> int:
        """Where the batch with the command's offset starts."""
        with self._lock:
            known = self._places.get((command.path, command.offset))
        if known is not None:
            return known
        index = self._files.index(command.path, command.base_offset)
        for batch in _in_order(file, index, index.place_before(command.offset), command.limit):
            if batch.last_offset >= command.offset:
                return batch.position
        raise Fault(f"{command.path}: offset {command.offset} is not in the first {command.limit} bytes")

    def _whole(self, command: Read, pieces: Pieces, position: int, got: int) -> ReadResult:
        """How much of what was read are whole, sound batches that were asked for."""
        taken = 0
        index = self._files.index(command.path, command.base_offset)
        expected = command.offset
        while taken < got:
            if got - taken < BATCH_HEADER_BYTES <= command.limit - position - taken:
                break  # the spans end within the next header
            try:
                batch = parse_batch(pieces.peek(taken, BATCH_HEADER_BYTES), 0, position + taken, command.limit)
            except WalkEnd as end:
                if taken:
                    break
                raise Fault(f"{command.path}: byte {end.position}: {end.reason}") from end
            late = not taken and batch.last_offset < expected
            out_of_place = late or not _may_follow(index, batch, expected, taken)
            if out_of_place and not taken:
                raise _misplaced(command.path, batch, expected)
            if out_of_place or (taken and batch.last_offset >= command.end_offset):
                break
            if taken + batch.size > min(got, command.max_bytes) and (taken or not command.minimum_one):
                break
            if taken + batch.size > got:
                return ReadResult(0, batch.size, command.offset)
            damage = _damage(batch, pieces.views(taken, batch.size), command.epochs)
            if damage:
                if taken:
                    break
                where = f"the batch at byte {batch.position}, offset {batch.base_offset}"
                raise Fault(f"{command.path}: {where}, {damage}")
            if batch.last_offset >= command.end_offset:
                break  # not before here: a damaged header may only say so
            taken += batch.size
            expected = batch.last_offset + 1
        if taken:
            with self._lock:
                self._places[command.path, expected] = position + taken
                if len(self._places) > _PLACES_MAX:
                    self._places.popitem(last=False)
        return ReadResult(taken, 0, expected)

    def forget(self, path: str) -> None:
        """The file changed other than by growing: remembered places are void."""
        with self._lock:
            for key in [key for key in self._places if key[0] == path]:
                del self._places[key]

    def find(self, command: Find) -> FoundRecord | None:
        """The record that a ``Find`` asks for; None without one.

        Raises:
            Fault: a batch of those that had to be read is damaged.
            OSError: the disk says so.
        """
        index = self._files.index(command.path, command.base_offset)
        place = index.place_before(command.offset)
        if not command.largest:
            place = max(place, index.place_before_time(command.timestamp))
        file = self._files.files.acquire(command.path)
        best: Batch | None = None
        first: FoundRecord | None = None
        try:
            for batch in _in_order(file, index, place, command.limit, partial=command.partial):
                if batch.base_offset >= command.end_offset:
                    break
                if batch.last_offset < command.offset:
                    continue
                # Each, not only the one that is opened: a damaged header may pass for an earlier one.
                data = _sound(file, batch)
                if command.largest:
                    if batch.base_offset < command.offset:  # its header speaks of records before, too
                        first = _find_record(data, batch, command, None)
                    elif batch.records and (best is None or batch.max_timestamp > best.max_timestamp):
                        best = batch
                elif batch.max_timestamp >= command.timestamp:
                    found = _find_record(data, batch, command, command.timestamp)
                    if found is not None:
                        return found
            if best is None or (first is not None and first.timestamp >= best.max_timestamp):
                return first
            return _find_record(_sound(file, best), best, command, best.max_timestamp) or first
        finally:
            self._files.files.release(file)


def _in_order(
    file: File, index: SegmentIndex, place: tuple[int, int], limit: int, *, partial: bool = False
) -> Iterator[Batch]:
    """The batches from a place (offset, position) of the index on, by their headers; with ``partial`` up to the one
    that passes the limit.

    Raises:
        Fault: what stands there is no batch, or not the next one.
    """
    expected, position = place
    try:
        for batch in batches_from(file, position, limit):
            if not _may_follow(index, batch, expected, taken=1):
                raise _misplaced(file.path, batch, expected)
            yield batch
            expected = batch.last_offset + 1
    except WalkEnd as end:
        if not (partial and end.beyond):
            raise Fault(f"{file.path}: byte {end.position}: {end.reason}") from end


def _may_follow(index: SegmentIndex, batch: Batch, expected: int, taken: int) -> bool:
    """Whether a batch may stand where offset ``expected`` does: at it, or, with nothing ``taken`` yet, around it;
    after it only in a file that was compacted, and not after what the file holds.
    """
    base = batch.base_offset
    if base <= expected:
        return base == expected or not taken
    if not index.generation:
        return False
    return index.summary is None or base < index.summary.end_offset


def _damage(batch: Batch, views: list[memoryview], epochs: Epochs) -> str:
    """What is wrong with the bytes of a batch, empty if nothing is. Its leader epoch is outside its checksum, but the
    log knows it (``Read.epochs``).
    """
    if checksum(views, BATCH_CRC_START) != batch.crc:
        return "does not match its checksum"
    known = epoch_at(epochs, batch.base_offset)
    return (
        "" if known in (-1, batch.leader_epoch) else f"has leader epoch {batch.leader_epoch} where {known} was written"
    )


def _misplaced(path: str, batch: Batch, expected: int) -> Fault:
    return Fault(f"{path}: byte {batch.position}: offset {batch.base_offset} where {expected} should come")


def unsound(path: str, batch: Batch) -> str:
    """What there is to say of a batch that does not match its checksum."""
    return f"{path}: the batch at byte {batch.position}, offset {batch.base_offset}, does not match its checksum"


def _sound(file: File, batch: Batch) -> memoryview:
    """The bytes of a batch, which match their checksum; Fault if they do not."""
    data = sound_bytes(file, batch)
    if data is None:
        raise Fault(unsound(file.path, batch))
    return data


def _find_record(data: memoryview, batch: Batch, command: Find, timestamp: int | None) -> FoundRecord | None:
    """The first record of a batch that is late enough; with None the first of those with the largest timestamp."""
    latest: FoundRecord | None = None
    try:
        for record in iter_records(data):
            if not command.offset <= record.offset < command.end_offset:
                continue
            if timestamp is None and (latest is None or record.timestamp > latest.timestamp):
                latest = _found(record.offset, record.timestamp, batch)
            elif timestamp is not None and record.timestamp >= timestamp:
                return _found(record.offset, record.timestamp, batch)
    except BatchError:
        # The producer's bytes, as the checksum says: no broker can look into them, the batch as a whole has to do.
        return _found(max(batch.base_offset, command.offset), batch.max_timestamp, batch)
    return latest


def _found(offset: int, timestamp: int, batch: Batch) -> FoundRecord:
    return FoundRecord(Offset(offset), TimestampMs(timestamp), Term(batch.leader_epoch))


def _fill(file: File, views: list[memoryview], position: int, limit: int) -> int:
    """Read into the views, at most ``limit`` bytes; returns how many there were."""
    room = sum(map(len, views))
    if room > limit:
        views = Pieces(views).views(0, limit)
    filled = 0
    while filled < min(room, limit):
        got = file.preadv(views, position + filled)
        if got <= 0:
            break
        filled += got
        views = Pieces(views).views(got, sum(map(len, views)) - got)
    return filled


class Pieces:
    """Several views as one run of bytes."""

    __slots__ = ("_starts", "_views")

    def __init__(self, views: list[memoryview]) -> None:
        self._views = views
        self._starts: list[int] = []
        at = 0
        for view in views:
            self._starts.append(at)
            at += len(view)

    def peek(self, at: int, size: int) -> memoryview | bytes:
        """Up to ``size`` bytes from ``at`` in one piece, copied if they lie in two."""
        place = bisect_right(self._starts, at) - 1
        begin = at - self._starts[place]
        view = self._views[place]
        if begin + size <= len(view) or place + 1 == len(self._views):
            return view[begin : begin + size]
        return b"".join(self.views(at, size))

    def views(self, at: int, size: int) -> list[memoryview]:
        """Views of up to ``size`` bytes from ``at`` on."""
        found: list[memoryview] = []
        place = max(0, bisect_right(self._starts, at) - 1)
        while size > 0 and place < len(self._views):
            begin = at - self._starts[place]
            view = self._views[place][begin : begin + size]
            if len(view):
                found.append(view)
            size -= len(view)
            at += len(view)
            place += 1
        return found
