"""What Spark makes of a pipeline's queries: the columns of each sink, and the optimised plan.

Nothing is read: neither a broker nor a table is asked, and views of topics are empty. Schemas with ids are asked for at
the registry.
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
from millstream.pipeline.task import SourceSettings
from millstream.pipeline.topic_query import records_of
from millstream.pipeline.wire_schemas import pinned


def shares(spark: SparkSession, pipeline: Pipeline, directory: str) -> Iterator[DataFrame]:
    """What each sink gets of the result, as a query that is not started. Errors as of ``analyse``."""
    pipeline = pinned(pipeline)
    make_side_tables(spark, pipeline, empty=True)
    settings = SourceSettings(pipeline.source, "drop", "", "", None)
    options = {**source_options(pipeline), "startingOffsets": "earliest"}
    source = stream(spark, ROWS_FORMAT, format_options(settings, None, options))
    for index, sink in enumerate(pipeline.sinks):
        yield share_of(spark, result_of(spark, pipeline, source, directory), sink, index)


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
