"""``millstream pipeline serve``: the tables of all topics that are tables, kept up to date by one process."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from millstream.cli import identity
from millstream.cli.failure import WrongUsage
from millstream.cli.options import bootstrap_option
from millstream.cli.output import remark

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command("serve")
@bootstrap_option
@click.option(
    "--directory",
    default=".",
    metavar="DIR",
    help="Relative tables, the embedded Iceberg catalog and the state are in here.",
)
@click.option("--registry", metavar="URL", help="Schema registry to use instead of the broker's own.")
@click.option(
    "--catalog", multiple=True, metavar="NAME=VALUE", help="A property of the Iceberg catalog; may be repeated."
)
@click.option("--spark", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")
@click.option(
    "--replay",
    multiple=True,
    metavar="TOPIC",
    help="Read a topic that was made again, or what its table lost, into the table; may be repeated.",
)
def serve(
    bootstrap: str,
    directory: str,
    registry: str | None,
    catalog: tuple[str, ...],
    spark: tuple[str, ...],
    replay: tuple[str, ...],
) -> None:
    """Keep the table of every topic that is one up to date, until it is stopped.

    A topic is a table when its property table.mode says so: 'millstream topic alter orders --config table.mode=append
    --config table.sink=iceberg:lake.orders'. Several processes may serve one cluster: each topic is run by one of them,
    and another takes over when that one ends.
    """
    from millstream.cli.spark_work import plain_errors, quiet_engine, signals_to
    from millstream.client.schema_registry import REGISTRY_URL
    from millstream.pipeline.extra import need_extra

    with plain_errors():
        need_extra("pyspark", "pipelines")
    from millstream.pipeline.serving.server import Options, Server
    from millstream.pipeline.session import SharedSession
    from millstream.spark.class_archive import made_meanwhile

    if registry is not None and "@" in registry:
        raise WrongUsage("--registry: the URL is shown in the status of tables; say the user by basic.auth.user.info")
    session = SharedSession("millstream pipeline serve", dict(_pairs("--spark", spark)))
    options = Options(
        brokers=bootstrap,
        directory=directory,
        security=identity.properties(),
        registry=registry or identity.properties().get(REGISTRY_URL),
        catalog=dict(_pairs("--catalog", catalog)) if catalog else None,
        replay=frozenset(replay),
    )
    with plain_errors():
        server = Server(options, session, session.alive)
    _log_to_terminal()
    with plain_errors(), quiet_engine(os.path.join(server.directory, ".millstream", "serve")):
        try:
            remark(f"serving the tables of topics at {bootstrap}")
            with signals_to(server.stop), made_meanwhile():
                server.run()
        finally:
            session.stop()
    remark("stopped; the next start continues from here")


def _log_to_terminal() -> None:
    """Show what happens to tables as the command's own lines."""

    class Remarks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            remark(record.getMessage())

    log = logging.getLogger("millstream.pipeline")
    log.addHandler(Remarks())
    log.setLevel(logging.INFO)
    log.propagate = False


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise WrongUsage(f"{option}: {text!r} is not valid, expected NAME=VALUE")
        found.append((name.strip(), value))
    return found
