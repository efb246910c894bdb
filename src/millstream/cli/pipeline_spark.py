"""The part of ``millstream pipeline`` that needs Spark."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import msgspec

from millstream.cli.output import print_json, remark
from millstream.cli.pipeline import plain_errors, quiet_engine, signals_to, state_of
from millstream.cli.pipeline_view import RunView, show_summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.document import Loaded
    from millstream.pipeline.plan import SinkPlan


def analysed(loaded: Loaded) -> list[list[tuple[str, str]]]:
    """The columns that each sink gets, as Spark sees them."""
    with plain_errors(loaded), tempfile.TemporaryDirectory(prefix="millstream-") as place, quiet_engine(place):
        spark = _session(loaded)
        from millstream.pipeline.plan import analyse

        try:
            return [columns for columns, _ in analyse(spark, loaded.pipeline, loaded.directory)]
        finally:
            spark.stop()


def planned(loaded: Loaded) -> list[SinkPlan]:
    """What a run would do for each sink."""
    with plain_errors(loaded), tempfile.TemporaryDirectory(prefix="millstream-") as place, quiet_engine(place):
        spark = _session(loaded)
        from millstream.pipeline.plan import plan

        try:
            return plan(spark, loaded.pipeline, loaded.directory, state_of(loaded))
        finally:
            spark.stop()


def run_pipeline(loaded: Loaded, *, once: bool | None, as_json: bool) -> None:
    """Run, show how it goes, and print what it did."""
    with plain_errors(loaded):
        _need_pyspark()
    from millstream.pipeline.run import prepared

    pipeline, state = loaded.pipeline, state_of(loaded)
    with plain_errors(loaded), quiet_engine(state.directory):
        view = RunView(pipeline.pipeline)
        try:
            with view, prepared(pipeline, loaded.directory, watch=view) as running, signals_to(running.stop):
                summary = running.run(pipeline.trigger.available_now if once is None else once)
        finally:
            _stop_spark()
    if as_json:
        print_json(msgspec.to_builtins(summary))
    else:
        show_summary(summary)
    if summary.stopped:
        remark("stopped; the next run goes on from here")


def _session(loaded: Loaded) -> SparkSession:
    _need_pyspark()
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
