"""History into a table whose pipeline began later: from a start of one's choice up to where each sink began.

::

    log:     [ history …………………………………… | live …………………………………► ]
               backfill: --from ► hand-over    run: hand-over ►
                                  │
                                  the offsets at which the sink began, from the table's own record

A backfill is a run of the same declaration with queries, checkpoints and records of its own (sinks are called
``<name>~backfill``, state is in ``~backfill``), which ends at the hand-over. So no record is read by both or by
neither, each may be killed and resumed by itself, and both may go on at the same time. Where a sink has not begun yet,
the hand-over is the end of the log as it is now, and the pipeline's first run begins there.

The hand-over is in every commit record of the sink and of its backfill, because a state directory may be lost and the
table must not get a record twice for that. Topics have no such record, so only table sinks are backfilled. A query that
puts records together would see history and present apart and is refused.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import kind_of, problems_of, sink_name
from millstream.pipeline.inference import inferred
from millstream.pipeline.locations import state_directory
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.reach import require_topics
from millstream.pipeline.runner import Run, prepared_run
from millstream.pipeline.sink_query import NoWatch, Watch
from millstream.pipeline.start import Offsets, decode_offsets, open_logs, require_same_topics
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import open_table

BACKFILL_SUFFIX: Final = "~backfill"
"""Behind a sink's name it names the writer of its history; a declared name cannot have it."""


@contextmanager
def prepared_backfill(
    pipeline: Pipeline, directory: str, *, start: str = "earliest", watch: Watch | None = None
) -> Generator[Run]:
    """A run over the history of each table sink; ``Run.run(once=True)`` reads it.

    Args:
        pipeline: the declaration.
        directory: what relative paths in it are relative to.
        start: ``earliest`` or a time in ISO 8601. Counts for the first backfill only.
        watch: follows the run.

    Raises:
        Rejected: the declaration or ``start`` is wrong, there is no table sink, or a table does not say where its
            pipeline began.
        Unavailable: a backfill runs already; no Java; no broker; a library is not installed.
    """
    declared = msgspec.structs.replace(pipeline, source=msgspec.structs.replace(pipeline.source, start=start))
    if start == "latest" or any(problem.path == ("source", "start") for problem in problems_of(declared)):
        raise Rejected(f"a backfill begins at earliest or at a time in ISO 8601, not at {start!r}")
    directory = os.path.abspath(directory)
    sinks = [sink for sink in pipeline.sinks if kind_of(sink) != "topic"]
    if not sinks:
        raise Rejected(f"pipeline {pipeline.pipeline} has no table sink, and a topic cannot be backfilled")
    require_topics(pipeline, sinks=False)
    state = PipelineState(state_directory(pipeline, directory))
    declared = inferred(declared, state, pin=True)
    until = {sink_name(sink) + BACKFILL_SUFFIX: _hand_over(pipeline, sink, directory, state) for sink in sinks}
    named = [msgspec.structs.replace(sink, name=sink_name(sink) + BACKFILL_SUFFIX) for sink in sinks]
    running = Run(
        msgspec.structs.replace(declared, sinks=named), directory, state.backfill(), watch or NoWatch(), until
    )
    with prepared_run(running, state.backfill()):
        yield running


def _hand_over(pipeline: Pipeline, sink: Sink, directory: str, state: PipelineState) -> Offsets:
    """Where the sink began; decided now if it has not."""
    last = open_table(sink, directory).last(f"{pipeline.pipeline}.{sink_name(sink)}")
    if last is not None:
        if not last.begin:
            raise Rejected(
                f"{sink_name(sink)}: the table does not say where the pipeline began, because an earlier version wrote "
                "it; let the pipeline commit once into a new table"
            )
        logs = open_logs(pipeline)
        try:
            require_same_topics(last, logs)
        finally:
            logs.close()
        return decode_offsets(last.begin)
    sink_state = state.sink(sink_name(sink))
    pinned = sink_state.start()
    if pinned is not None:
        return pinned
    logs = open_logs(pipeline)
    try:
        found: Offsets = {}
        for (topic, partition), end in logs.latest(logs.source_partitions()).items():
            found.setdefault(topic, {})[str(partition)] = end.offset
    finally:
        logs.close()
    return sink_state.pin_start(found)
