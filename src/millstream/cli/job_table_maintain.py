"""``millstream job table-maintain``: small files merged and old versions expired in a pipeline's tables."""

from __future__ import annotations

import click

from millstream.cli.options import as_json_option
from millstream.cli.output import print_json, print_table, remark


@click.command("table-maintain")
@click.argument("file", metavar="FILE", help="The pipeline's YAML file.")
@click.option(
    "--keep-days", metavar="DAYS", type=click.IntRange(min=1), default=7, help="Versions younger than that stay."
)
@as_json_option
def table_maintain(file: str, keep_days: int, as_json: bool) -> None:
    """Merge small files and expire old versions in the Delta and Iceberg tables of a pipeline, while it does not run.

    Readers see the same rows throughout. Run the same command again to continue an interrupted run.
    """
    import msgspec

    from millstream.cli.pipeline_file import load_file
    from millstream.cli.spark_work import plain_errors, signals_to
    from millstream.pipeline.maintain import maintain

    loaded = load_file(file)
    stopping: list[bool] = []
    with plain_errors(loaded), signals_to(lambda: stopping.append(True)):
        done = maintain(
            loaded.pipeline,
            loaded.directory,
            keep_days=keep_days,
            watch=lambda table: None if as_json else remark(f"{table} …"),
            stopped=lambda: bool(stopping),
        )
    if as_json:
        print_json({"tables": msgspec.to_builtins(done), "stopped": bool(stopping)})
        return
    print_table(
        ["TABLE", "#FILES MERGED", "#OLD ONES GONE"],
        [(one.table, one.merged, one.expired) for one in done],
        empty="the pipeline has written to no table so far",
    )
    if stopping:
        remark("stopped; the same command continues from here")
