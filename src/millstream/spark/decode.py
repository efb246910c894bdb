"""Decodes Kafka record batches, from a segment file or a fetch response, to Arrow.

::

    bytes ──scan──► headers of whole batches ──decode──► checksum ► skip ► decompress ► columns ──► pa.RecordBatch

``scan`` costs almost nothing and finds the next offset, so that a reader can request more before it decodes. ``decode``
checks the CRC-32C of every batch that it reads, drops control batches and, for read_committed, batches of aborted
transactions, and leaves out rows outside the wanted offsets and timestamps. An Arrow batch ends at a number of rows or
bytes; ``finish`` returns the last one.

Offsets are never assumed to be dense (compaction, markers). Batches below the position are skipped, so that two sources
of the same log can be read one after the other without duplicate rows. Invalid bytes raise ``Corruption`` with topic,
partition, offset and source; nothing is skipped silently.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from crc32c import crc32c

from millstream.client.aborted import AbortedProducers
from millstream.errors import Corruption
from millstream.spark import read_kernel as k
from millstream.spark.columns import BatchBuilder, BufferPool, RecordBatch
from millstream.spark.wanted import Wanted
from millstream.wire.compression import decompress
from millstream.wire.errors import BatchError
from millstream.wire.records import CODEC_MASK, CONTROL, TRANSACTIONAL, iter_records

DECOMPRESSED_MAX: Final = 1 << 30
"""Limit of one batch's decompressed records in a Spark worker, far above a broker's limit."""

_JOIN_BYTES: Final = 1 << 20
"""Size up to which decompressed batches are decoded in one call, so that small ones share its cost."""


class TransactionInSegment(Exception):
    """A transactional batch from a source that does not list aborted transactions. Only the leader can.

    ``offset`` is where to continue; everything before it has been decoded.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"transactional batch at offset {offset}")
        self.offset = offset


class Aborted(msgspec.Struct, frozen=True):
    """An aborted transaction: its producer and its first offset in the partition."""

    producer_id: int
    first_offset: int


class Scan(msgspec.Struct, frozen=True):
    """The whole batches in a piece of log.

    ``consumed`` bytes were scanned; the next batch needs ``needed`` bytes from there on (0 if unknown). ``next_offset``
    is the offset after the last batch, or -1 without any.
    """

    view: memoryview
    table: Any
    rows: int
    consumed: int
    needed: int
    next_offset: int


