"""``millstream job``: work on whole topics, done by Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from millstream.cli import identity
from millstream.cli.completion import complete_topics
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import print_facts, print_json, remark

if TYPE_CHECKING:
    from millstream.spark.repartition import Copied

_DIRECTORY = os.path.join(".millstream", "jobs")


@click.command("repartition")
@click.argument("source", metavar="SOURCE", shell_complete=complete_topics, help="Topic to copy.")
@click.argument(
    "target",
    metavar="TARGET",
    shell_complete=complete_topics,
    help="Topic to copy to: an existing one without records.",
)
@click.option("--id", "job_id", metavar="ID", help="Name of the job; SOURCE-to-TARGET if not given.")
@click.option("--state", metavar="DIR", default=_DIRECTORY, help="Directory that keeps how far jobs are.")
@click.option("--batch", metavar="SIZE", default="256MiB", help="Bytes of log that one micro-batch covers.")
@click.option("--cores", metavar="N", type=click.IntRange(min=1), help="Cores of a local Spark. Default: all.")
@bootstrap_option
@as_json_option
def repartition(
    source: str,
    target: str,
    job_id: str | None,
    state: str,
    batch: str,
    cores: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Copy a topic into one with other partitions: each record once, those of a key in their order.

    It copies what there is when the job starts, with keys, headers and timestamps. Run the same command again to
    continue an interrupted job. A finished job does nothing.
    """
    from millstream.cli.spark_work import plain_errors, quiet_engine, signals_to
    from millstream.config.forms import parse_size
    from millstream.pipeline.extra import need_extra

    directory = os.path.join(state, job_id or f"{source}-to-{target}")
    try:
        batch_bytes = parse_size(batch)
    except ValueError:
        raise WrongUsage(f"--batch must be a size such as 256MiB, not {batch!r}") from None
    stopping: list[bool] = []
    with plain_errors():
        need_extra("pyspark", "jobs")
        from millstream import spark as ms
        from millstream.spark.repartition import begin, run

        job = begin(bootstrap, source, target, directory, security=identity.security())
        shown = [0]

        def watch(rows: int, batches: int) -> None:
            if batches > shown[0]:
                shown[0] = batches
                remark(f"{source}: {rows:,} records in {batches} batches")

        with quiet_engine(directory), signals_to(lambda: stopping.append(True)):
            spark = ms.session(f"repartition {source}", cores=cores, conf={"spark.ui.enabled": "false"})
            try:
                spark.sparkContext.setLogLevel("ERROR")
                done = run(
                    spark,
                    bootstrap,
                    job,
                    directory,
                    batch_bytes=batch_bytes,
                    watch=watch,
                    stopped=lambda: bool(stopping),
                    properties=identity.brokers_properties(),
                )
            finally:
                spark.stop()
    show(done, as_json=as_json, stopped=bool(stopping))


def show(done: Copied, *, as_json: bool, stopped: bool) -> None:
    """Print what a run did."""
    import msgspec

    if as_json:
        print_json({**msgspec.to_builtins(done), "stopped": stopped})
        return
    print_facts(
        [
            ("source", done.source),
            ("target", done.target),
            ("offsets of the job", f"{done.offsets:,}"),
            ("records, this run", f"{done.rows:,}"),
            ("batches, this run", done.batches),
            ("seconds", f"{done.seconds:.1f}"),
        ]
    )
    if stopped:
        remark("stopped; the same command continues from here")
