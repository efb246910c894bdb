"""``millstream dev``: a cluster of several brokers on this machine, to try things out and to develop against."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.dev_cluster import DevCluster
from millstream.cli.output import emit, emit_now, remark

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Directory of the cluster: a data directory and a log file for each broker, and cluster.json.",
)


@click.command("cluster")
@click.option("--brokers", "-n", type=click.IntRange(1, 9), default=3, metavar="N", help="Number of brokers.")
@data_option
@click.option("--keep", is_flag=True, help="Continue with the earlier data instead of an empty broker.")
@click.option("--shards", type=click.IntRange(1, 256), default=1, metavar="N", help="Shards of each broker.")
@click.option("--memory", default="128MiB", metavar="SIZE", help="Memory budget of each broker.")
@click.option(
    "--shared", is_flag=True, help="Topics are shared (storage.mode=shared), with their objects in DIR/bucket."
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS everywhere, with certificates in DIR/security; clients use its users/admin/client.properties.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of every broker; may be repeated."
)
def cluster(
    brokers: int,
    data: Path,
    keep: bool,
    shards: int,
    memory: str,
    shared: bool,
    secure: bool,
    settings: tuple[str, ...],
) -> None:
    """Start a cluster on this machine, print one line when it serves, and stop it on Ctrl-C or SIGTERM."""
    dev = DevCluster(data)
    if shared:
        from millstream.objects.url import directory_url

        bucket = f"objects.url={directory_url(str(data.resolve() / 'bucket'))}"
        settings = (bucket, "storage.mode.default=shared", *settings)
    options = ["--shards", str(shards), "--memory", memory, *(word for each in settings for word in ("--set", each))]
    with dev.running(brokers, options, keep=keep, secure=secure):
        emit(f"millstream cluster of {len(dev.brokers)} ready: bootstrap {dev.bootstrap}\n")
        if secure:
            emit(f"clients: --command-config {dev.client_properties}\n")
        emit_now()
        dev.wait()


@click.command("restart")
@click.argument("node", type=click.IntRange(min=1), metavar="ID", help="Id of the broker.")
@data_option
def restart(node: int, data: Path) -> None:
    """Start a broker of a running dev cluster again, on its data; one that still runs is stopped first."""
    broker = DevCluster(data).restart(node)
    remark(f"broker {node} is ready: bootstrap {broker.bootstrap}, process {broker.pid}")