class Decoder:
    """Decodes one partition from one offset to another. Fed in log order; not shared between threads.

    ``rows`` counts the decoded rows; ``position`` is the offset after the last batch that was read.
    """

    def __init__(
        self, wanted: Wanted, topic: str, partition: int, start: int, end: int, pool: BufferPool | None = None
    ) -> None:
        """Decode offsets [start, end). Decoders of one task may share a pool."""
        self.position = start
        self.rows = 0
        self._wanted = wanted
        self._name = f"{topic}-{partition}"
        self._end = end
        names = frozenset(column.name for column in wanted.columns)
        self._pool = buffer_pool(wanted) if pool is None else pool
        self._builder = BatchBuilder(wanted.columns, topic, partition, wanted.row_limit)
        self._buffers = self._pool.take()
        self._table = np.empty((0, k.TABLE_WIDTH), np.int64)
        self._parameters = np.zeros(k.PARAMETER_WIDTH, np.int64)
        self._parameters[k.ROW_LIMIT] = wanted.row_limit
        self._parameters[k.BYTE_LIMIT] = wanted.byte_limit
        self._parameters[k.END_OFFSET] = end
        self._parameters[k.FROM_TIMESTAMP] = wanted.from_timestamp
        self._parameters[k.LAST_TIMESTAMP] = wanted.last_timestamp
        self._parameters[k.WANT_KEY] = "key" in names
        self._parameters[k.WANT_VALUE] = "value" in names
        self._parameters[k.WANT_HEADERS] = "headers" in names

    @property
    def is_done(self) -> bool:
        """Whether the end offset has been reached."""
        return self.position >= self._end

    def scan(self, view: memoryview, where: str) -> Scan:
        """Find the whole batches at the start of ``view``. The result refers to ``view`` and to the decoder's table.

        Raises:
            Corruption: the bytes are not batches of the current format.
        """
        room = len(view) // k.HEADER_BYTES + 1
        if self._table.shape[0] < room:
            self._table = np.empty((room, k.TABLE_WIDTH), np.int64)
        status, rows, consumed, needed = k.index_batches(np.frombuffer(view, np.uint8), 0, len(view), self._table)
        next_offset = int(self._table[rows - 1, k.LAST_OFFSET]) + 1 if rows else -1
        if status in (k.MALFORMED, k.OLD_FORMAT):
            why = "is of a message format older than 2" if status == k.OLD_FORMAT else "has a broken header"
            raise self.corrupt(max(next_offset, self.position), f"the batch {why}", where)
        return Scan(view, self._table, rows, consumed, needed, next_offset)

    def decode(
        self, scan: Scan, where: str, aborted: "Sequence[Aborted] | AbortedSpans | None" = None
    ) -> Iterator[RecordBatch]:
        """Yield the record batches that are full. ``where`` names the source in errors.

        ``aborted`` are the aborted transactions of this piece. None means unknown; a transactional batch then ends the
        decoding.

        Raises:
            Corruption: a checksum, a structure or the order of batches is wrong.
            TransactionInSegment: a transactional batch was met with ``aborted`` None.
        """
        gone = (
            aborted
            if isinstance(aborted, AbortedSpans)
            else AbortedProducers((one.producer_id, one.first_offset) for one in aborted or ())
        )
        run = _Run(self, scan, where)
        for index, row in enumerate(scan.table[: scan.rows].tolist()):
            base, last, attributes = row[k.BASE_OFFSET], row[k.LAST_OFFSET], row[k.ATTRIBUTES]
            if last < self.position:
                continue
            if base >= self._end:
                run.next_offset = self._end
                break
            if base < run.next_offset:
                raise self.corrupt(base, f"the batch comes after offset {run.next_offset - 1}", where)
            at = row[k.POSITION]
            if crc32c(scan.view[at + k.CRC_START : at + row[k.LENGTH]]) != row[k.CRC]:
                raise self.corrupt(base, "the checksum of the batch does not match", where)
            if attributes & TRANSACTIONAL and self._wanted.read_committed:
                if aborted is None:
                    yield from run.decode()
                    raise TransactionInSegment(max(base, self.position))
                if attributes & CONTROL:
                    gone.end(row[k.PRODUCER_ID], last, _marker(scan.view, row))
                elif gone.covers(row[k.PRODUCER_ID], last):
                    attributes |= CONTROL
            if not attributes & CONTROL and row[k.COUNT]:
                if run.is_full(attributes & CODEC_MASK):
                    yield from run.decode()
                run.add(index, row)
            run.next_offset = last + 1
        yield from run.decode()

    def skip_to(self, offset: int) -> None:
        """Skip to ``offset``, because the log has nothing before it. The position never moves back."""
        self.position = max(self.position, offset)

    def finish(self) -> Iterator[RecordBatch]:
        """Yield the remaining rows as a last batch."""
        if self._buffers.rows:
            yield self._builder.build(self._buffers)
            self._buffers = self._pool.take()

    def read_run(self, data: Any, table: Any, where: str) -> Iterator[RecordBatch]:
        """Yield the full batches while the records of ``table`` are read from ``data``. For ``_Run`` only."""
        state = self._buffers.state
        state[k.AT_BATCH] = state[k.AT_RECORD] = 0
        self._parameters[k.FROM_OFFSET] = self.position
        while True:
            status = self._call(data, table)
            if status == k.DONE:
                return
            if status == k.MALFORMED:
                base = int(table[self._buffers.state[k.AT_BATCH], k.BASE_OFFSET])
                raise self.corrupt(base, "a record of the batch is broken", where)
            place = self._buffers.state[: k.AT_RECORD + 1].copy()
            if status == k.GROW:
                needed = int(self._buffers.state[k.NEEDED])
                self._pool.grow(needed)
                self._buffers = self._pool.take()
            else:
                yield self._builder.build(self._buffers)
                # The caller asked for more, so it has released the batch whose buffers may be used next.
                self._buffers = self._pool.take()
            self._buffers.state[: k.AT_RECORD + 1] = place

    def _call(self, data: Any, table: Any) -> int:
        buffers = self._buffers
        before = buffers.rows
        self._parameters[k.CAPACITY] = buffers.capacity
        status = k.read_records(data, table, len(table), buffers.state, self._parameters, *buffers.arrays)
        self.rows += buffers.rows - before
        return status

    def corrupt(self, offset: int, what: str, where: str) -> Corruption:
        """The error for invalid bytes at an offset of this partition."""
        return Corruption(f"{self._name}, offset {offset}: {what} ({where})")


