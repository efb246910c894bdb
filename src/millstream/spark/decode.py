"""Record batches of Kafka, as they stand in a segment file or in a fetch response, to Arrow.

::

    bytes ──scan──► headers of whole batches ──decode──► checksum ► skip ► decompress ► columns ──► pa.RecordBatch

``scan`` costs almost nothing and already says where to read on, so that a reader can ask for more before it decodes
what it has. ``decode`` checks the CRC-32C of every batch that it looks into, drops control batches and, for
read_committed, those of aborted transactions, and leaves out rows outside the wanted offsets and timestamps. Arrow
batches are closed at a number of rows or bytes; what is left goes out with ``finish``.

Offsets are never assumed to be dense (compaction, markers). Batches below the position already read are skipped, so
that two sources of the same log can be read one after the other without a row twice. Bytes that are not what they claim
raise ``Corruption`` with topic, partition, offset and where they came from; nothing is skipped silently.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.spark import read_kernel as k
from millstream.spark.columns import BatchBuilder, BufferPool, RecordBatch
from millstream.spark.wanted import Wanted
from millstream.wire.compression import decompress
from millstream.wire.errors import BatchError
from millstream.wire.records import ABORT, CODEC_MASK, CONTROL, TRANSACTIONAL, iter_records

DECOMPRESSED_MAX: Final = 1 << 30
"""Bound on one batch's records in a Spark worker, far above what a broker takes from a producer."""

_JOIN_BYTES: Final = 1 << 20
"""Decompressed batches are decoded together up to this size: small ones would pay the call for a few records each."""


class TransactionInSegment(Exception):
    """A transactional batch where it is not known which transactions were aborted: only the leader can say.

    ``offset`` is where to go on; everything before it has been decoded.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"transactional batch at offset {offset}")
        self.offset = offset


class Aborted(msgspec.Struct, frozen=True):
    """A transaction that was aborted: its producer and its first offset in the partition."""

    producer_id: int
    first_offset: int


class Scan(msgspec.Struct, frozen=True):
    """Whole batches found in a piece of log.

    ``consumed`` bytes were walked, the next batch needs ``needed`` bytes from there on (0 if that cannot be told yet).
    ``next_offset`` is behind the last batch, or -1 if there is none.
    """

    view: memoryview
    table: Any
    rows: int
    consumed: int
    needed: int
    next_offset: int


class Decoder:
    """Decodes one partition from one offset to another. Feed it the log in order; not shared between threads.

    ``rows`` counts the rows decoded so far, ``position`` is the offset behind the last batch looked at.
    """

    def __init__(
        self, wanted: Wanted, topic: str, partition: int, start: int, end: int, pool: BufferPool | None = None
    ) -> None:
        """Begin at ``start``, inclusive, and stop before ``end``; decoders of one task may share a pool."""
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
        """Whether the end has been reached."""
        return self.position >= self._end

    def scan(self, view: memoryview, where: str) -> Scan:
        """Find the whole batches at the start of ``view``. The result refers to ``view`` and to the decoder's table.

        Raises:
            Corruption: what stands there is no batch of the current format.
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

    def decode(self, scan: Scan, where: str, aborted: Sequence[Aborted] | None = None) -> Iterator[RecordBatch]:
        """Yield the record batches that fill up; ``where`` names the source in errors.

        ``aborted`` are the aborted transactions of this piece; None says that they are not known, and then a batch of
        a transaction ends the decoding.

        Raises:
            Corruption: checksum, structure or order of the batches is wrong.
            TransactionInSegment: see there.
        """
        gone = _AbortedProducers(aborted or ())
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
        """Say that there is nothing to be had before ``offset``; never goes back."""
        self.position = max(self.position, offset)

    def finish(self) -> Iterator[RecordBatch]:
        """Yield the rows that have not filled a batch."""
        if self._buffers.rows:
            yield self._builder.build(self._buffers)
            self._buffers = self._pool.take()

    def read_run(self, data: Any, table: Any, where: str) -> Iterator[RecordBatch]:
        """Yield the batches that fill up while the records of ``table`` are read from ``data``; for ``_Run`` only."""
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
                # Only now: by asking for more, the reader has let go of the batch before, whose buffers are used next.
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
        """The error for something wrong at an offset of this partition."""
        return Corruption(f"{self._name}, offset {offset}: {what} ({where})")


def buffer_pool(wanted: Wanted) -> BufferPool:
    """Buffers for decoders of these columns."""
    return BufferPool(frozenset(column.name for column in wanted.columns), wanted.row_limit, wanted.byte_limit)


class _Run:
    """Consecutive batches that are decoded in one call: either plain ones in place, or decompressed ones joined."""

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
        """Whether a batch of this codec has to wait for the next run."""
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
        """Decode what was added and be empty again; moves the decoder's position."""
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


class _AbortedProducers:
    """Which producers are inside an aborted transaction, as a consumer tracks it (KIP-98, read_committed)."""

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._open: set[int] = set()

    def covers(self, producer_id: int, last_offset: int) -> bool:
        self._advance(last_offset)
        return producer_id in self._open

    def end(self, producer_id: int, last_offset: int, marker: int) -> None:
        self._advance(last_offset)
        if marker == ABORT:
            self._open.discard(producer_id)

    def _advance(self, last_offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= last_offset:
            self._open.add(self._coming.pop().producer_id)


def _marker(view: memoryview, row: list[int]) -> int:
    """Type of a control batch: the second int16 of its first record's key; -1 if there is none."""
    for record in iter_records(view[row[k.POSITION] : row[k.POSITION] + row[k.LENGTH]]):
        if record.key is not None and len(record.key) >= 4:
            return int.from_bytes(record.key[2:4], "big", signed=True)
    return -1
