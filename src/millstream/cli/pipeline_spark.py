"""What ``millstream pipeline`` does with a pipeline; only what needs Spark imports it."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from millstream.cli.output import print_json, remark
from millstream.cli.pipeline_file import state_of
from millstream.cli.pipeline_view import RunView, show_replayed, show_summary
from millstream.cli.spark_work import plain_errors, quiet_engine, signals_to

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from millstream.pipeline.backfill import Backfill
    from millstream.pipeline.document import Loaded
    from millstream.pipeline.plan import Analysed, SinkPlan
    from millstream.pipeline.runner import Run


def analysed(loaded: Loaded, *, deep: bool) -> list[Analysed]:
    """What is known of each sink's rows: from the queries' texts, or ``deep`` from Spark. Nothing of queries over a
    schema that has not been inferred.
    """
    from millstream.pipeline.plan import Analysed
    from millstream.pipeline.wire_schemas import needs_inference

    known = state_of(loaded).schemas()
    pipeline = loaded.pipeline
    named = {"source": pipeline.source, **pipeline.tables}
    missing = [name for name, declared in named.items() if needs_inference(declared) and name not in known]
    if missing:
        remark(f"the first run infers the schema of {', '.join(missing)}; names in queries are not checked before that")
    if deep and not missing:
        return _analysed_by_spark(loaded)
    from millstream.pipeline.inference import with_schemas
    from millstream.pipeline.query_names import results
    from millstream.pipeline.wire_schemas import pinned, with_kept_columns

    with plain_errors(loaded):
        pipeline = pinned(with_kept_columns(with_schemas(pipeline, known), state_of(loaded)))
        return [Analysed(columns) for columns in results(pipeline)]


def _analysed_by_spark(loaded: Loaded) -> list[Analysed]:
    from millstream.pipeline.plan import Analysed

    with plain_errors(loaded), tempfile.TemporaryDirectory(prefix="millstream-") as place, quiet_engine(place):
        spark = _session(loaded)
        from millstream.pipeline.explain import analyse
        from millstream.pipeline.inference import with_schemas
        from millstream.pipeline.wire_schemas import with_kept_columns

        state = state_of(loaded)
        try:
            pipeline = with_kept_columns(with_schemas(loaded.pipeline, state.schemas()), state)
            return [Analysed(columns, query) for columns, query in analyse(spark, pipeline, loaded.directory)]
        finally:
            spark.stop()


def planned(loaded: Loaded, *, explain: bool) -> list[SinkPlan]:
    """What a run would do for each sink; with ``explain`` Spark is asked what it makes of the queries."""
    from millstream.pipeline.plan import cores_of, plan
    from millstream.pipeline.reach import require_topics

    with plain_errors(loaded):
        require_topics(loaded.pipeline)
    known = analysed(loaded, deep=explain)
    with plain_errors(loaded):
        return plan(loaded.pipeline, loaded.directory, state_of(loaded), known, cores_of(loaded.pipeline))


def exported(loaded: Loaded, target: str) -> list[str]:
    """Write a project of Spark Declarative Pipelines; returns the paths of its files."""
    with plain_errors(loaded), tempfile.TemporaryDirectory(prefix="millstream-") as place, quiet_engine(place):
        spark = _session(loaded)
        from millstream.pipeline.inference import inferred
        from millstream.pipeline.sdp import export

        try:
            pipeline = inferred(loaded.pipeline, state_of(loaded), pin=False)
            return export(spark, pipeline, loaded.directory, target)
        finally:
            spark.stop()


def run_pipeline(loaded: Loaded, *, once: bool | None, replay: bool, as_json: bool) -> None:
    """Run, show how it goes, and print what it did."""
    with plain_errors(loaded):
        _need_pyspark()
    from millstream.pipeline.runner import prepared

    view = RunView(loaded.pipeline.pipeline)
    opened = prepared(loaded.pipeline, loaded.directory, watch=view, replay=replay)
    _go(loaded, view, opened, loaded.pipeline.trigger.available_now if once is None else once, as_json=as_json)


def backfill_pipeline(loaded: Loaded, *, start: str, end: str | None, wait: bool, as_json: bool) -> None:
    """Read history, show how it goes, and print what was done."""
    with plain_errors(loaded):
        _need_pyspark()
    from millstream.pipeline.backfill import prepared_backfill

    view = RunView(f"{loaded.pipeline.pipeline} backfill")
    opened = prepared_backfill(loaded.pipeline, loaded.directory, start=start, end=end, wait=wait, watch=view)
    _go(loaded, view, opened, True, as_json=as_json)


def replay_dead_letters(loaded: Loaded, *, as_json: bool) -> None:
    """Replay the dead letters and print what became of them."""
    with plain_errors(loaded):
        _need_pyspark()
    from millstream.pipeline.replay import replay

    with plain_errors(loaded), quiet_engine(state_of(loaded).directory):
        try:
            with RunView(loaded.pipeline.pipeline) as view:
                done = replay(loaded.pipeline, loaded.directory, watch=view)
        finally:
            _stop_spark()
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        show_replayed(done)


def _go(
    loaded: Loaded, view: RunView, opened: AbstractContextManager[Run | Backfill], once: bool, *, as_json: bool
) -> None:
    from millstream.spark.class_archive import made_meanwhile

    with plain_errors(loaded), quiet_engine(state_of(loaded).directory):
        try:
            with view, opened as running, signals_to(running.stop), nullcontext() if once else made_meanwhile():
                summary = running.run(once)
        finally:
            _stop_spark()
    if as_json:
        print_json(msgspec.to_builtins(summary))
    else:
        show_summary(summary)
    if summary.stopped:
        remark("stopped; the next run continues from here")


def _session(loaded: Loaded) -> SparkSession:
    _need_pyspark()
    remark(f"{loaded.pipeline.pipeline}: starting Spark")
    from millstream.pipeline.session import pipeline_session

    return pipeline_session(loaded.pipeline)


def _need_pyspark() -> None:
    from millstream.pipeline.extra import need_extra

    need_extra("pyspark", "pipelines")


def _stop_spark() -> None:
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
