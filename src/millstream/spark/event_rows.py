"""Events as rows: metadata as typed columns, data as descriptors to fetch by, or fetched.

::

    chunk on disk ─┐
                   ├─► runs of events ──decode──► columns ──filter──► (data of what is left) ──► record batches
    leader's feed ─┘

Columns are the fields of the metadata and beside them ``_topic``, ``_partition``, ``_offset`` (the event's id),
``_timestamp``, ``_size`` (bytes of data), ``_descriptor``, ``_error`` and ``_value`` (as for records), and, with
``events.data=read``, ``_data``. A filter on metadata is applied before any byte of data is read. An event whose
metadata do not decode is a row with null fields and its reason in ``_error``.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.security import PLAIN, Security
from millstream.errors import Corruption, Unavailable
from millstream.events import EventsClient
from millstream.events.serializers import JsonSerializer
from millstream.format.events import decode_descriptor
from millstream.spark.data_directory import require_own
from millstream.spark.declared import ArrowType, parse_schema
from millstream.spark.event_chunks import ChunkFile, EventRun
from millstream.spark.fitting import stored
from millstream.spark.loss import LossPolicy
from millstream.spark.planner import ReadRange, Segment
from millstream.spark.stats import ReadStats, write_stats
from millstream.spark.task import ReadSettings, ReadTask
from millstream.spark.values import JsonDecoder

BESIDE: Final[tuple[tuple[str, ArrowType], ...]] = (
    ("_topic", pa.string()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", tz="UTC")),
    ("_size", pa.int64()),
    ("_descriptor", pa.binary()),
    ("_error", pa.string()),
    ("_value", pa.binary()),
)
DATA_COLUMN: Final = "_data"
TAKEN: Final = frozenset({DATA_COLUMN, *(name for name, _ in BESIDE)})
_FEED_EVENTS: Final = 512
"""Events of the leader's feed that become one batch."""


def _nothing(metadata: Any, descriptor: Any) -> None:
    """A data selector that wants no data."""


def _nowhere(metadata: Any, descriptor: Any) -> list[Any]:  # noqa: ARG001 (an allocator's)
    return []


_NO_DATA: Final[dict[str, Any]] = {"data_selector": _nothing, "data_allocator": _nowhere}

_compute: Any = pc  # its functions are made at run time


class Term(msgspec.Struct, frozen=True):
    """A condition on a field: ``eq``, ``lt``, ``le``, ``gt``, ``ge``, ``in``, ``prefix`` or ``known``."""

    column: str
    kind: str
    value: Any = None


class EventSettings(msgspec.Struct, frozen=True):
    """How events become rows. ``schema`` is Spark DDL; ``read_data`` is whether ``_data`` is a column."""

    schema: str | dict[str, str]
    read_data: bool
    terms: tuple[Term, ...] = ()


_clients: dict[tuple[int, str, Security], EventsClient] = {}
"""Clients of this process, by process id and security, because Spark's workers are forked."""


def client(bootstrap: str, timeout_s: float, security: Security = PLAIN) -> EventsClient:
    """A client of event topics, opened once a process for each security."""
    key = (os.getpid(), bootstrap, security)
    if key not in _clients:
        _clients[key] = EventsClient(bootstrap, timeout_s=timeout_s, security=security)
    return _clients[key]


def event_schema(settings: EventSettings) -> Any:
    """The Arrow schema of the rows.

    Raises:
        Rejected: the declared schema is wrong.
    """
    fields = [(field.name, stored(field.type)) for field in parse_schema(settings.schema)]
    more = [(DATA_COLUMN, pa.binary())] if settings.read_data else []
    return pa.schema([*fields, *BESIDE, *more])


