"""What Spark makes of a pipeline's queries: the columns of each sink, and the optimised plan.

Nothing is read: no broker is asked, and views of topics are empty. Schemas with ids are asked for at the registry.
``inspect_results`` compares the columns with those of the tables that exist.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from millstream.pipeline.checks import key_of, kind_of
from millstream.pipeline.model import Pipeline
from millstream.pipeline.query import arrow_schema, make_side_tables, result_of, share_of, stream
from millstream.pipeline.query_names import query_path
from millstream.pipeline.query_plan import optimised_plan, require_mergeable
from millstream.pipeline.source import ROWS_FORMAT
from millstream.pipeline.source import source_options as format_options
from millstream.pipeline.start import source_options
from millstream.pipeline.tables.open_table import open_table
from millstream.pipeline.task import SourceSettings
from millstream.pipeline.topic_query import records_of
from millstream.pipeline.wire_schemas import pinned


def shares(spark: SparkSession, pipeline: Pipeline, directory: str) -> Iterator[DataFrame]:
    """What each sink gets of the result, as a query that is not started. Errors as of ``analyse``."""
    pipeline = pinned(pipeline)
    make_side_tables(spark, pipeline, empty=True)
    source = unread_source(spark, pipeline)
    for index, sink in enumerate(pipeline.sinks):
        yield share_of(spark, result_of(spark, pipeline, source, directory), sink, index)


def unread_source(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """The source of a pipeline whose schemas are pinned, for queries that are not started."""
    settings = SourceSettings(pipeline.source, "drop", "", "", None)
    options = {**source_options(pipeline), "startingOffsets": "earliest"}
    return stream(spark, ROWS_FORMAT, format_options(settings, None, options))


def inspect_results(spark: SparkSession, pipeline: Pipeline, directory: str) -> None:
    """Refuse results of queries that do not fit the tables that exist; changes nothing. The views of the tables that
    are joined with are made.

    Raises:
        QueryProblem: Spark does not take a query, or its rows have no such key.
        Rejected: the rows do not fit a table's columns.
    """
    source: DataFrame | None = None
    for index, sink in enumerate(pipeline.sinks):
        if kind_of(sink) == "topic" or (pipeline.transform is None and sink.sql is None):
            continue
        table = open_table(sink, directory)
        if not table.exists():
            continue
        source = unread_source(spark, pipeline) if source is None else source
        frame = share_of(spark, result_of(spark, pipeline, source, directory), sink, index)
        schema = arrow_schema(frame)
        if sink.mode != "append":
            require_mergeable(frame, schema, table.key or key_of(sink), query_path(pipeline, index))
        table.inspect(schema)


def analyse(spark: SparkSession, pipeline: Pipeline, directory: str) -> list[tuple[list[tuple[str, str]], str]]:
    """Columns and optimised plan of each sink.

    Raises:
        QueryProblem: Spark does not take a query.
        Rejected: a table could not have the columns of a result, or the registry lacks a subject.
        Unavailable: the registry does not answer.
    """
    found: list[tuple[list[tuple[str, str]], str]] = []
    for index, (sink, frame) in enumerate(zip(pipeline.sinks, shares(spark, pipeline, directory), strict=True)):
        if kind_of(sink) == "topic":
            frame = records_of(frame, sink, index)
        else:
            schema = arrow_schema(frame)
            if sink.mode != "append":
                require_mergeable(frame, schema, key_of(sink), query_path(pipeline, index))
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        found.append((columns, optimised_plan(frame)))
    return found
