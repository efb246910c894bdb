"""``millstream cluster take-over``: the disk of a dead broker, attached to this machine, gives the cluster what it has.

::

    lock DIR ► identity: the next incarnation ► controller: fence the earlier one (`core.controller.taking_over`)
        ► a broker on DIR, here, that leads only what no other can lead ► shared partitions: the tail of the WAL goes
        into objects, committed in order in the new term ► partitions without a majority elsewhere move to live brokers
        ► it stops ► DIR is retired

This command runs the disk's broker once more, until the command ends. So the write-ahead log is recovered, uploaded,
committed and moved by what does that in every broker. If the store takes nothing, records that are not uploaded move as
records. Partitions that have a majority without this disk stay as they are: their broker counts as lost, and is
replaced.

**Crash.** Each step may be repeated, and the command, given again, continues where it was: the new incarnation is on
disk before the controller learns of it, and DIR is retired only when nothing needs it. The broker ends with the
command.
**Refused**, with nothing changed in the cluster: a broker that is alive, a directory in use, a directory of another
broker or cluster, an outdated one.
**The dead broker comes back**, with a copy of the disk or with this one: every broker refuses it.

**The disk is lost**, and brokers have ``shared.wal=object``: `take_over_from_store`.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Final

import click

from millstream.cli.broker_child import BrokerChild
from millstream.cli.cluster import cluster_status
from millstream.cli.cluster_changes import ASK_S
from millstream.cli.connect import admin_client, broker_configs
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import print_json, remark
from millstream.cli.take_over_from_store import TakeOverFromStore
from millstream.cli.taking_over import TakeOver
from millstream.config.forms import Endpoint, parse_endpoint
from millstream.config.ports import free_ports

_SET_AT_START: Final = 4
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@click.command("take-over")
@click.argument("node", type=int, metavar="ID")
@click.option("--data", metavar="DIR", help="Data directory of the dead broker, on this machine now.")
@click.option(
    "--from-store",
    "work",
    metavar="DIR",
    help="The disk is lost, and the brokers have shared.wal=object: restore its shared partitions from the store. "
    "DIR is empty, or that of an interrupted take-over.",
)
@click.option(
    "--peer-listen",
    metavar="HOST:PORT",
    help="Where the other brokers reach this machine until then. Needed unless all of them are on this machine.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting that the dead broker had; may be repeated. Those of the object store are asked for.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=3600.0,
    metavar="SECONDS",
    help="How long to wait for each step; the command can be repeated.",
)
@as_json_option
@bootstrap_option
def take_over(
    node: int,
    data: str | None,
    work: str | None,
    peer_listen: str | None,
    settings: tuple[str, ...],
    timeout: float,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Move records that only a dead broker's disk has to live brokers; nothing acknowledged is lost."""
    begun = time.monotonic()
    if (data is None) == (work is None):
        raise WrongUsage("give --data with the disk of the dead broker, or --from-store if its disk is lost")
    directory = data or work or ""
    taking = (TakeOver if work is None else TakeOverFromStore)(node, directory, bootstrap, timeout)
    peers = [one["peer"] for one in cluster_status(bootstrap, ASK_S)["brokers"] if one["id"] != node]
    peer = _peer(peer_listen, peers)
    settings = (*taking.settings, *settings)
    if not taking.fence(peer):
        result: dict[str, Any] = {"broker": node, "done_before": True, "partitions": [], "uploaded_bytes": 0}
    else:
        command = _command(node, directory, peer, peers, settings, bootstrap)
        with closing(BrokerChild(command, directory, timeout)) as child:
            uploaded = taking.upload(child)
            moved = taking.move(child)
        taking.retire(moved)
        names = [f"{place.topic}/{place.partition}" for place in moved]
        result = {"broker": node, "done_before": False, "partitions": names, "uploaded_bytes": uploaded}
    result["seconds"] = round(time.monotonic() - begun, 3)
    if as_json:
        print_json(result)
    elif result["done_before"]:
        remark(f"{directory} was taken over before: nothing of it is needed")
    else:
        remark(
            f"{len(result['partitions'])} partitions of broker {node} are led by live brokers; start it again with an "
            f"empty directory and --replace, or let it go with 'millstream cluster decommission {node}'"
        )


def _peer(given: str | None, peers: list[str]) -> Endpoint:
    """Where the others, who are at ``peers``, reach the disk's broker."""
    if given is not None:
        try:
            return parse_endpoint(given)
        except ValueError:
            raise WrongUsage(f"--peer-listen takes HOST:PORT, not '{given}'") from None
    if not all(one.rpartition(":")[0].strip("[]") in _LOOPBACK for one in peers):
        raise WrongUsage("brokers are on other machines: give --peer-listen HOST:PORT, where they reach this one")
    return Endpoint("127.0.0.1", free_ports(1)[0])


def _command(
    node: int, data: str, peer: Endpoint, peers: list[str], settings: tuple[str, ...], bootstrap: str
) -> list[str]:
    """The arguments of the broker on the disk."""
    given = {one.partition("=")[0].strip(): one.partition("=")[2] for one in settings}
    chosen = {"shards.pin": "false", "shared.upload.interval.ms": "200", **_of_the_store(bootstrap), **given}
    host = str(Endpoint(peer.host, 0))
    command = ["--data", data, "--node-id", str(node), "--listen", host, "--http", host]
    command += ["--peer-listen", str(peer), "--seeds", ",".join(peers) or str(peer)]
    for name, value in chosen.items():
        command += ["--set", f"{name}={value}"]
    return command


def _of_the_store(bootstrap: str) -> dict[str, str]:
    """The settings of the object store with which a live broker was started, and whether it may listen in clear."""
    entries = broker_configs(admin_client(bootstrap), bootstrap, ASK_S)
    return {
        name: entry.value
        for name, entry in entries.items()
        if name.startswith(("objects.", "insecure.listeners")) and int(entry.source) == _SET_AT_START and entry.value
    }
