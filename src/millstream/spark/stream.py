"""A stream over topics: its start, the end of the next micro-batch, and the tasks that read it.

::

    initial ──► latest(start) ──► tasks(start, end) ──► latest(end) ──► …        offsets logged by Spark in between

``latest`` decides everything that must not change in a replay (end offsets, number of tasks) and stores it in the
offset; ``tasks`` only reads offsets. The commit of a batch needs no action. The object lives in one driver process as
long as the query, and holds its connections.

New topics of a pattern and new partitions start at their first record. A topic that was deleted, or created again under
the same name, is a loss (``failOnDataLoss``). If the query continues, the new topic is read from its start.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.client.cluster import FoundOffset
from millstream.spark.bounds import TopicPartition, starting, subscription
from millstream.spark.logs import Logs, SourcePartition
from millstream.spark.loss import LossPolicy
from millstream.spark.manifest import SegmentMap
from millstream.spark.offsets import Position, StreamOffset, TopicPositions, read_offset
from millstream.spark.options import Options
from millstream.spark.plan import count, make_tasks, read_settings
from millstream.spark.planner import Span, SplitCounts, admit_bytes, admit_rows
from millstream.spark.task import ReadTask
from millstream.spark.wanted import Column, Predicate


class TopicStream:
    """The driver's side of one streaming query."""

    def __init__(
        self, options: Options, columns: Sequence[Column], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._settings = read_settings(options, columns, Predicate())
        self._logs = Logs(options, subscription(options))
        self._loss = LossPolicy(options["failOnDataLoss"])
        self._clock = clock
        self._last_batch_at: float | None = None
        self._target: StreamOffset | None = None
        self._seen: StreamOffset | None = None
        self._segments: SegmentMap = {}
        given: Mapping[TopicPartition, int] | None = options["endingOffsets"]
        self._bound = given

    def close(self) -> None:
        self._logs.close()

    def initial(self) -> dict[str, Any]:
        """Start offsets of a query without a checkpoint."""
        source_partitions = self._logs.source_partitions()
        starts = self._logs.start(source_partitions, starting(self._options, streaming=True))
        return _offset(
            source_partitions, {place.key: Position(starts[place.key]) for place in source_partitions}
        ).to_json()

    def freeze(self) -> None:
        """Read up to the current ends only, in any number of batches (AvailableNow)."""
        source_partitions = self._logs.source_partitions(missing_is_error=False)
        self._target = self._ends(source_partitions)

    def newest(self) -> dict[str, Any] | None:
        """Last known ends of the logs, for progress reports."""
        return None if self._seen is None else self._seen.to_json()

    def latest(self, start_json: Mapping[str, Any], *, limited: bool) -> Mapping[str, Any]:
        """End of the next batch; ``start_json`` itself if there is nothing to read.

        Raises:
            DataLost: records were deleted before they were read, and ``failOnDataLoss`` is set.
        """
        start = read_offset(start_json)
        source_partitions = self._logs.source_partitions(missing_is_error=False)
        ends = self._ends(source_partitions)
        self._seen = ends
        if self._target is not None:
            ends = _not_beyond(ends, self._target)
        known = self._begins(start, source_partitions, ends)
        spans = [Span(p.topic, p.topic_id, p.partition, *known[p.key]) for p in source_partitions if p.key in known]
        waiting = [span for span in spans if span.rows]
        if not waiting and _same_partitions(start, spans):
            return start_json
        if limited and self._too_few(waiting):
            return start_json
        self._segments = self._logs.segments(source_partitions, waiting) if waiting else {}
        chosen = self._admit(waiting) if limited else waiting
        self._last_batch_at = self._clock()
        counts = count(chosen, self._segments, self._options)
        return self._offset_behind(start, spans, chosen, counts, ends).to_json()

    def tasks(self, start_json: Mapping[str, Any], end_json: Mapping[str, Any]) -> list[ReadTask]:
        """The tasks of a batch. They depend on the two offsets alone, except for their file hints."""
        start, end = read_offset(start_json), read_offset(end_json)
        spans: list[Span] = []
        splits: list[int] = []
        for topic_id, topic in end.topics.items():
            for partition, position in topic.partitions.items():
                before = start.position(topic_id, partition)
                begin = before.offset if before is not None else max(0, position.begin)
                if position.offset > begin:
                    spans.append(Span(topic.name, topic_id, partition, begin, position.offset))
                    splits.append(position.splits)
        if not spans:
            return []
        names = {span.topic for span in spans}
        source_partitions = [
            place for place in self._logs.source_partitions(missing_is_error=False) if place.topic in names
        ]
        scan = hashlib.sha256(json.dumps([start.to_json(), end.to_json()]).encode()).hexdigest()[:32]
        counts = SplitCounts(tuple(splits), end.bundles)
        return make_tasks(spans, counts, self._logs.segments(source_partitions, spans), self._settings, scan)

    def _ends(self, source_partitions: Sequence[SourcePartition]) -> StreamOffset:
        found = self._logs.latest(source_partitions)
        if (bound := self._bound) is not None:
            found = {key: end._replace(offset=min(end.offset, bound.get(key, 0))) for key, end in found.items()}
        return _offset(source_partitions, {key: _end_position(end) for key, end in found.items()})

    def _begins(
        self, start: StreamOffset, source_partitions: Sequence[SourcePartition], ends: StreamOffset
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The range that could be read of each partition now. Losses are reported."""
        self._report_gone(start, source_partitions)
        fresh = [place for place in source_partitions if start.position(place.topic_id, place.partition) is None]
        first = self._logs.earliest(fresh)
        found: dict[TopicPartition, tuple[int, int]] = {}
        for place in source_partitions:
            end = ends.position(place.topic_id, place.partition)
            if end is None:
                continue  # appeared after the target was set
            before = start.position(place.topic_id, place.partition)
            begin = first[place.key].offset if before is None else before.offset
            if before is None and begin > 0 and place.topic_id in start.topics:
                self._loss.report(f"{place.topic}-{place.partition} is new, and its first {begin} offsets were deleted")
            if end.offset < begin and self._bound is None:
                self._loss.report(f"{place.topic}-{place.partition} ends at {end.offset}, and {begin} had been read")
            found[place.key] = (begin, max(begin, end.offset))
        return found

    def _report_gone(self, start: StreamOffset, source_partitions: Sequence[SourcePartition]) -> None:
        there = {(place.topic_id, place.partition) for place in source_partitions}
        names = {place.topic for place in source_partitions}
        for topic_id, topic in start.topics.items():
            gone = [partition for partition in topic.partitions if (topic_id, partition) not in there]
            if gone:
                again = topic.name in names and all((topic_id, p) not in there for p in topic.partitions)
                what = "was deleted and created again" if again else "no longer exists, or is not subscribed to"
                numbers = ", ".join(map(str, gone[:5]))
                self._loss.report(f"topic {topic.name} (partition {numbers}) {what}")

    def _too_few(self, waiting: Sequence[Span]) -> bool:
        least = self._options["minOffsetsPerTrigger"]
        if least is None or self._target is not None or sum(span.rows for span in waiting) >= least:
            return False
        now = self._clock()
        if self._last_batch_at is None:
            self._last_batch_at = now
        return (now - self._last_batch_at) * 1000 < self._options["maxTriggerDelay"]

    def _admit(self, waiting: list[Span]) -> list[Span]:
        rows, size = self._options["maxOffsetsPerTrigger"], self._options["maxBytesPerTrigger"]
        if rows is not None:
            waiting = admit_rows(waiting, rows)
        if size is not None:
            files = [self._segments.get((span.topic_id, span.partition), ()) for span in waiting]
            waiting = admit_bytes(waiting, files, size)
        return waiting

    def _offset_behind(
        self,
        start: StreamOffset,
        spans: Sequence[Span],
        chosen: Sequence[Span],
        counts: SplitCounts,
        ends: StreamOffset,
    ) -> StreamOffset:
        cuts = {(s.topic_id, s.partition): (s.end, n) for s, n in zip(chosen, counts.splits, strict=True)}
        topics: dict[str, TopicPositions] = {}
        for span in spans:
            key = (span.topic_id, span.partition)
            offset, splits = cuts.get(key, (span.start, 1))
            end = ends.position(*key)
            epoch = end.leader_epoch if end is not None else -1
            begin = span.start if start.position(*key) is None else -1
            partitions = dict(topics[span.topic_id].partitions) if span.topic_id in topics else {}
            partitions[span.partition] = Position(offset, epoch, splits, begin)
            topics[span.topic_id] = TopicPositions(span.topic, partitions)
        return StreamOffset(topics, counts.bundles)


def _offset(source_partitions: Sequence[SourcePartition], positions: Mapping[TopicPartition, Position]) -> StreamOffset:
    topics: dict[str, dict[int, Position]] = {}
    names: dict[str, str] = {}
    for place in source_partitions:
        names[place.topic_id] = place.topic
        topics.setdefault(place.topic_id, {})[place.partition] = positions[place.key]
    return StreamOffset({topic_id: TopicPositions(names[topic_id], held) for topic_id, held in topics.items()})


def _end_position(found: FoundOffset) -> Position:
    return Position(found.offset, found.leader_epoch)


def _not_beyond(ends: StreamOffset, target: StreamOffset) -> StreamOffset:
    """The ends, limited to the target. Partitions that are not in the target are left out."""
    topics: dict[str, TopicPositions] = {}
    for topic_id, topic in target.topics.items():
        held: dict[int, Position] = {}
        for partition, position in topic.partitions.items():
            now = ends.position(topic_id, partition)
            if now is not None:
                held[partition] = position if position.offset < now.offset else now
        if held:
            topics[topic_id] = TopicPositions(topic.name, held)
    return StreamOffset(topics)


def _same_partitions(start: StreamOffset, spans: Sequence[Span]) -> bool:
    before = {(topic_id, partition) for topic_id, topic in start.topics.items() for partition in topic.partitions}
    return before == {(span.topic_id, span.partition) for span in spans}
