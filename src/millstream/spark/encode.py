"""Encodes Arrow columns to Kafka record batches, the inverse of ``decode``.

The columns are those of Spark's Kafka sink, ``key`` and ``value`` (text or bytes), ``headers``, ``topic`` and
``partition``, and also ``timestamp``; only ``value`` is required. A row goes to the partition that it names, else to
the partition of its key's hash as in Kafka's Java producer, else to one that changes with every Arrow batch. Rows of
one partition keep their order. Without a column ``timestamp`` all rows of a batch have one, the time of writing; so
have rows in which it is null.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from millstream.errors import Rejected
from millstream.spark import write_kernel as k
from millstream.spark.columns import RecordBatch
from millstream.wire.compression import Codec, compress
from millstream.wire.records import CRC_START, HEADER, HEADER_BYTES, MAGIC, OVERHEAD_BYTES, TRANSACTIONAL

_COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")
_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_ENDS: Final = np.empty(0, np.int32)


class Encoded(msgspec.Struct, frozen=True):
    """An encoded record batch and its partition."""

    topic: str
    partition: int
    batch: bytes
    rows: int


class RowEncoder:
    """Encodes the rows of one task. ``partitions_of`` returns a topic's number of partitions."""

    def __init__(
        self,
        topic: str | None,
        partitions_of: Callable[[str], int],
        *,
        codec: str = "lz4",
        batch_bytes: int = 512 << 10,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """``producer`` is the id and epoch of a transaction's producer; without it batches have none."""
        self._producer = producer
        self._sequences: dict[tuple[str, int], int] = {}
        self._topic = topic
        self._partitions_of = partitions_of
        self._codec = Codec[codec.upper()]
        self._batch_bytes = batch_bytes
        self._out: Any = np.empty(2 * batch_bytes, np.uint8)
        self._turn = random.randrange(1 << 16)

    def encode(self, rows: RecordBatch) -> Iterator[Encoded]:
        """Encode these rows into record batches.

        Raises:
            Rejected: a row has no topic, or a partition that does not exist.
        """
        columns = _Columns(rows)
        for topic, indexes in self._by_topic(rows):
            count = self._partitions_of(topic)
            self._turn += 1
            chosen = columns.partitions(indexes, count, self._turn % count, topic)
            for partition in np.unique(chosen).tolist():
                yield from self._encode(topic, partition, columns, indexes[chosen == partition])

    def _by_topic(self, rows: RecordBatch) -> Iterator[tuple[str, Any]]:
        everything = np.arange(rows.num_rows, dtype=np.int64)
        if self._topic is not None:
            yield self._topic, everything
            return
        if "topic" not in rows.schema.names:
            raise Rejected("no topic is named: set the option topic, or add a column topic")
        column = rows.column("topic")
        if column.null_count:
            raise Rejected("a row has no topic: the column topic is null in it, and the option topic is not set")
        coded = column.dictionary_encode()
        codes = coded.indices.to_numpy()
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, everything[codes == code]

    def _encode(self, topic: str, partition: int, columns: "_Columns", indexes: Any) -> Iterator[Encoded]:
        done = 0
        while done < len(indexes):
            count, size = k.write_records(
                indexes, done, self._batch_bytes, columns.timestamps, *columns.arrays, self._out
            )
            if not count:
                self._out = np.empty(size, np.uint8)
                continue
            records = memoryview(self._out)[:size]
            times = columns.times(indexes[done : done + count])
            yield Encoded(topic, partition, self._batch(records, count, (topic, partition), times), count)
            done += count

    def _batch(self, records: memoryview, count: int, target: tuple[str, int], times: tuple[int, int]) -> bytes:
        payload = compress(self._codec, records) if self._codec else records
        length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
        attributes, producer_id, epoch, sequence = int(self._codec), -1, -1, -1
        if self._producer is not None:
            attributes |= TRANSACTIONAL
            producer_id, epoch = self._producer
            sequence = self._sequences.get(target, 0)
            self._sequences[target] = (sequence + count) & 0x7FFFFFFF
        header = HEADER.pack(
            0, length, -1, MAGIC, 0, attributes, count - 1, *times, producer_id, epoch, sequence, count
        )
        crc = crc32c(payload, crc32c(header[CRC_START:]))
        return b"".join((header[: CRC_START - 4], crc.to_bytes(4, "big"), header[CRC_START:], payload))


def content_hash(rows: RecordBatch) -> int:
    """A number for keys, values and headers of some rows, the same in any order; those of parts add up modulo 2**64."""
    return int(k.sum_of_hashes(rows.num_rows, *_Columns(rows).arrays))


def check_columns(names: Sequence[str]) -> None:
    """Refuse a table that cannot be written to a topic.

    Raises:
        Rejected: ``value`` is missing, or a column has no place in a record.
    """
    if "value" not in names:
        raise Rejected("a row needs a column value (text or bytes) to be written to a topic")
    for name in names:
        if name not in _COLUMNS:
            raise Rejected(f"a record has no column {name!r}, only {', '.join(_COLUMNS)}: select those")


class _Columns:
    """The buffers of one Arrow batch for the compiled loops. A missing column is all null."""

    def __init__(self, rows: RecordBatch) -> None:
        self._rows = rows
        self._key = _field(rows, "key")
        self.arrays = (*self._key, *_field(rows, "value"), *_headers(rows))
        self._now_ms = time.time_ns() // 1_000_000
        self.timestamps = _timestamps(rows, self._now_ms)

    def times(self, indexes: Any) -> tuple[int, int]:
        """Timestamps (ms) of the first of these rows, and of the latest."""
        if not len(self.timestamps):
            return self._now_ms, self._now_ms
        return int(self.timestamps[indexes[0]]), int(self.timestamps[indexes].max())

    def partitions(self, indexes: Any, count: int, sticky: int, topic: str) -> Any:
        """The partitions of the rows in ``indexes``."""
        chosen = np.full(self._rows.num_rows, k.NO_PARTITION, np.int32)
        if "partition" in self._rows.schema.names:
            chosen = pc.fill_null(self._rows.column("partition"), k.NO_PARTITION).to_numpy().astype(np.int32)
            given = chosen[indexes]
            wrong = given[(given >= count) | (given < k.NO_PARTITION)]
            if len(wrong):
                raise Rejected(f"a row names partition {wrong[0]}, but topic {topic} has {count} partitions")
        k.choose_partitions(*self._key, count, sticky, chosen)
        return chosen[indexes]


def _timestamps(rows: RecordBatch, now_ms: int) -> Any:
    """The column ``timestamp`` in ms; nothing without it."""
    if "timestamp" not in rows.schema.names:
        return np.empty(0, np.int64)
    column = rows.column("timestamp")
    if not pa.types.is_timestamp(column.type):
        raise Rejected(f"column timestamp is {column.type}, not a timestamp: cast it")
    millis = pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False), pa.int64())
    return pc.fill_null(millis, now_ms).to_numpy()


