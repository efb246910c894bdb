"""From a declaration to DataFrames: the source as a view, the tables it joins with, the transform, each sink's share.

Nothing runs here. Mistakes in a query are found by Spark's analysis, and ``QueryProblem`` carries them to the line of
the text that they are in.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark program gives them)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from millstream.config.yaml_file import Path
from millstream.errors import Rejected
from millstream.pipeline.checks import decoder_of
from millstream.pipeline.model import Pipeline, SideTable, Sink
from millstream.pipeline.query_names import QueryProblem
from millstream.pipeline.reach import is_compacted
from millstream.pipeline.rows import row_schema
from millstream.pipeline.source import TOPIC_FORMAT, FilesSource, RowsSource, TopicSource
from millstream.pipeline.wire_schemas import resolved
from millstream.spark.workers import patiently

_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_CONTEXT: Final = re.compile(r"== SQL")
_WITHOUT_ARROW: Final = ("variant", "geometry", "geography")
"""Types of Spark that Arrow lacks."""
_SOURCES: Final = {source.name(): source for source in (RowsSource, FilesSource, TopicSource)}


def register(spark: SparkSession) -> None:
    """Make the pipeline's own formats known to a session."""
    for source in _SOURCES.values():
        spark.dataSource.register(source)


def stream(spark: SparkSession, format_name: str, options: Mapping[str, str]) -> DataFrame:
    """A streaming DataFrame of one of the pipeline's formats; a Python worker of Spark's plans it.

    The format is registered again for each stream. Spark keeps one map of environment variables for each registration,
    and every stream adds to it when it starts, without a lock: two that start at once leave a map that no task can read
    (``java.io.OptionalDataException``).

    Raises:
        Unavailable: no worker started in time.
    """
    spark.dataSource.register(_SOURCES[format_name])
    return patiently(spark.readStream.format(format_name).options(**options).load, "reading the source")


def result_of(spark: SparkSession, pipeline: Pipeline, source: DataFrame, directory: str) -> DataFrame:
    """What the transform makes of the source; the views ``source`` and those of the tables stand while it is analysed.

    Raises:
        QueryProblem: Spark does not take the query, or the function fails.
    """
    transform = pipeline.transform
    if transform is None:
        return source
    source.createOrReplaceTempView("source")
    if transform.sql is not None:
        return _analysed(spark, transform.sql, ("transform", "sql"))
    assert transform.python is not None, "a checked transform has sql or python"
    return _call(transform.python, source, directory)


def share_of(spark: SparkSession, result: DataFrame, sink: Sink, index: int) -> DataFrame:
    """What one sink gets of the result.

    Raises:
        QueryProblem: Spark does not take the sink's query.
    """
    if sink.sql is None:
        return result
    result.createOrReplaceTempView("result")
    return _analysed(spark, sink.sql, ("sinks", index, "sql"))


def make_side_tables(spark: SparkSession, pipeline: Pipeline, *, empty: bool = False) -> None:
    """Make the views of the topics that the query joins with; ``empty`` ones have columns and no rows."""
    for name, table in pipeline.tables.items():
        schema = spark_type(_value_schema(table))
        if empty:
            frame = spark.createDataFrame([], schema)
        else:
            # Read once and kept, so that every batch of a run joins with the same rows.
            frame = patiently(_reading(spark, pipeline, table), f"reading table {name}")
        frame.createOrReplaceTempView(name)


def _reading(spark: SparkSession, pipeline: Pipeline, table: SideTable) -> Callable[[], DataFrame]:
    def read() -> DataFrame:
        frame = _side_table(spark, pipeline, table).cache()
        frame.count()  # Spark knows its size then, and sends small tables to the rows instead of sorting both
        return frame

    return read


def _side_table(spark: SparkSession, pipeline: Pipeline, table: SideTable) -> DataFrame:
    """All records of a topic, as of now, or the latest of each key if the topic is compacted; those that do not decode
    are left out, as a join would not find them.
    """
    options = pipeline.reach | {"subscribe": table.topic}
    raw = spark.read.format(TOPIC_FORMAT).options(**options).load()
    if is_compacted(pipeline, table.topic):
        raw = latest_values(raw)
    schema = _value_schema(table)

    table = resolved(table)

    def decode(batches: Any) -> Any:
        decoder = decoder_of(table)
        for batch in batches:
            decoded = decoder.decode(batch.column("value"))
            good = decoded.errors.is_null()
            columns = [column.filter(good) for column in decoded.columns.flatten()]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return raw.select("value").mapInArrow(decode, spark_type(schema))


