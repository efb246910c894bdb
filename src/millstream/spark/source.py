"""The data source for Spark: thin classes around ``plan`` and ``stream``.

Spark creates these objects in several short-lived driver processes and pickles readers to its workers, so they hold
options and values, never connections. Decoding code is imported in the workers that decode. Names of methods and
parameters are Spark's, which passes some by keyword.

Spark applies a query's filters, unless the option ``filter.pushdown`` is set. Spark 4.2 and 4.3 keep what a Python
reader said about the *last* filter for every other use of the same DataFrame (measured: ``df.where(a)`` makes a later
``df.select(…)``, and the other side of a union, return the rows of ``a``). By default the reader therefore accepts no
filters, and results are right however a DataFrame is used.
"""

# ruff: noqa: N802 (names are Spark's)

import importlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import Rejected
from millstream.spark.filters import split_filters
from millstream.spark.options import READ, Options, parse_options, tell_ignored
from millstream.spark.plain_errors import plainly, require_packages
from millstream.spark.plan import check_read_options, plan_batch
from millstream.spark.schema import spark_schema, wanted_columns
from millstream.spark.sink import batch_writer, check_target, stream_writer
from millstream.spark.stream import TopicStream
from millstream.spark.task import ReadTask
from millstream.spark.typed import (
    ValueFormat,
    decoder_for,
    settled,
    topic_columns,
    typed_rows,
    typed_schema,
    value_format,
)
from millstream.spark.wanted import Column, Predicate

_admission: Any = importlib.import_module("pyspark.sql.streaming.datasource")
_AvailableNow: Any = _admission.SupportsTriggerAvailableNow


