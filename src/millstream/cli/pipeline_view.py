"""What ``millstream pipeline`` shows: a plan, a run as it goes, a summary, a status."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec

from millstream.cli.output import emit, print_facts, print_json, print_table, remark
from millstream.config.forms import human_size

if TYPE_CHECKING:
    from millstream.pipeline.model import Pipeline
    from millstream.pipeline.plan import SinkPlan
    from millstream.pipeline.replay import Replayed
    from millstream.pipeline.runner import Summary
    from millstream.pipeline.sink_figures import BatchDone
    from millstream.pipeline.sink_query import SinkQuery
    from millstream.pipeline.state import PipelineState


_SHOWN_REASONS = 10
_SOURCE = re.compile(r"StreamingRelationV2 .*(\[[^\[\]]*\])(?:, name=\S+)?$", re.MULTILINE)
"""How Spark shows the source of a stream: with all of its options, and its columns last."""


class RunView:
    """Follows a run: a progress bar for each sink on a terminal, a line for each batch elsewhere. A context manager."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = Console(file=sys.stderr)
        self._live = console.is_terminal
        self._name = name
        self._tasks: dict[str, Any] = {}
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=console, disable=not self._live,
        )  # fmt: skip
        self._phase: Any = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def phase(self, what: str) -> None:
        if not self._live:
            remark(f"{self._name}: {what}")
        elif not self._tasks:
            if self._phase is None:
                self._phase = self._bar.add_task(what, total=None, note="")
            self._bar.update(self._phase, description=what)

    def begin(self, sinks: list[SinkQuery]) -> None:
        if self._phase is not None:
            self._bar.remove_task(self._phase)
        for sink in sinks:
            backlog = sink.position.backlog
            self._tasks[sink.name] = self._bar.add_task(sink.name, total=backlog, note=f"{backlog:,} offsets to read")
            if not self._live:
                remark(f"{self._name}: {sink.name}: {backlog:,} offsets to read into {sink.target}")

    def batch(self, sink: SinkQuery, done: BatchDone) -> None:
        note = f"{sink.figures.rows:,} rows, {sink.figures.rejected:,} rejected"
        read = sink.position.read
        total = max(sink.position.backlog, read)
        self._bar.update(self._tasks[sink.name], completed=read, total=total, note=note)
        if not self._live:
            again = ", committed before the restart" if done.repeated else ""
            remark(
                f"{self._name}: {sink.name}: batch {done.number}: {done.rows:,} rows, {done.rejected:,} rejected "
                f"in {done.seconds:.1f} s, version {done.version}{again}"
            )

    def tick(self) -> None:
        """Progress is drawn by a thread of its own."""


def show_plan(pipeline: Pipeline, plans: list[SinkPlan]) -> None:
    """For people: what would be read, how it is cut, what Spark would do."""
    source = pipeline.source
    topics = source.topic if isinstance(source.topic, str) else ", ".join(source.topic)
    emit(f"pipeline {pipeline.pipeline}: {topics} ({source.format}) at {pipeline.brokers}\n")
    for plan in plans:
        emit(f"\n{plan.sink} -> {plan.kind} {plan.target}\n")
        print_table(
            ("topic", "#partition", "#from", "#to", "#offsets", "#in sealed files", "#bytes", "#tasks"),
            [
                (p.topic, p.partition, p.start, p.end, p.end - p.start, p.sealed_offsets, human_size(p.bytes), p.tasks)
                for p in plan.partitions
            ],
        )
        way = "segment files to Parquet in one worker, no query" if plan.direct else "through Spark's engine"
        where = "continues from its checkpoint" if plan.begun else "has not started"
        print_facts(
            [
                ("state", where),
                *([("mode", plan.mode)] if plan.mode != "append" else []),
                ("way", way),
                ("to read", f"{plan.offsets:,} offsets, {human_size(plan.bytes)}, {_batches(plan.batches)}"),
                ("estimate", f"about {_duration(plan.estimated_seconds)}"),
                ("columns", "Spark alone knows them: --explain" if plan.columns is None else _columns(plan.columns)),
            ]
        )
        if plan.query is not None:
            emit("query\n")
            emit("".join(f"  {line}\n" for line in _SOURCE.sub(r"source \1", plan.query).splitlines()))


def _columns(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _batches(count: int) -> str:
    return f"{count} batch" if count == 1 else f"{count} batches"


def show_summary(summary: Summary) -> None:
    """What a run did."""
    print_table(
        ("sink", "#batches", "#rows", "#rejected", "#bytes", "#rows in all", "#rejected in all"),
        [
            (
                s.sink, s.batches, f"{s.rows:,}", f"{s.rejected:,}", human_size(s.bytes),
                f"{s.total_rows:,}", f"{s.total_rejected:,}",
            )
            for s in summary.sinks
        ],
    )  # fmt: skip
    for sink in summary.sinks:
        emit(f"{sink.sink}: {sink.target}, version {sink.version}, read to {_offsets(sink.offsets)}\n")
        origins = sink.read
        if origins.rows:
            emit(
                f"{sink.sink}: of {origins.rows:,} records {origins.archive_rows:,} were read from the object store, "
                f"{origins.segment_rows:,} from segment files, {origins.tail_rows:,} from the broker\n"
            )
    for note in summary.notes:
        emit(f"not read: {note}\n")
    emit(f"{summary.pipeline}: {summary.seconds:.1f} s\n")


def show_replayed(done: list[Replayed]) -> None:
    """What became of dead letters."""
    print_table(
        ("sink", "target", "#dead letters", "#replayed", "#rows", "#left"),
        [
            (one.sink, one.target, f"{one.letters:,}", f"{one.replayed:,}", f"{one.rows:,}",
             f"{one.letters - one.replayed:,}")
            for one in done
        ],
    )  # fmt: skip
    for one in done:
        for reason, count in sorted(one.reasons.items(), key=lambda item: -item[1])[:_SHOWN_REASONS]:
            emit(f"{one.sink}: {count:,} left: {reason}\n")


def show_status(name: str, state: PipelineState, *, as_json: bool) -> None:
    """How far each sink is."""
    progress, pid = [*state.progress(), *state.backfill().progress()], state.runner() or state.backfill().runner()
    if as_json:
        print_json({"pipeline": name, "running": pid is not None, "pid": pid, "sinks": msgspec.to_builtins(progress)})
        return
    emit(f"{name}: " + (f"runs (process {pid})\n" if pid is not None else "does not run\n"))
    now = time.time()
    print_table(
        ("sink", "target", "#batch", "#rows", "#rejected", "#bytes", "#left", "#rows/s", "version", "updated"),
        [
            (
                p.sink, p.target, p.batch, f"{p.rows:,}", f"{p.rejected:,}", human_size(p.bytes), p.left,
                f"{p.batch_rows / p.batch_seconds:,.0f}" if p.batch_seconds else None, p.version,
                f"{_duration(max(0.0, now - p.updated_at))} ago",
            )
            for p in progress
        ],
        empty="it has not committed a batch yet",
    )  # fmt: skip
    for one in progress:
        read = [
            f"{topic}-{p} [{a}, {b})"
            for topic, parts in one.ranges.items()
            for p, held in parts.items()
            for a, b in held
        ]
        if read:
            emit(f"{one.sink}: has read {', '.join(read)}\n")


def _offsets(offsets: Any) -> str:
    return ", ".join(
        f"{topic}-{partition}:{at}"
        for topic, partitions in offsets.items()
        for partition, at in sorted(partitions.items(), key=lambda item: int(item[0]))
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
