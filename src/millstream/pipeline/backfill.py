"""History into a table, by ranges of offsets: what the pipeline itself does not read, each record once.

::

    log:     [ ……… asked for ……………… | live …………………………………► ]
                 ├─ held ─┤           │
             pass 1      pass 2       the offsets at which the sink started: the hand-over, from the table's own record

A backfill is a run of the same declaration with queries and records of its own (sinks are called ``<name>~backfill``,
state is in ``~backfill``). What it is asked for is cut at the hand-over, which the pipeline's own run reads from, and
the ranges that the table holds already are left out; what is left is read in passes, each of one range a partition. The
ranges are in the record of each commit. So the same command twice reads nothing twice, a killed one continues with the
same command, a lost state directory changes nothing, and a table that was set back gets what it lost.

Where a sink has not started yet, the hand-over is the end of the log as it is now, and the pipeline's first run starts
there. An end that the log has not reached is refused, or waited for. Topics have no such record, so only table sinks
are backfilled. A query that puts records together would see history and present apart and is refused.
"""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import kind_of, sink_name
from millstream.pipeline.inference import inferred
from millstream.pipeline.limits import Limits, edges
from millstream.pipeline.locations import state_directory
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.ranges import Bounds, Range, Ranges, after, common, lacking, shown
from millstream.pipeline.reach import require_topics
from millstream.pipeline.runner import Run, SinkSummary, Summary
from millstream.pipeline.sink_query import NoWatch, Watch
from millstream.pipeline.start import (
    Offsets,
    decode_offsets,
    open_logs,
    require_pinned_topics,
    require_same_topics,
    topic_ids,
)
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.guard import BACKFILL_SUFFIX, held_of
from millstream.pipeline.tables.open_table import open_table, shown_target
from millstream.pipeline.tables.table import CommitRecord
from millstream.spark.logs import Logs
from millstream.spark.stats import ReadStats


class Backfill:
    """The passes of one backfill: made with the lock held, run once. ``notes`` say what is not read, and why."""

    def __init__(
        self, pipeline: Pipeline, directory: str, state: PipelineState, watch: Watch, notes: list[str]
    ) -> None:
        """``pipeline`` has table sinks alone; ``state`` is that of the backfill."""
        self.notes = notes
        self._pipeline = pipeline
        self._directory = directory
        self._state = state
        self._watch = watch
        self._passes: list[dict[str, Bounds]] = []
        self._running: Run | None = None
        self._stopping = False

    def add(self, sink: str, passes: list[Bounds]) -> None:
        """Passes of one sink, by the name that its history is written under."""
        for number, bounds in enumerate(passes):
            if number == len(self._passes):
                self._passes.append({})
            self._passes[number][sink] = bounds

    def stop(self) -> None:
        """End after the batch at work; safe in a signal handler."""
        self._stopping = True
        if self._running is not None:
            self._running.stop()

    def run(self, once: bool = True) -> Summary:
        """Read what is lacking.

        Raises:
            SinkFailed: a query failed; what was committed stays, and the same command reads the rest.
        """
        assert once, "a backfill has an end"
        started = time.monotonic()
        done: dict[str, SinkSummary] = {}
        for number, bounds in enumerate(self._passes, 1):
            if self._stopping:
                break
            self._watch.phase(f"pass {number} of {len(self._passes)}")
            for sink in self._one(bounds).sinks:
                done[sink.sink] = _joined(done.get(sink.sink), sink)
        found = [done.get(sink_name(sink)) or self._nothing(sink) for sink in self._pipeline.sinks]
        return Summary(
            pipeline=self._pipeline.pipeline,
            seconds=time.monotonic() - started,
            stopped=self._stopping,
            sinks=found,
            notes=self.notes,
        )

    def _one(self, bounds: Mapping[str, Bounds]) -> Summary:
        sinks = [sink for sink in self._pipeline.sinks if sink_name(sink) in bounds]
        for name in bounds:
            self._state.sink(name).restart()
        pipeline = msgspec.structs.replace(self._pipeline, sinks=sinks)
        running = self._running = Run(pipeline, self._directory, self._state, self._watch, bounds, replay=True)
        try:
            running.open()
            if self._stopping:
                running.stop()
            return running.run(True)
        finally:
            running.close()
            self._running = None

    def _nothing(self, sink: Sink) -> SinkSummary:
        """Of a sink that nothing is read for."""
        table, name = open_table(sink, self._directory), sink_name(sink)
        last = table.last(f"{self._pipeline.pipeline}.{name}")
        return SinkSummary(
            sink=name,
            target=shown_target(sink, self._directory),
            batches=0,
            rows=0,
            rejected=0,
            bytes=0,
            total_rows=last.total_rows if last else 0,
            total_rejected=last.total_rejected if last else 0,
            version=table.version() if table.exists() else "",
            read=ReadStats(),
            offsets={},
        )