def event_rows(task: ReadTask, settings: EventSettings, names: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a task as record batches with these columns.

    Raises:
        Corruption: bytes of a chunk are damaged.
        Unavailable: no leader answers, or a chunk that ``read.path=segments`` requires is missing.
        DataLost: events were deleted, and ``failOnDataLoss`` is set.
    """
    stats = ReadStats(tasks=1)
    for part in task.ranges:
        for batch in _PartitionReader(task.settings, part, settings, stats).read():
            yield batch.select(list(names))
    if task.settings.stats_dir is not None:
        write_stats(task.settings.stats_dir, task.scan, task.index, stats)


def event_texts(opened: EventsClient, topic: str, partition: int, count: int, timeout_s: float) -> Iterator[bytes]:
    """JSON text of the metadata of a partition's first events, at most ``count``."""
    raw = _RawMetadata(opened.open_topic(topic).serializer)
    source = opened.open_topic(topic, serializer=raw)
    ends = source.end_ids()[partition]
    end = min(ends.next_id, ends.first_id + count)
    if ends.first_id >= end:
        return
    with source.consumer("millstream-spark", targets=[partition], **_NO_DATA) as consumer:
        consumer.seek(partition, ends.first_id)
        at = ends.first_id
        while at < end:
            event = consumer.pull(timeout_s)
            if event.id is not None and event.id >= at:
                at = event.id + 1
                yield event.metadata


class _RawMetadata:
    """A serializer that leaves metadata as JSON text, independent of the topic's own one."""

    def __init__(self, stored: Any) -> None:
        self.description = stored.description
        self._stored = None if isinstance(stored, JsonSerializer) else stored

    def serialize(self, metadata: Any) -> bytes:
        raise AssertionError(f"nothing is pushed here: {metadata!r}")

    def deserialize(self, data: Any) -> bytes:
        if self._stored is None:
            return bytes(data)
        try:
            return msgspec.json.encode(self._stored.deserialize(data))
        except Corruption:
            return bytes(data)


class _PartitionReader:
    """Reads one range of one partition: from chunks if they can be opened, else from the leader."""

    def __init__(self, settings: ReadSettings, part: ReadRange, events: EventSettings, stats: ReadStats) -> None:
        self._settings = settings
        self._span = part.span
        self._chunks = part.segments
        self._events = events
        self._stats = stats
        self._at = part.span.start
        self._decoder = JsonDecoder(parse_schema(events.schema))
        self._schema = event_schema(events)
        self._client = client(settings.bootstrap, settings.timeout_s, settings.security)
        stored = self._client.open_topic(part.span.topic)
        self._raw = _RawMetadata(stored.serializer)
        self._topic = self._client.open_topic(part.span.topic, serializer=self._raw)

    def read(self) -> Iterator[Any]:
        end = self._span.end
        for chunk in self._chunks:
            if chunk.end_offset <= self._at:
                continue
            yield from self._from_leader(min(chunk.base_offset, end))
            if self._at < end:
                yield from self._from_chunk(chunk)
        yield from self._from_leader(end)

    def _from_chunk(self, chunk: Segment) -> Iterator[Any]:
        end = min(chunk.end_offset, self._span.end)
        try:
            require_own(chunk.directory)
            with ChunkFile(chunk.path, chunk.base_offset) as file:
                for run in file.runs(self._at, end):
                    texts = [self._raw.deserialize(one) for one in run.metadata]
                    batch = self._rows(run._replace(metadata=texts), file.data)
                    self._at = run.first_offset + len(run.metadata)
                    self._stats.segment_rows += batch.num_rows
                    yield batch
                self._stats.segment_bytes += file.bytes_read
        except OSError as error:
            if self._settings.segments_required:
                raise Unavailable(
                    f"read.path=segments, but the chunk in {chunk.path} cannot be read: {error}"
                ) from error
        yield from self._from_leader(end)

    def _from_leader(self, end: int) -> Iterator[Any]:
        if self._at >= end:
            return
        partition, topic = self._span.partition, self._topic
        first = topic.end_ids()[partition].first_id
        if first > self._at:
            LossPolicy(self._settings.fail_on_data_loss).report(
                f"{self._span.topic}-{partition} starts with event {first} now, and {self._at} had not been read"
            )
            self._at = min(first, end)
        with topic.consumer(self._settings.client_id, targets=[partition], **_NO_DATA) as consumer:
            consumer.seek(partition, self._at)
            while self._at < end:
                yield self._fed(consumer, min(_FEED_EVENTS, end - self._at))

    def _fed(self, consumer: Any, count: int) -> Any:
        texts: list[bytes] = []
        sizes: list[int] = []
        descriptors: list[bytes] = []
        times: list[int] = []
        wanted = self._at
        while len(texts) < count:
            try:
                event = consumer.pull(self._settings.timeout_s)
            except TimeoutError:
                raise Unavailable(f"{self._span.topic}-{self._span.partition} gives no event {wanted}") from None
            if event.id is None or event.id < wanted:
                continue
            descriptor = bytes(event.stored_descriptor)
            texts.append(event.metadata)
            descriptors.append(descriptor)
            sizes.append(decode_descriptor(descriptor).base_size)
            times.append(event.timestamp_ms)
            wanted = event.id + 1
        run = EventRun(self._at, texts, sizes, descriptors, 0)

        def data(numbers: Sequence[int]) -> list[bytes]:
            asked = [(run.first_offset + number, decode_descriptor(descriptors[number])) for number in numbers]
            found = self._topic.fetch_data(self._span.partition, asked)
            self._stats.tail_bytes += sum(map(len, found))
            return [bytes(one) for one in found]

        batch = self._rows(run, data, times)
        self._at = wanted
        self._stats.tail_rows += batch.num_rows
        self._stats.tail_bytes += sum(map(len, texts))
        return batch

    def _rows(self, run: EventRun, data: Any, times: Sequence[int] | None = None) -> Any:
        count = len(run.metadata)
        values = pa.array(run.metadata, pa.binary())
        decoded = self._decoder.decode(values)
        columns: list[Any] = decoded.columns.flatten()
        bad = decoded.errors.is_valid()
        if decoded.errors.null_count < count:
            rows, nothing = pa.array(range(count), pa.int64()), pa.scalar(None, pa.int64())
            kept = _compute.if_else(bad, nothing, rows)
            columns = [column.take(kept) for column in columns]
            values = values.take(_compute.if_else(bad, rows, nothing))
        else:
            values = pa.nulls(count, pa.binary())
        stamps = pa.array([run.timestamp] * count if times is None else times, pa.int64())
        columns += [
            pa.array([self._span.topic] * count, pa.string()),
            pa.array([self._span.partition] * count, pa.int32()),
            pa.array(range(run.first_offset, run.first_offset + count), pa.int64()),
            _compute.multiply(stamps, 1000).cast(pa.timestamp("us", tz="UTC")),
            pa.array(run.sizes, pa.int64()),
            pa.array(run.descriptors, pa.binary()),
            decoded.errors,
            values,
        ]
        if self._events.read_data:
            columns.append(pa.nulls(count, pa.binary()))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        numbers = pa.array(range(count), pa.int64())
        if self._events.terms:
            mask = _mask(batch, self._events.terms)
            batch, numbers = batch.filter(mask), numbers.filter(mask)
        if self._events.read_data and batch.num_rows:
            found = pa.array(data(numbers.to_pylist()), pa.binary())
            batch = batch.set_column(batch.num_columns - 1, DATA_COLUMN, found)
        return batch


def _mask(batch: Any, terms: Sequence[Term]) -> Any:
    """Which rows satisfy all terms; null counts as no, as in SQL's WHERE."""
    mask: Any = None
    for term in terms:
        column = batch.column(term.column)
        if term.kind == "known":
            one = column.is_valid()
        elif term.kind == "in":
            one = _compute.is_in(column, value_set=pa.array(term.value, column.type))
        elif term.kind == "prefix":
            one = _compute.starts_with(column, term.value)
        else:
            names = {"eq": "equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
            one = getattr(_compute, names[term.kind])(column, pa.scalar(term.value, column.type))
        one = one.fill_null(False)
        mask = one if mask is None else _compute.and_(mask, one)
    return mask
