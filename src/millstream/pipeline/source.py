"""The pipeline's own Spark sources: decoded records of topics, the files that tasks have written of them, plain topics.

Two formats over the stream of ``millstream.spark``: ``millstream-rows`` yields the decoded fields as columns,
``millstream-files`` yields a row for each Parquet file that a task wrote. Their settings travel as JSON in an option;
offsets, limits and splits are those of the topic source. ``millstream-topic`` is ``millstream`` by another name: Spark
runs formats that a session has registered in the same worker processes, and one that it has found by itself in others,
whose start costs seconds. The runner registers all three; they are no public interface.
"""

# ruff: noqa: N802 (names are Spark's)

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.pipeline.checks import decoder_of
from millstream.pipeline.files import FILE_COLUMNS
from millstream.pipeline.layout import decode_schema, encode_schema
from millstream.pipeline.rows import TOPIC_COLUMNS, row_schema
from millstream.pipeline.task import SourceSettings, decoded_rows, written_files
from millstream.pipeline.wire_schemas import resolved
from millstream.spark.options import READ, Options, parse_options
from millstream.spark.plan import check_read_options
from millstream.spark.source import MillstreamDataSource, TopicStreamReader
from millstream.spark.task import ReadTask
from millstream.spark.wanted import Column

ROWS_FORMAT: Final = "millstream-rows"
FILES_FORMAT: Final = "millstream-files"
TOPIC_FORMAT: Final = "millstream-topic"
SETTINGS_OPTION: Final = "pipeline.settings"
SCHEMA_OPTION: Final = "pipeline.schema"
REACH_OPTION: Final = "pipeline.secret"
"""How the registry is reached. By its name Spark shows no value of it."""

_COLUMNS: Final = tuple(Column(name) for name in TOPIC_COLUMNS)


class TopicSource(MillstreamDataSource):
    """Topics, batch and streaming, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_FORMAT


class RowsSource(DataSource):
    """Decoded records."""

    @classmethod
    def name(cls) -> str:
        return ROWS_FORMAT

    def schema(self) -> StructType | str:
        return from_arrow_schema(row_schema(decoder_of(self._settings.source).fields))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 (Spark's)
        return RowsReader(self._read_options(), self._settings)

    @property
    def _settings(self) -> SourceSettings:
        settings = msgspec.json.decode(self.options[SETTINGS_OPTION], type=SourceSettings)
        reached = msgspec.json.decode(self.options.get(REACH_OPTION, "null"), type=dict[str, str] | None)
        source = msgspec.structs.replace(settings.source, reached=reached)
        return msgspec.structs.replace(settings, source=resolved(source))

    def _read_options(self) -> Options:
        own = {SETTINGS_OPTION, SCHEMA_OPTION, REACH_OPTION}
        options = parse_options({name: text for name, text in dict(self.options).items() if name not in own}, READ)
        check_read_options(options, streaming=True)
        return options


class FilesSource(RowsSource):
    """Files that tasks have written."""

    @classmethod
    def name(cls) -> str:
        return FILES_FORMAT

    def schema(self) -> StructType | str:
        return FILE_COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 (Spark's)
        return FilesReader(self._read_options(), self._settings, decode_schema(self.options[SCHEMA_OPTION]))


class RowsReader(TopicStreamReader):
    """The stream of the topic source, whose tasks decode."""

    def __init__(self, options: Options, settings: SourceSettings) -> None:
        super().__init__(options, _COLUMNS)
        self._source = settings

    def __getstate__(self) -> Any:
        return self._options, self._source

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition.value, ReadTask):
            return iter(())  # Spark plans a source without partitions as one partition of None
        return decoded_rows(partition.value, self._source, current_batch())


class FilesReader(RowsReader):
    """The same, whose tasks also write."""

    def __init__(self, options: Options, settings: SourceSettings, schema: Any) -> None:
        super().__init__(options, settings)
        self._schema = schema

    def __getstate__(self) -> Any:
        return self._options, self._source, self._schema

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition.value, ReadTask):
            return iter(())
        return written_files(partition.value, self._source, current_batch(), self._schema)


def current_batch() -> int:
    """The micro-batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    assert number is not None, "Spark tells every task of a stream which batch it is of"
    return int(number)


def source_options(settings: SourceSettings, schema: Any, options: Mapping[str, str]) -> dict[str, str]:
    """Options for a reader of one of the formats; ``schema`` is that of the table that tasks write to, if they do."""
    reached = settings.source.reached
    settings = msgspec.structs.replace(settings, source=msgspec.structs.replace(settings.source, reached=None))
    own = {SETTINGS_OPTION: msgspec.json.encode(settings).decode()}
    if reached is not None:
        own[REACH_OPTION] = msgspec.json.encode(reached).decode()
    if schema is not None:
        own[SCHEMA_OPTION] = encode_schema(schema)
    return {**options, **own}