def _field(rows: RecordBatch, name: str) -> tuple[Any, Any, Any]:
    if name not in rows.schema.names:
        ends = np.zeros(rows.num_rows + 1, np.int32)
        return ends, np.zeros(rows.num_rows // 8 + 1, np.uint8), _NO_BYTES
    return _binary(rows.column(name))


def _binary(column: Any) -> tuple[Any, Any, Any]:
    column = column.cast(pa.binary())
    if column.offset:
        column = pa.concat_arrays([column])
    valid, ends, data = column.buffers()
    mask = np.frombuffer(valid, np.uint8) if valid is not None and column.null_count else _NO_BYTES
    return np.frombuffer(ends, np.int32), mask, np.frombuffer(data, np.uint8) if data is not None else _NO_BYTES


def _headers(rows: RecordBatch) -> tuple[Any, ...]:
    if "headers" not in rows.schema.names:
        return _NO_ENDS, _NO_BYTES, _NO_ENDS, _NO_BYTES, _NO_ENDS, _NO_BYTES, _NO_BYTES
    column = rows.column("headers")
    if column.offset:
        column = pa.concat_arrays([column])
    valid, ends = column.buffers()[:2]
    mask = np.frombuffer(valid, np.uint8) if valid is not None and column.null_count else _NO_BYTES
    pairs = column.values
    key_ends, key_mask, key_data = _binary(pairs.field("key"))
    if len(key_mask):
        raise Rejected("a header has no key")
    return np.frombuffer(ends, np.int32), mask, key_ends, key_data, *_binary(pairs.field("value"))