def buffer_pool(wanted: Wanted, held_bytes: int = 0) -> BufferPool:
    """Buffers for decoders of these columns, whose reader holds on to so many bytes of batches before it lets go."""
    names = frozenset(column.name for column in wanted.columns)
    return BufferPool(names, wanted.row_limit, wanted.byte_limit, 4 + 2 * held_bytes // wanted.byte_limit)


class _Run:
    """Consecutive batches that are decoded in one call: uncompressed ones in place, or decompressed ones joined."""

    def __init__(self, decoder: Decoder, scan: Scan, where: str) -> None:
        self.next_offset = -1
        self._decoder = decoder
        self._scan = scan
        self._where = where
        self._rows: list[list[int]] = []
        self._first = 0
        self._pieces: list[bytes] = []
        self._bytes = 0

    def is_full(self, codec: int) -> bool:
        """Whether a batch with this codec must wait for the next run."""
        return bool(self._rows) and (bool(self._pieces) != bool(codec) or self._bytes >= _JOIN_BYTES)

    def add(self, index: int, row: list[int]) -> None:
        codec = row[k.ATTRIBUTES] & CODEC_MASK
        if not self._rows:
            self._first = index
        at, length = row[k.POSITION] + k.HEADER_BYTES, row[k.LENGTH] - k.HEADER_BYTES
        if codec:
            try:
                piece = decompress(codec, self._scan.view[at : at + length], DECOMPRESSED_MAX)
            except BatchError as error:
                raise self._decoder.corrupt(row[k.BASE_OFFSET], error.message, self._where) from error
            at, length = self._bytes, len(piece)
            self._pieces.append(piece)
            self._bytes += length
        row[k.POSITION], row[k.LENGTH] = at, length
        self._rows.append(row)

    def decode(self) -> Iterator[RecordBatch]:
        """Decode the added batches, and empty the run. Moves the decoder's position."""
        if self._rows:
            table = np.array(self._rows, np.int64)
            if self._pieces:
                joined = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                data = np.frombuffer(joined, np.uint8)
            else:
                data = np.frombuffer(self._scan.view, np.uint8)
            yield from self._decoder.read_run(data, table, self._where)
        self._rows, self._pieces, self._bytes = [], [], 0
        if self.next_offset > self._decoder.position:
            self._decoder.position = self.next_offset


class AbortedSpans:
    """Aborted transactions whose ends are known: which batches belong to them, in pieces of any size."""

    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None:
        """Each as (producer id, first offset, offset of the marker)."""
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, marker in spans:
            self._spans.setdefault(producer_id, []).append((first, marker))

    def covers(self, producer_id: int, last_offset: int) -> bool:
        return any(first <= last_offset < marker for first, marker in self._spans.get(producer_id, ()))

    def end(self, producer_id: int, last_offset: int, marker: int) -> None:
        """A marker: where it stands is known already."""


def _marker(view: memoryview, row: list[int]) -> int:
    """Type of a control batch: the second int16 of its first record's key; -1 without one."""
    for record in iter_records(view[row[k.POSITION] : row[k.POSITION] + row[k.LENGTH]]):
        if record.key is not None and len(record.key) >= 4:
            return int.from_bytes(record.key[2:4], "big", signed=True)
    return -1