@contextmanager
def prepared_backfill(
    pipeline: Pipeline,
    directory: str,
    *,
    start: str = "earliest",
    end: str | None = None,
    wait: bool = False,
    watch: Watch | None = None,
) -> Generator[Backfill]:
    """A backfill of each table sink; ``run`` reads it.

    Args:
        pipeline: the declaration.
        directory: what relative paths in it are relative to.
        start: where it starts: ``earliest``, an offset, a time in ISO 8601, or ``PARTITION=OFFSET,…`` for some.
        end: where it ends, in the same forms; None is where the pipeline itself starts.
        wait: wait for an end that the log has not reached, instead of refusing it.
        watch: follows the run.

    Raises:
        Rejected: ``start`` or ``end`` is wrong or has not come, there is no table sink, or a table does not say where
            its pipeline started.
        Unavailable: a backfill runs already; no Java; no broker; a library is not installed.
    """
    directory = os.path.abspath(directory)
    sinks = [sink for sink in pipeline.sinks if kind_of(sink) != "topic"]
    if not sinks:
        raise Rejected(f"pipeline {pipeline.pipeline} has no table sink, and a topic cannot be backfilled")
    watch = watch or NoWatch()
    require_topics(pipeline, sinks=False)
    state = PipelineState(state_directory(pipeline, directory))
    declared = inferred(pipeline, state, pin=True)
    named = [msgspec.structs.replace(sink, name=sink_name(sink) + BACKFILL_SUFFIX) for sink in sinks]
    notes: list[str] = []
    made = Backfill(msgspec.structs.replace(declared, sinks=named), directory, state.backfill(), watch, notes)
    with state.backfill().running():
        logs = open_logs(pipeline)
        try:
            limits = edges(logs, start, end, wait=wait, phase=watch.phase)
            for sink, own in zip(sinks, named, strict=True):
                hand_over = _hand_over(pipeline, sink, directory, state, logs)
                record = _standing(open_table(own, directory), f"{pipeline.pipeline}.{sink_name(own)}", logs)
                made.add(sink_name(own), _passes(limits, hand_over, held_of(record), sink_name(sink), notes.append))
        finally:
            logs.close()
        yield made


def _passes(
    limits: Mapping[tuple[str, str], Limits], hand_over: Offsets, held: Ranges, sink: str, note: Callable[[str], None]
) -> list[Bounds]:
    """What is to be read for a sink, a range a partition in each pass."""
    missing: dict[tuple[str, str], list[Range]] = {}
    for (topic, partition), limit in limits.items():
        own = hand_over.get(topic, {}).get(partition, 0)
        end = own if limit.end is None else limit.end
        if limit.start < limit.oldest:
            note(f"{sink}: {shown(topic, partition, limit.start, limit.oldest)} is no longer in the log")
        if end > own:
            note(f"{sink}: {shown(topic, partition, max(own, limit.start), end)} is read by the pipeline itself")
        start, end = max(limit.start, limit.oldest), min(end, own)
        there = held.get(topic, {}).get(partition, [])
        for low, high in common(start, end, there):
            note(f"{sink}: {shown(topic, partition, low, high)} is in the table already")
        missing[topic, partition] = lacking(start, end, there)
    passes: list[Bounds] = []
    for number in range(max(map(len, missing.values()), default=0)):
        first: Offsets = {}
        last: Offsets = {}
        for (topic, partition), ranges in missing.items():
            oldest = limits[topic, partition].oldest
            low, high = ranges[number] if number < len(ranges) else (oldest, oldest)
            first.setdefault(topic, {})[partition] = low
            last.setdefault(topic, {})[partition] = high
        passes.append(Bounds(first, last, hand_over, held))
        held = after(held, first, last)
    return passes


def _standing(table: Any, owner: str, logs: Logs) -> CommitRecord | None:
    """The newest record of the backfill that the table's present history holds.

    Raises:
        Rejected: it is of another topic or cluster.
    """
    record = table.standing(owner) if table.exists() else None
    if record is not None and record.begun:
        require_same_topics(record, logs)
    return record


def _joined(before: SinkSummary | None, now: SinkSummary) -> SinkSummary:
    """The summary of two passes."""
    if before is None:
        return now
    before.read.add(now.read)
    counts = {name: getattr(before, name) + getattr(now, name) for name in ("batches", "rows", "rejected", "bytes")}
    return msgspec.structs.replace(now, read=before.read, **counts)


def _hand_over(pipeline: Pipeline, sink: Sink, directory: str, state: PipelineState, logs: Logs) -> Offsets:
    """Where the sink started; decided now if it has not."""
    last = open_table(sink, directory).last(f"{pipeline.pipeline}.{sink_name(sink)}")
    if last is not None:
        if not last.begin:
            raise Rejected(
                f"{sink_name(sink)}: the table does not say where the pipeline started, because an earlier version "
                "wrote it; let the pipeline commit once into a new table"
            )
        require_same_topics(last, logs)
        return decode_offsets(last.begin)
    sink_state = state.sink(sink_name(sink))
    pinned = sink_state.start()
    if pinned is not None:
        require_pinned_topics(sink_state, logs)
        return pinned
    found: Offsets = {}
    source_partitions = logs.source_partitions()
    for (topic, partition), end in logs.latest(source_partitions).items():
        found.setdefault(topic, {})[str(partition)] = end.offset
    return sink_state.pin_start(found, topic_ids(source_partitions))
