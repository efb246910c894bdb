"""From options to tasks: the plan of a batch query, and the settings that all tasks of a query share."""

import uuid
from collections.abc import Sequence

import msgspec

from millstream.errors import Rejected
from millstream.spark.bounds import check_streaming, ending, starting, subscription
from millstream.spark.logs import Logs, SourcePartition
from millstream.spark.manifest import SegmentMap
from millstream.spark.options import Options
from millstream.spark.planner import Span, SplitCounts, SplitRules, count_splits, cut, locate, span_bytes
from millstream.spark.task import ReadSettings, ReadTask
from millstream.spark.wanted import Column, Predicate, Wanted


def check_read_options(options: Options, *, streaming: bool) -> None:
    """Refuse contradicting options before any request to a broker.

    Raises:
        Rejected: options contradict each other.
    """
    options.require("kafka.bootstrap.servers")
    subscription(options)
    starting(options, streaming=streaming)
    ending(options, streaming=streaming)
    check_streaming(options, streaming=streaming)


def read_settings(options: Options, columns: Sequence[Column], predicate: Predicate) -> ReadSettings:
    """The settings that all tasks of a query share."""
    if not columns:
        raise Rejected("name at least one column")
    wanted = Wanted(
        tuple(columns),
        predicate.from_timestamp,
        predicate.last_timestamp,
        options["batch.rows"],
        options["batch.bytes"],
        options["kafka.isolation.level"] == "read_committed",
    )
    fetch_bytes = min(options["kafka.max.partition.fetch.bytes"], options["kafka.fetch.max.bytes"] or 1 << 30)
    return ReadSettings(
        options["kafka.bootstrap.servers"],
        options["kafka.client.id"],
        options["kafka.request.timeout.ms"] / 1000,
        fetch_bytes,
        wanted,
        options["failOnDataLoss"],
        options["read.path"] == "segments",
        options["stats.dir"],
        options.security,
    )


def split_rules(options: Options) -> SplitRules:
    """The options for splitting."""
    return SplitRules(options["split.bytes"], options["minPartitions"], options["maxRecordsPerPartition"])


def count(spans: Sequence[Span], segments: SegmentMap, options: Options) -> SplitCounts:
    """Number of tasks for each span, by the sizes in the manifests."""
    sizes = [span_bytes(span, segments.get((span.topic_id, span.partition), ())) for span in spans]
    return count_splits(spans, sizes, split_rules(options))


def make_tasks(
    spans: Sequence[Span], counts: SplitCounts, segments: SegmentMap, settings: ReadSettings, scan: str
) -> list[ReadTask]:
    """The tasks of a scan, with the files that hold their offsets."""
    return [
        ReadTask(settings, scan, index, tuple(locate(span, segments) for span in part))
        for index, part in enumerate(cut(spans, counts))
    ]


def plan_batch(options: Options, columns: Sequence[Column], predicate: Predicate) -> list[ReadTask]:
    """The tasks of a batch query. Ends are fixed here; later records are not read."""
    logs = Logs(options, subscription(options))
    try:
        source_partitions = logs.source_partitions()
        starts = logs.start(source_partitions, starting(options, streaming=False))
        ends = logs.end(source_partitions, ending(options, streaming=False))
        spans = [_span(place, starts[place.key], ends[place.key], predicate) for place in source_partitions]
        spans = [span for span in spans if span.rows > 0 and _allows(predicate, span)]
        segments = logs.segments(
            [place for place in source_partitions if any(span.topic == place.topic for span in spans)], spans
        )
        counts = count(spans, segments, options)
        return make_tasks(spans, counts, segments, read_settings(options, columns, predicate), uuid.uuid4().hex)
    finally:
        logs.close()


def _span(place: SourcePartition, start: int, end: int, predicate: Predicate) -> Span:
    span = Span(place.topic, place.topic_id, place.partition, start, end)
    low, high = max(start, predicate.from_offset), min(end, predicate.end_offset)
    return msgspec.structs.replace(span, start=low, end=max(low, high))


def _allows(predicate: Predicate, span: Span) -> bool:
    return (predicate.partitions is None or span.partition in predicate.partitions) and (
        predicate.topics is None or span.topic in predicate.topics
    )
