"""What a run would do, before it does anything: how much there is to read, and in how many tasks.

``plan`` asks the cluster what lies ahead of each sink; it starts no Spark, creates nothing and pins nothing.
``query_names`` and ``explain`` say what becomes of the rows.
"""

import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from millstream.pipeline.checks import batch_bytes, kind_of, shown_mode, sink_name
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.query_names import Columns
from millstream.pipeline.start import declared_start, open_logs, source_options
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import shown_target
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
    """What a run would do for one sink. ``columns`` are name and type; ``query`` is Spark's optimised plan.
    Both are None where Spark was not asked.
    """

    sink: str
    kind: str
    mode: str
    target: str
    columns: Columns | None
    query: str | None
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


class Analysed(msgspec.Struct, frozen=True):
    """What is known of one sink's rows: columns, None if Spark alone knows them, and Spark's plan if it was asked."""

    columns: Columns | None
    query: str | None = None


def cores_of(pipeline: Pipeline) -> int:
    """Cores that a run has, as far as ``spark.master`` says it; those of this machine otherwise."""
    local = re.fullmatch(r"local\[(\d+)\]", str(pipeline.spark.get("spark.master", "")))
    return int(local[1]) if local else os.cpu_count() or 1


def plan(
    pipeline: Pipeline, directory: str, state: PipelineState, analysed: Sequence[Analysed], cores: int
) -> list[SinkPlan]:
    """What a run would do now, for each sink.

    Args:
        pipeline: the checked declaration.
        directory: what relative paths in it are relative to.
        state: how far its sinks are.
        analysed: of each sink.
        cores: that work at the same time.

    Raises:
        MillstreamError: the cluster does not answer.
    """
    logs = open_logs(pipeline)
    try:
        plans: list[SinkPlan] = []
        for sink, known in zip(pipeline.sinks, analysed, strict=True):
            begun, partitions = _ahead(pipeline, sink, state, logs)
            total = sum(partition.bytes for partition in partitions)
            direct = is_direct(pipeline, sink)
            rate = _BYTES_PER_CORE_S.get(pipeline.source.format, 15e6) * (1 if direct else _QUERY_SHARE) * cores
            plans.append(
                SinkPlan(
                    sink=sink_name(sink),
                    kind=kind_of(sink),
                    mode=shown_mode(sink),
                    target=shown_target(sink, directory),
                    columns=known.columns,
                    query=known.query,
                    direct=direct,
                    begun=begun,
                    partitions=partitions,
                    offsets=sum(partition.end - partition.start for partition in partitions),
                    bytes=total,
                    tasks=sum(partition.tasks for partition in partitions),
                    batches=_batches(pipeline, sink, partitions),
                    estimated_seconds=total / rate,
                )
            )
        return plans
    finally:
        logs.close()


def _ahead(pipeline: Pipeline, sink: Sink, state: PipelineState, logs: Logs) -> tuple[bool, list[PartitionPlan]]:
    """Whether the sink has started, and what is left to read."""
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


def _batches(pipeline: Pipeline, sink: Sink, partitions: list[PartitionPlan]) -> int:
    """Micro-batches that the limits make of what lies ahead."""
    total, rows = sum(p.bytes for p in partitions), sum(p.end - p.start for p in partitions)
    if not rows:
        return 0
    by_bytes = -(-total // batch_bytes(pipeline, sink))
    by_rows = -(-rows // pipeline.source.max_records) if pipeline.source.max_records else 1
    return max(1, by_bytes, by_rows)