def latest_values(raw: DataFrame) -> DataFrame:
    """The last record of each key, without keys whose last record is a tombstone. A partition's last one is that of the
    highest offset; between partitions, where a key may have moved, the timestamp decides.
    """
    own = F.max_by(F.struct("value", "timestamp", "partition"), F.col("offset")).alias("own")
    of_partitions = raw.groupBy("key", "partition").agg(own)
    last = F.max_by(F.struct("own.value"), F.struct("own.timestamp", "own.partition")).alias("last")
    return of_partitions.groupBy("key").agg(last).select("last.value").where("value IS NOT NULL")


def _value_schema(table: SideTable) -> Any:
    return pa.schema([pa.field(field.name, field.type) for field in decoder_of(table).fields])


def spark_type(schema: Any) -> StructType:
    """The Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def arrow_schema(frame: DataFrame) -> Any:
    """The Arrow schema that a table gets from a DataFrame: everything nullable, times in UTC. What Spark knows to be
    never null is no rule of the table: Spark's own Delta refuses to write where one is within an array or a map.

    Raises:
        Rejected: a column has a type that tables do not have, or no type (a bare NULL), or a name stands twice.
    """
    for own in frame.schema.fields:
        without = _without_arrow(own.dataType)
        if without is not None:
            raise Rejected(f"column {own.name} has type {without}, which tables do not have; cast it in the query")
    found = to_arrow_schema(frame.schema, timezone="UTC")
    seen: set[str] = set()
    for field in found:
        if field.name.lower() in seen:
            raise Rejected(f"column {field.name} stands twice in the result; give one of them another name")
        seen.add(field.name.lower())
        if pa.types.is_null(field.type) or pa.types.is_duration(field.type) or pa.types.is_interval(field.type):
            raise Rejected(f"column {field.name} has type {field.type}, which tables do not have; cast it in the query")
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in found])


def _nullable(kind: Any) -> Any:
    """A type whose members and elements may all be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    return pa.list_(pa.field("element", _nullable(kind.value_type))) if pa.types.is_list(kind) else kind


def _without_arrow(kind: DataType) -> str | None:
    """The type within this one that Arrow shows as the structure that Spark keeps it in; None without one."""
    if kind.typeName() in _WITHOUT_ARROW:
        return kind.simpleString()
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    else:
        inner = [kind.elementType] if isinstance(kind, ArrayType) else []
    return next((found for each in inner if (found := _without_arrow(each)) is not None), None)


def source_schema(pipeline: Pipeline) -> Any:
    """The Arrow schema of the view ``source``."""
    return row_schema(decoder_of(pipeline.source).fields)


def _analysed(spark: SparkSession, text: str, path: Path) -> DataFrame:
    try:
        return spark.sql(text)
    except (ParseException, AnalysisException) as error:
        message = str(error)
        place = _POSITION.search(message)
        first = _CONTEXT.split(message)[0].strip().splitlines()
        sentence = " ".join(line.strip() for line in first if line.strip())
        sentence = re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", re.sub(r"SQLSTATE: \w+;?\s*", "", sentence))
        sentence = re.sub(r"\s*line \d+,? pos(?:ition)? \d+;?.*$", "", sentence).strip()
        line, column = (int(place[1]), int(place[2]) + 1) if place else (0, 0)
        raise QueryProblem(f"Spark does not take the query: {sentence}", path, line, column) from None


def _call(name: str, source: DataFrame, directory: str) -> DataFrame:
    module_name, _, function_name = name.partition(":")
    path: Path = ("transform", "python")
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise QueryProblem(f"{name} cannot be imported: {error}", path) from error
    # Workers do not have the file's directory on their path: what the function refers to travels with it.
    cloudpickle.register_pickle_by_value(module)
    try:
        result = function(source)
    except PySparkException as error:
        raise QueryProblem(f"{name} makes a query that Spark does not take: {error}", path) from error
    except Exception as error:
        raise QueryProblem(f"{name} fails: {type(error).__name__}: {error}", path) from error
    if not isinstance(result, DataFrame):
        raise QueryProblem(f"{name} returns {type(result).__name__}, and a DataFrame is wanted", path)
    return result
