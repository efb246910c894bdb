"""``millstream pipeline``: check, plan and run declared pipelines, see how far they are, end them.

Spark, and all else that takes long to import, is imported by the command that needs it.
"""

from __future__ import annotations

import click

from millstream.cli.options import as_json_option
from millstream.cli.output import emit, print_json, remark
from millstream.cli.pipeline_file import load_file, state_of
from millstream.cli.spark_work import plain_errors

file_argument = click.argument("file", metavar="FILE", help="The pipeline's YAML file.")
brokers_option = click.option(
    "--bootstrap", metavar="HOST:PORT", help="Broker to use instead of the one that the file names."
)


@click.command("check")
@file_argument
@click.option("--deep", is_flag=True, help="Let Spark look at the queries; takes the seconds that Spark starts in.")
def check(file: str, deep: bool) -> None:
    """Check a pipeline: the file, and names and types in its queries. Asks no broker, changes nothing."""
    from millstream.cli.pipeline_spark import analysed
    from millstream.pipeline.checks import shown_mode, sink_name

    loaded = load_file(file)
    found = analysed(loaded, deep=deep)
    emit(f"{file}: pipeline {loaded.pipeline.pipeline} is well-formed\n")
    for sink, known in zip(loaded.pipeline.sinks, found, strict=True):
        if known.columns is not None:
            mode = "" if sink.mode == "append" else f" ({shown_mode(sink)})"
            emit(f"  {sink_name(sink)}{mode}: {', '.join(f'{name} {kind}' for name, kind in known.columns)}\n")


@click.command("plan")
@file_argument
@click.option("--explain", is_flag=True, help="Also show Spark's query; takes the seconds that Spark starts in.")
@brokers_option
@as_json_option
def plan(file: str, explain: bool, bootstrap: str | None, as_json: bool) -> None:
    """Show what a run would do now: offsets, bytes, tasks, columns, an estimate. Changes nothing."""
    from millstream.cli.pipeline_spark import planned
    from millstream.cli.pipeline_view import show_plan

    loaded = load_file(file, bootstrap)
    plans = planned(loaded, explain=explain)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(plans))
    else:
        show_plan(loaded.pipeline, plans)


@click.command("run")
@file_argument
@click.option("--once", is_flag=True, help="Read what there is and end.")
@click.option(
    "--replay", is_flag=True, help="Read again what a table lost that was set back, and a topic that was made again."
)
@brokers_option
@as_json_option
def run(file: str, once: bool, replay: bool, bootstrap: str | None, as_json: bool) -> None:
    """Run a pipeline until it has read everything (--once, or available_now) or is stopped; then print a summary.

    The run takes over from another one of the same pipeline, on any host. A table that was set back to an
    older version, and a topic that was deleted and made again, are refused unless --replay is given.
    """
    from millstream.cli.pipeline_spark import run_pipeline

    run_pipeline(load_file(file, bootstrap), once=True if once else None, replay=replay, as_json=as_json)


@click.command("backfill")
@file_argument
@click.option("--from", "start", default="earliest", metavar="LIMIT", help="Where history starts.")
@click.option("--to", "end", metavar="LIMIT", help="Where it ends; without it, where the pipeline started.")
@click.option("--wait", is_flag=True, help="Wait for an end that the topics have not reached.")
@brokers_option
@as_json_option
def backfill(file: str, start: str, end: str | None, wait: bool, bootstrap: str | None, as_json: bool) -> None:
    """Read history into the tables, up to where the pipeline started. The pipeline may run at the same time.

    A LIMIT is earliest, an offset, a time in ISO 8601, or offsets of some partitions, such as 0=1000,1=2000. What the
    tables hold already is left out, and said: the same command again reads nothing twice, and what a backfill that was
    ended has not read.
    """
    from millstream.cli.pipeline_spark import backfill_pipeline

    backfill_pipeline(load_file(file, bootstrap), start=start, end=end, wait=wait, as_json=as_json)


@click.command("replay-dlq")
@file_argument
@brokers_option
@as_json_option
def replay_dlq(file: str, bootstrap: str | None, as_json: bool) -> None:
    """Make rows of the dead letters that decode now, and take them out of their table; the others stay."""
    from millstream.cli.pipeline_spark import replay_dead_letters

    replay_dead_letters(load_file(file, bootstrap), as_json=as_json)


@click.command("export")
@file_argument
@click.option(
    "--sdp",
    "target",
    required=True,
    metavar="DIRECTORY",
    help="Write a project of Spark Declarative Pipelines there.",
)
@brokers_option
def export(file: str, target: str, bootstrap: str | None) -> None:
    """Write the pipeline as a project of Spark Declarative Pipelines, which spark-pipelines runs."""
    from millstream.cli.pipeline_spark import exported

    for path in exported(load_file(file, bootstrap), target):
        emit(f"{path}\n")
    remark("run it there: spark-pipelines run --conf spark.sql.catalogImplementation=hive")


@click.command("status")
@file_argument
@as_json_option
def status(file: str, as_json: bool) -> None:
    """Show how far a pipeline is, and whether it runs."""
    from millstream.cli.pipeline_view import show_status

    loaded = load_file(file)
    state = state_of(loaded)
    show_status(loaded.pipeline.pipeline, state, as_json=as_json)


@click.command("stop")
@file_argument
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, metavar="SECONDS", help="How long to wait.")
def stop(file: str, timeout: float) -> None:
    """Ask a running pipeline to end after the batch that it is at, and wait for that."""
    loaded = load_file(file)
    state = state_of(loaded)
    with plain_errors():
        stopped = [place.stop(timeout) for place in (state, state.backfill())]
    remark(
        f"{loaded.pipeline.pipeline} has stopped" if any(stopped) else f"{loaded.pipeline.pipeline} does not run here"
    )
