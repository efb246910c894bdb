"""The work of one Spark task: reading ranges from files or the object store if possible, else from the leader.

A task is a value that travels to a worker. Offsets define it; its segments are hints. For each range it reads the
segments in order, each from its file or else from the object store, and fills every hole before, between and after
them from the leader: missing ones, and for read_committed those with transactions of which it is not known here how
each has ended. A worker process keeps its connections between tasks.
"""

import gc
import logging
import os
import uuid
from collections.abc import Iterator
from typing import Final

from millstream.client import Cluster
from millstream.client.security import Security
from millstream.errors import Rejected, Unavailable
from millstream.format.manifest import ArchivedSegment, ArchiveId
from millstream.spark.columns import BufferPool, RecordBatch
from millstream.spark.decode import Decoder, TransactionInSegment, buffer_pool
from millstream.spark.loss import LossPolicy
from millstream.spark.planner import ReadRange, Segment
from millstream.spark.segment_file import CHUNK_BYTES, SegmentFile
from millstream.spark.stats import ReadStats, write_stats
from millstream.spark.tail import Tail
from millstream.spark.task import ReadSettings, ReadTask

_LOG: Final = logging.getLogger("millstream.spark")


_clusters: dict[tuple[int, str, str, float, Security], Cluster] = {}
"""Connections of this process, by process id, because Spark's workers are forked."""

_settled: list[bool] = []


def read_task(task: ReadTask, stats: ReadStats | None = None, *, held_bytes: int = 0) -> Iterator[RecordBatch]:
    """Yield the record batches of a task; ``stats`` gets the counts of what was read, by origin. ``held_bytes`` is how
    much of what it gets the caller holds on to at a time, beyond the last batch.

    Raises:
        Corruption: bytes of the log are damaged.
        DataLost: records were deleted, and ``failOnDataLoss`` is set.
        Unavailable: no leader answers, or a file that ``read.path=segments`` requires is missing.
    """
    _settle()
    stats = ReadStats() if stats is None else stats
    stats.tasks += 1
    pool = buffer_pool(task.settings.wanted, held_bytes)
    for part in task.ranges:
        yield from _RangeReader(task.settings, part, stats, pool).read()
    if task.settings.stats_dir is not None:
        write_stats(task.settings.stats_dir, task.scan, task.index, stats)


def _settle() -> None:
    """Exempt loaded objects from garbage collection, at a worker's first and second task.

    Spark's workers collect garbage after every task. Walking the imports would cost 20 to 60 ms each time, and many of
    them are loaded during the first task.
    """
    if len(_settled) < 2:
        _settled.append(True)
        gc.collect()
        gc.freeze()


class _RangeReader:
    """Reads one range of one partition."""

    def __init__(self, settings: ReadSettings, part: ReadRange, stats: ReadStats, pool: BufferPool) -> None:
        span = part.span
        self._settings = settings
        self._segments = part.segments
        self._end = span.end
        self._owner = ArchiveId(uuid.UUID(span.topic_id), span.partition)
        self._stats = stats
        self._decoder = Decoder(settings.wanted, span.topic, span.partition, span.start, span.end, pool)
        self._tail = Tail(
            _cluster(settings),
            span,
            read_committed=settings.wanted.read_committed,
            fetch_bytes=settings.fetch_bytes,
            loss=LossPolicy(settings.fail_on_data_loss),
        )
        self._buffer = bytearray(CHUNK_BYTES if part.segments else 0)

    def read(self) -> Iterator[RecordBatch]:
        decoder = self._decoder
        for segment in self._segments:
            if segment.end_offset <= decoder.position:
                continue
            if segment.base_offset > decoder.position:
                yield from self._from_leader(min(segment.base_offset, self._end))
            if segment.base_offset <= decoder.position < self._end:
                yield from self._from_segment(segment)
        yield from self._from_leader(self._end)
        yield from decoder.finish()

    def _from_leader(self, end: int) -> Iterator[RecordBatch]:
        rows, size = self._decoder.rows, self._tail.bytes_read
        yield from self._tail.read(self._decoder, end)
        self._stats.tail_rows += self._decoder.rows - rows
        self._stats.tail_bytes += self._tail.bytes_read - size

    def _from_segment(self, segment: Segment) -> Iterator[RecordBatch]:
        decoder, wanted = self._decoder, self._settings.wanted
        end = min(segment.end_offset, self._end)
        if 0 <= segment.max_timestamp < wanted.from_timestamp:
            decoder.skip_to(end)
            return
        try:
            if segment.path:
                yield from self._from_file(segment)
            if segment.archived is not None and decoder.position < end:
                yield from self._from_store(segment, segment.archived)
        except TransactionInSegment as turn:
            decoder.skip_to(turn.offset)
        yield from self._from_leader(end)

    def _from_file(self, segment: Segment) -> Iterator[RecordBatch]:
        rows = self._decoder.rows
        try:
            with SegmentFile(segment) as file:
                try:
                    yield from file.read(self._decoder, self._end, self._buffer)
                finally:
                    self._stats.segment_bytes += file.bytes_read
        except OSError as error:
            if self._settings.segments_required and segment.archived is None:
                raise Unavailable(f"read.path=segments, but {segment.path} cannot be read: {error}") from error
            _LOG.info("reading elsewhere instead of %s: %s", segment.path, error)
        finally:
            self._stats.segment_rows += self._decoder.rows - rows

    def _from_store(self, segment: Segment, archived: ArchivedSegment) -> Iterator[RecordBatch]:
        # Clients of object stores take a while to import, and most tasks need none.
        from millstream.spark.archived_segment import ArchivedSegmentReader, task_store

        rows = self._decoder.rows
        reader = None
        try:
            reader = ArchivedSegmentReader(task_store(segment.store, self._settings.timeout_s), self._owner, archived)
            yield from reader.read(self._decoder, self._end, self._settings.wanted.from_timestamp)
        except (Rejected, Unavailable) as error:
            if self._settings.segments_required:
                raise Unavailable(f"read.path=segments, but {segment.store} cannot be read: {error}") from error
            _LOG.info("reading from the leader instead of %s: %s", segment.store, error)
        finally:
            self._stats.archive_rows += self._decoder.rows - rows
            self._stats.archive_bytes += 0 if reader is None else reader.bytes_read


def _cluster(settings: ReadSettings) -> Cluster:
    key = (os.getpid(), settings.bootstrap, settings.client_id, settings.timeout_s, settings.security)
    if key not in _clusters:
        _clusters[key] = Cluster(
            settings.bootstrap,
            client_id=settings.client_id,
            timeout_s=settings.timeout_s,
            security=settings.security,
        )
    return _clusters[key]
