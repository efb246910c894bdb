"""Decides how much to read and how to split it into tasks. Pure arithmetic on offsets and sizes.

::

    what there is ──admit──► what this batch reads ──count──► how many tasks ──cut──► tasks ──locate──► with files

``count`` depends on sizes, which change when segments are sealed or deleted; its result is stored with the offsets.
``cut`` depends only on offsets and the stored counts, so a replay gives the same tasks. Small ranges, as in the tail of
a topic with many partitions, are bundled into few tasks, because a Spark task costs tens of milliseconds before its
first row.

Segment files are hints. A task finds rows by offset, and reads from the leader what no file holds.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from millstream.format.manifest import ArchivedSegment
from millstream.spark.data_directory import DataDirectory

UNKNOWN_ROW_BYTES: Final = 512
"""Assumed bytes per offset for log without segment sizes."""

MAX_TASKS: Final = 10_000
_BUNDLE_SHARE: Final = 8
"""A range below an eighth of a split is bundled; a bundle is at most a quarter of a split."""


class Segment(msgspec.Struct, frozen=True):
    """A sealed segment with offsets [base_offset, end_offset), all durable and below the high watermark.

    ``path`` is its file. If ``archived`` is set, it is also in an object store, whose URL is ``store``; a segment whose
    file the broker has dropped has no path.
    """

    base_offset: int
    end_offset: int
    bytes: int
    path: str
    min_timestamp: int = -1
    max_timestamp: int = -1
    archived: ArchivedSegment | None = None
    store: str = ""
    aborted: tuple[tuple[int, int, int], ...] | None = None
    """The aborted transactions with a record in the file: (producer id, first offset, offset of the marker). None:
    unknown, only the leader can serve what is transactional in it.
    """
    directory: DataDirectory | None = None
    """Where ``path`` means this file; None if the broker has no replicas beside it."""


class Span(msgspec.Struct, frozen=True):
    """Offsets [start, end) of one partition. ``topic_id`` is 32 hex digits."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Number of offsets; fewer records if the log has gaps."""
        return self.end - self.start


class ReadRange(msgspec.Struct, frozen=True):
    """A span and the files that hold parts of it, in order."""

    span: Span
    segments: tuple[Segment, ...] = ()


class SplitRules(msgspec.Struct, frozen=True):
    """The options for splitting."""

    split_bytes: int
    min_partitions: int | None = None
    max_records: int | None = None


class SplitCounts(msgspec.Struct, frozen=True):
    """Number of tasks per span; 0 for spans that share ``bundles`` tasks."""

    splits: tuple[int, ...]
    bundles: int = 0


def span_bytes(span: Span, segments: Sequence[Segment]) -> int:
    """Bytes of log in a span: exact for whole segments, in proportion for parts, assumed beyond them."""
    size, known = 0.0, 0
    for segment in segments:
        rows = min(segment.end_offset, span.end) - max(segment.base_offset, span.start)
        if rows > 0:
            known += rows
            size += segment.bytes * rows / (segment.end_offset - segment.base_offset)
    return int(size + (span.rows - known) * row_bytes(segments))


def row_bytes(segments: Sequence[Segment]) -> float:
    """Average bytes per offset in a partition."""
    rows = sum(segment.end_offset - segment.base_offset for segment in segments)
    return sum(segment.bytes for segment in segments) / rows if rows else UNKNOWN_ROW_BYTES