class TaskPartition(InputPartition):
    """A task on its way to a worker."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


@plainly
class MillstreamDataSource(DataSource):
    """``format("millstream")``: topics as tables, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        options = self._read_options()
        if options["events"]:
            return events().spark_schema_of(events().event_settings(options))
        value = value_format(options)
        if value is None:
            return spark_schema(options["includeHeaders"])
        return from_arrow_schema(typed_schema(decoder_for(settled(value)).fields))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options()
        require_packages()
        check_read_options(options, streaming=False)
        tell_ignored(options)
        if options["events"]:
            reading = events().EventsReading(events().event_settings(options), schema)
            return (PushdownEventsReader if options["filter.pushdown"] else EventsReader)(options, reading)
        if (value := value_format(options)) is not None:
            return TypedReader(options, *_typed(value, schema))
        kind = PushdownTopicReader if options["filter.pushdown"] else TopicReader
        return kind(options, wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._read_options()
        require_packages()
        check_read_options(options, streaming=True)
        tell_ignored(options)
        if options["events"]:
            return EventsStreamReader(options, events().EventsReading(events().event_settings(options), schema))
        if (value := value_format(options)) is not None:
            return TypedStreamReader(options, *_typed(value, schema))
        return TopicStreamReader(options, wanted_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Rejected("a topic cannot be overwritten: use mode append")
        made = batch_writer(dict(self.options), schema)
        check_target(dict(self.options), schema)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002 (Spark's)
        # Complete mode means overwrite; a topic then gets the whole result again, as with the Kafka connector.
        return stream_writer(dict(self.options), schema)

    def _read_options(self) -> Options:
        options = parse_options(dict(self.options), READ)
        if options["events"] or "events.data" in options.given:
            events().check_event_options(options)
        return options


@plainly
class TopicReader(DataSourceReader):
    """Reads a batch, from a start to an end that are fixed when the query is planned."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._predicate = Predicate()

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in plan_batch(self._options, self._columns, self._predicate)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)


@plainly
class PushdownTopicReader(TopicReader):
    """A batch reader that applies the filters of its DataFrame's only query."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._predicate, left = split_filters(filters)
        return left


@plainly
class TopicStreamReader(DataSourceStreamReader, _AvailableNow):
    """Reads a stream. On the driver one object serves the whole query."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._stream: TopicStream | None = None

    def __getstate__(self) -> tuple[Options, tuple[Column, ...]]:
        return self._options, self._columns

    def __setstate__(self, state: tuple[Options, tuple[Column, ...]]) -> None:
        self.__init__(*state)

    @property
    def _driver(self) -> TopicStream:
        if self._stream is None:
            self._stream = TopicStream(self._options, self._columns)
        return self._stream

    def initialOffset(self) -> dict[str, Any]:
        return dict(self._driver.initial())

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:
        return dict(self._driver.latest(start, limited=self._is_default(limit)))

    def getDefaultReadLimit(self) -> Any:
        if (rows := self._options["maxOffsetsPerTrigger"]) is not None:
            return _admission.ReadMaxRows(rows)
        if (size := self._options["maxBytesPerTrigger"]) is not None:
            return _admission.ReadMaxBytes(size)
        if (least := self._options["minOffsetsPerTrigger"]) is not None:
            return _admission.ReadMinRows(least)
        return _admission.ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._driver.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [TaskPartition(task) for task in self._driver.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """No effect: the checkpoint alone holds the query's progress."""

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _is_default(self, limit: Any) -> bool:
        """Whether the options' limits apply. A trigger that reads everything passes another limit."""
        return limit == self.getDefaultReadLimit()


@plainly
class TypedReader(TopicReader):
    """A batch whose tasks decode values."""

    def __init__(self, options: Options, value: ValueFormat, names: tuple[str, ...]) -> None:
        super().__init__(options, topic_columns())
        self._value = value
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read_typed(partition, self._value, self._names)


@plainly
class TypedStreamReader(TopicStreamReader):
    """A stream whose tasks decode values."""

    def __init__(self, options: Options, value: ValueFormat, names: tuple[str, ...]) -> None:
        super().__init__(options, topic_columns())
        self._value = value
        self._names = names

    def __getstate__(self) -> Any:
        return self._options, self._value, self._names

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read_typed(partition, self._value, self._names)


@plainly
class EventsReader(TopicReader):
    """A batch of events."""

    def __init__(self, options: Options, reading: Any) -> None:
        super().__init__(options, (Column("value"),))
        self._reading = reading

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in self._reading.tasks(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reading.rows(partition)


@plainly
class PushdownEventsReader(EventsReader):
    """A batch of events that applies the filters of its DataFrame's only query before it reads data."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        return self._reading.take(filters)


@plainly
class EventsStreamReader(TopicStreamReader):
    """A stream of events."""

    def __init__(self, options: Options, reading: Any) -> None:
        super().__init__(options, (Column("value"),))
        self._reading = reading

    def __getstate__(self) -> Any:
        return self._options, self._reading

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reading.rows(partition)


def events() -> Any:
    """What event topics need, imported for them alone: their client takes a while."""
    return importlib.import_module("millstream.spark.event_source")


def _typed(value: ValueFormat, schema: StructType) -> tuple[ValueFormat, tuple[str, ...]]:
    """The format with the registry's schema, and the names of the wanted columns.

    Raises:
        Rejected: a column is unknown or of another type, among others because the registry has a newer version.
    """
    value = settled(value)
    known = {field.name: field.dataType for field in from_arrow_schema(typed_schema(decoder_for(value).fields))}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            found = known[field.name].simpleString() if field.name in known else "unknown"
            raise Rejected(
                f"column {field.name!r} is {found}, not {field.dataType.simpleString()}; a schema that changed "
                "just now takes effect when the query is made again"
            )
    return value, tuple(schema.fieldNames())


def _read_typed(partition: InputPartition, value: ValueFormat, names: tuple[str, ...]) -> Iterator[Any]:
    if not isinstance(partition.value, ReadTask):
        return iter(())
    return typed_rows(partition.value, value, names)


def _read(partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition.value, ReadTask):
        return iter(())  # Spark plans a source without partitions as one partition of None
    from millstream.spark.read import read_task

    return read_task(partition.value)
