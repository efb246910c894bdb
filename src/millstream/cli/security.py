"""``millstream security``: authorities, certificates of brokers, and of users."""

from __future__ import annotations

import time
from pathlib import Path

import click

from millstream.cli.failure import CommandFailed
from millstream.cli.key_files import KeyFiles
from millstream.cli.output import emit, remark
from millstream.errors import Rejected

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
host_option = click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="Further name or address of the node; may be repeated."
)
place_option = click.option(
    "--place",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the node's directory will be on its machine (default: where it is made).",
)


@click.command("init")
@directory_argument
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="HOST",
    help="Host by which clients and brokers reach a broker; once for each (default: localhost).",
)
@click.option("--user", default="admin", metavar="NAME", help="Name of the first user.")
@place_option
def init(directory: Path, nodes: tuple[str, ...], user: str, place: Path | None) -> None:
    """Make an authority, certificates of brokers, and a first user with a client's properties file, in DIR."""
    keys = KeyFiles(directory)
    try:
        keys.create(user)
        homes = [keys.add_node(node, [], place) for node in nodes or ("localhost",)]
        client = keys.add_user(user)
    except Rejected as error:
        raise CommandFailed(error.message) from None
    for home in homes:
        remark(f"broker {home.name}: copy {home} to its machine")
    shown = place or homes[0].resolve()
    emit(f"millstream start --config {shown}/broker.properties --listen SSL://{homes[0].name}:9093 --data DATA\n")
    emit(
        f"millstream profile create {user} --bootstrap {homes[0].name}:9093 "
        f"--command-config {client.resolve()}/client.properties\n"
    )


@click.command("renew")
@directory_argument
@click.argument("names", nargs=-1, metavar="[NAME]...", help="Nodes and users (default: all).")
def renew(directory: Path, names: tuple[str, ...]) -> None:
    """Make new keys and certificates in DIR. Brokers read theirs within ten seconds, or at once on SIGHUP."""
    try:
        renewed = KeyFiles(directory).renew(list(names or ()))
    except Rejected as error:
        raise CommandFailed(error.message) from None
    for name, facts in renewed:
        remark(f"{name}: until {time.strftime('%Y-%m-%d', time.gmtime(facts.not_after_s))}")


@click.command("add")
@directory_argument
@click.argument("node", metavar="NODE", help="Host by which clients and brokers reach it.")
@host_option
@place_option
@click.option("--client", is_flag=True, help="NODE is the name of a user: a client's certificate.")
def add(directory: Path, node: str, hosts: tuple[str, ...], place: Path | None, client: bool) -> None:
    """Make the certificates of one more broker, or of a user, by the authorities in DIR."""
    keys = KeyFiles(directory)
    try:
        home = keys.add_user(node) if client else keys.add_node(node, list(hosts or ()), place)
    except Rejected as error:
        raise CommandFailed(error.message) from None
    remark(f"{home} has all that {'the client' if client else 'the broker'} needs")