def admit_rows(spans: Sequence[Span], limit: int) -> list[Span]:
    """The first ``limit`` offsets, divided in proportion to each partition's backlog, at least one for each with any.

    This is the connector's rule: a batch may exceed the limit by at most the number of partitions.
    """
    total = sum(span.rows for span in spans)
    if total <= limit:
        return list(spans)
    return [_shorten(span, span.rows * limit // total) for span in spans]


def admit_bytes(spans: Sequence[Span], segments: Sequence[Sequence[Segment]], limit: int) -> list[Span]:
    """About the first ``limit`` bytes, divided by size, at least one offset for each partition with any."""
    sizes = [span_bytes(span, files) for span, files in zip(spans, segments, strict=True)]
    total = sum(sizes)
    if total <= limit:
        return list(spans)
    return [
        _shorten(span, _rows_in(span, files, size * limit // total))
        for span, files, size in zip(spans, segments, sizes, strict=True)
    ]


def _shorten(span: Span, rows: int) -> Span:
    return msgspec.structs.replace(span, end=min(span.end, span.start + max(1, rows)))


def _rows_in(span: Span, segments: Sequence[Segment], size: int) -> int:
    """Number of offsets from the start of a span that take about ``size`` bytes."""
    at, left = span.start, float(size)
    per_row = row_bytes(segments)
    for segment in segments:
        if segment.end_offset <= at:
            continue
        gap = max(0, segment.base_offset - at) * per_row
        if gap >= left:
            break
        left, at = left - gap, max(at, segment.base_offset)
        density = segment.bytes / (segment.end_offset - segment.base_offset)
        part = (segment.end_offset - at) * density
        if part >= left:
            return int(at - span.start + left / max(density, 1e-9))
        left, at = left - part, segment.end_offset
    return int(at - span.start + left / max(per_row, 1e-9))


def count_splits(spans: Sequence[Span], sizes: Sequence[int], rules: SplitRules) -> SplitCounts:
    """Number of tasks for each span."""
    total_rows = sum(span.rows for span in spans)
    # Limit the number of tasks to what a driver can plan in a second.
    split_bytes = max(rules.split_bytes, sum(sizes) // MAX_TASKS + 1)
    splits: list[int] = []
    small_bytes = 0
    for span, size in zip(spans, sizes, strict=True):
        count = -(-size // split_bytes)
        if rules.max_records:
            count = max(count, -(-span.rows // rules.max_records))
        if rules.min_partitions and len(spans) < rules.min_partitions:
            count = max(count, round(span.rows * rules.min_partitions / max(1, total_rows)))
        elif not rules.min_partitions and count <= 1 and size < split_bytes // _BUNDLE_SHARE:
            small_bytes += size
            splits.append(0)
            continue
        splits.append(max(1, min(count, span.rows)))
    if splits.count(0) <= 1:
        return SplitCounts(tuple(max(1, count) for count in splits))
    return SplitCounts(tuple(splits), -(-small_bytes * 4 // split_bytes) or 1)


def cut(spans: Sequence[Span], counts: SplitCounts) -> list[list[Span]]:
    """The tasks, each a list of spans. Every offset is in exactly one task, in order of the given spans."""
    tasks: list[list[Span]] = []
    for span, count in zip(spans, counts.splits, strict=True):
        edges = [span.start + span.rows * i // count for i in range(count + 1)] if count else []
        for start, end in pairwise(edges):
            if start < end:
                tasks.append([msgspec.structs.replace(span, start=start, end=end)])
    small = [span for span, count in zip(spans, counts.splits, strict=True) if not count and span.rows]
    return tasks + _bundle(small, counts.bundles)


def _bundle(spans: Sequence[Span], bundles: int) -> list[list[Span]]:
    total = sum(span.rows for span in spans)
    parts: list[list[Span]] = [[] for _ in range(bundles)]
    before = 0
    for span in spans:
        # A span goes to the bundle of its middle row, with all rows distributed evenly.
        parts[(2 * before + span.rows) * bundles // (2 * total)].append(span)
        before += span.rows
    return [part for part in parts if part]


def locate(span: Span, segments: Mapping[tuple[str, int], Sequence[Segment]]) -> ReadRange:
    """A span with the files that overlap it, found by (topic id, partition)."""
    files = segments.get((span.topic_id, span.partition), ())
    return ReadRange(span, tuple(f for f in files if f.end_offset > span.start and f.base_offset < span.end))
