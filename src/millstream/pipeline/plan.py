"""What a run would do, before it does anything: how much there is to read, in how many tasks, and Spark's query.

``analyse`` lets Spark look at the queries without a broker or a table; schemas with ids are asked for at the registry.
``plan`` also asks the cluster what lies ahead of each sink; it creates nothing and pins nothing.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from millstream.pipeline.checks import kind_of, sink_name, size
from millstream.pipeline.inference import inferred
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.query import arrow_schema, make_side_tables, optimised_plan, result_of, share_of, stream
from millstream.pipeline.source import ROWS_FORMAT
from millstream.pipeline.source import source_options as format_options
from millstream.pipeline.start import declared_start, open_logs, source_options
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import shown_target
from millstream.pipeline.task import SourceSettings
from millstream.pipeline.topic_query import records_of
from millstream.pipeline.wire_schemas import pinned, with_kept_columns
from millstream.spark.bounds import starting
from millstream.spark.logs import Logs
from millstream.spark.offsets import read_offset
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import count
from millstream.spark.planner import Span, span_bytes

_BYTES_PER_CORE_S: Final = {"raw": 150e6, "string": 120e6, "json": 15e6, "avro": 4e6, "protobuf": 4e6}
"""Log bytes that a core turns into table rows in a second, roughly; JSON, Avro and Protobuf pay for every field."""
_QUERY_SHARE: Final = 0.6
"""Speed that is left when rows pass through Spark's engine."""


class PartitionPlan(msgspec.Struct, frozen=True):
    """What lies ahead in one partition: offsets [start, end), bytes of log, offsets that are in sealed or archived
    segments.
    """

    topic: str
    partition: int
    start: int
    end: int
    bytes: int
    sealed_offsets: int
    tasks: int


class SinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do for one sink. ``columns`` are name and type; ``query`` is Spark's optimised plan."""

    sink: str
    kind: str
    target: str
    columns: list[tuple[str, str]]
    query: str
    direct: bool
    begun: bool
    partitions: list[PartitionPlan]
    offsets: int
    bytes: int
    tasks: int
    batches: int
    estimated_seconds: float


def is_direct(pipeline: Pipeline, sink: Sink) -> bool:
    """Whether tasks write the table's files themselves, because no query stands in between."""
    return kind_of(sink) != "topic" and pipeline.transform is None and sink.sql is None


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
            arrow_schema(frame)
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        found.append((columns, optimised_plan(frame)))
    return found


def plan(spark: SparkSession, pipeline: Pipeline, directory: str, state: PipelineState) -> list[SinkPlan]:
    """What a run would do now, for each sink.

    Raises:
        MillstreamError: as ``analyse``, or the cluster does not answer.
    """
    pipeline = with_kept_columns(inferred(pipeline, state, pin=False), state)
    analysed = analyse(spark, pipeline, directory)
    cores = spark.sparkContext.defaultParallelism
    logs = open_logs(pipeline)
    try:
        plans: list[SinkPlan] = []
        for sink, (columns, query) in zip(pipeline.sinks, analysed, strict=True):
            begun, partitions = _ahead(pipeline, sink, state, logs)
            total = sum(partition.bytes for partition in partitions)
            direct = is_direct(pipeline, sink)
            rate = _BYTES_PER_CORE_S.get(pipeline.source.format, 15e6) * (1 if direct else _QUERY_SHARE) * cores
            plans.append(
                SinkPlan(
                    sink=sink_name(sink),
                    kind=kind_of(sink),
                    target=shown_target(sink, directory),
                    columns=columns,
                    query=query,
                    direct=direct,
                    begun=begun,
                    partitions=partitions,
                    offsets=sum(partition.end - partition.start for partition in partitions),
                    bytes=total,
                    tasks=sum(partition.tasks for partition in partitions),
                    batches=_batches(pipeline, partitions),
                    estimated_seconds=total / rate,
                )
            )
        return plans
    finally:
        logs.close()


def _ahead(pipeline: Pipeline, sink: Sink, state: PipelineState, logs: Logs) -> tuple[bool, list[PartitionPlan]]:
    """Whether the sink has begun, and what is left to read."""
    sink_state = state.sink(sink_name(sink))
    source_partitions = logs.source_partitions()
    finished = sink_state.finished_batch()
    at: dict[tuple[str, int], int] = {}
    if finished is not None:
        for topic in read_offset(sink_state.offsets(finished)).topics.values():
            at |= {(topic.name, partition): position.offset for partition, position in topic.partitions.items()}
    elif (pinned := sink_state.start()) is not None:
        at = {(topic, int(p)): offset for topic, offsets in pinned.items() for p, offset in offsets.items()}
    else:
        options = parse_options({**source_options(pipeline), **declared_start(pipeline)}, READ)
        at = dict(logs.start(source_partitions, starting(options, streaming=True)))
    oldest, newest = logs.earliest(source_partitions), logs.latest(source_partitions)
    spans: list[Span] = []
    for place in source_partitions:
        start = max(at.get(place.key, 0), oldest[place.key].offset)
        spans.append(Span(place.topic, place.topic_id, place.partition, start, max(start, newest[place.key].offset)))
    segments = logs.segments(source_partitions, spans)
    options = parse_options(source_options(pipeline), READ)
    counts = count([span for span in spans if span.rows], segments, options)
    splits = iter(counts.splits)
    plans: list[PartitionPlan] = []
    for span in spans:
        files = segments.get((span.topic_id, span.partition), ())
        sealed = sum(max(0, min(f.end_offset, span.end) - max(f.base_offset, span.start)) for f in files)
        tasks = next(splits) if span.rows else 0
        plans.append(
            PartitionPlan(
                span.topic, span.partition, span.start, span.end, span_bytes(span, files), sealed, max(tasks, 1)
            )
        )
    return finished is not None, plans


def _batches(pipeline: Pipeline, partitions: list[PartitionPlan]) -> int:
    """Micro-batches that the limits make of what lies ahead."""
    total, rows = sum(p.bytes for p in partitions), sum(p.end - p.start for p in partitions)
    if not rows:
        return 0
    by_bytes = -(-total // size(pipeline.source.max_bytes))
    by_rows = -(-rows // pipeline.source.max_records) if pipeline.source.max_records else 1
    return max(1, by_bytes, by_rows)
