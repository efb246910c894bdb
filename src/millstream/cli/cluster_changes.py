"""``millstream cluster drain | undrain | decommission | rebalance | move``: maintenance of brokers and replicas.

A command asks the controller, and waits until the cluster has done the work, with a progress bar on a terminal. The
work continues if the command ends; with ``--no-wait`` the command ends when the work has started.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.cluster import cluster_status
from millstream.cli.completion import complete_topics
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S = 0.25
ASK_S = 30.0
"""How long a broker may take for an answer."""

wait_option = click.option("--wait/--no-wait", default=True, help="Wait until it is done; the default.")
broker_argument = click.argument("node", type=int, metavar="ID")
work_timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=3600.0,
    metavar="SECONDS",
    help="How long to wait; the work continues in any case.",
)


@click.command("drain")
@broker_argument
@wait_option
@as_json_option
@bootstrap_option
@work_timeout_option
def drain(node: int, wait: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Move all leaderships off a broker, before maintenance; partitions without another replica stay."""
    change_cluster(bootstrap, {"type": "set_broker_mode", "node": node, "mode": "drained"})

    def left(status: dict[str, Any]) -> int:
        broker = _broker(status, node)
        return broker["leaders"] - broker["leads_alone"] if broker is not None else 0

    _finish(f"broker {node} leads nothing that another one could lead", left, wait, as_json, bootstrap, timeout)


@click.command("undrain")
@broker_argument
@as_json_option
@bootstrap_option
@timeout_option
def undrain(node: int, as_json: bool, bootstrap: str, timeout: float) -> None:
    """End a drain or a decommission of a broker; leaderships return to it by themselves."""
    _ = timeout
    change_cluster(bootstrap, {"type": "set_broker_mode", "node": node, "mode": "serving"})
    _finish(f"broker {node} serves", _nothing_left, False, as_json, bootstrap, ASK_S)


@click.command("decommission")
@broker_argument
@wait_option
@as_json_option
@bootstrap_option
@work_timeout_option
def decommission(node: int, wait: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Move all replicas of a broker to other brokers, then remove it from the cluster permanently."""
    change_cluster(bootstrap, {"type": "set_broker_mode", "node": node, "mode": "leaving"})

    def left(status: dict[str, Any]) -> int:
        broker = _broker(status, node)
        return broker["replicas"] + 1 if broker is not None else 0

    _finish(f"broker {node} has left the cluster", left, wait, as_json, bootstrap, timeout)


@click.command("rebalance")
@wait_option
@as_json_option
@bootstrap_option
@work_timeout_option
def rebalance(wait: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Spread replicas evenly over the brokers, for example after one has joined."""
    limit = time.monotonic() + timeout
    moved = 0
    while True:
        begun = change_cluster(bootstrap, {"type": "balance_replicas"})[0]["moves"]
        moved += begun
        if not begun or not wait:
            break
        _wait(f"{moved} replicas", _moves_left, bootstrap, max(limit - time.monotonic(), _LOOK_S))
    if as_json:
        print_json({"moves": moved, "waited": wait})
    else:
        remark(f"{moved} replicas {'have moved' if wait else 'start to move'}" if moved else "the replicas are spread")


@click.command("move")
@click.argument("place", metavar="TOPIC[:PARTITION]", shell_complete=complete_topics)
@click.option("--to", "brokers", metavar="ID,ID,…", help="Brokers that shall hold it, the preferred leader first.")
@click.option("--cancel", is_flag=True, help="Cancel a move in progress.")
@click.option("--execute", is_flag=True, help="Do it where replicas become fewer; without this it is only shown.")
@wait_option
@as_json_option
@bootstrap_option
@work_timeout_option
def move(
    place: str,
    brokers: str | None,
    cancel: bool,
    execute: bool,
    wait: bool,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Move the replicas of a topic, or of one of its partitions, to other brokers. A move that leaves fewer replicas
    than there are is only shown without --execute.
    """
    if (brokers is None) == (not cancel):
        raise WrongUsage("give either --to ID,ID,… or --cancel")
    topic, _, index = place.rpartition(":") if ":" in place else (place, "", "")
    try:
        nodes = None if brokers is None else [int(part) for part in brokers.split(",")]
        wanted = int(index) if index else None
    except ValueError:
        raise WrongUsage("brokers and partitions are numbers, as in 'orders:0 --to 1,2,3'") from None
    held = replicas_of(topic, bootstrap) if wanted is None or nodes is not None else {}
    indexes = sorted(held) if wanted is None else [wanted]
    if nodes is not None and not execute:
        fewer = [(each, held[each]) for each in indexes if len(set(nodes)) < len(held.get(each, ()))]
        if fewer:
            _show_fewer(topic, fewer, nodes, as_json=as_json)
            return
    parts = [[topic, each, nodes] for each in indexes]
    change_cluster(bootstrap, {"type": "reassign_partitions", "partitions": parts})

    def left(status: dict[str, Any]) -> int:
        return sum(one["topic"] == topic and one["partition"] in indexes for one in status["moves"])

    _finish(f"{place} is where it shall be", left, wait, as_json, bootstrap, timeout)


def change_cluster(bootstrap: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask the controller for a change; returns a result for each part of the request.

    Raises:
        CommandFailed: the controller refuses (with its message), or does not answer.
    """
    url = http_url(bootstrap, ASK_S, "/v1/cluster", "takes no changes of its cluster")
    results: list[dict[str, Any]] = ask_http(url, ASK_S, json.dumps(request).encode())["results"]
    refused = [one["message"] or one["error"] for one in results if one["error"]]
    if refused and not cluster_status(bootstrap, ASK_S)["brokers"]:
        raise CommandFailed(f"{bootstrap} is a single broker: there is no other that could take anything over")
    if refused:
        raise CommandFailed("; ".join(dict.fromkeys(refused)))
    return results


def wait_for_moves(topic: str, bootstrap: str, timeout_s: float) -> None:
    """Wait until no partition of a topic moves."""
    _wait(
        f"replicas of {topic}",
        lambda status: sum(one["topic"] == topic for one in status["moves"]),
        bootstrap,
        timeout_s,
    )


def _show_fewer(topic: str, fewer: list[tuple[int, list[int]]], nodes: list[int], *, as_json: bool) -> None:
    """The replicas that a move would delete."""
    rows = [(f"{topic}:{index}", held, nodes, [node for node in held if node not in nodes]) for index, held in fewer]
    if as_json:
        print_json([dict(zip(("partition", "replicas", "new", "deleted"), row, strict=True)) for row in rows])
        return
    shown = [(row[0], *(",".join(map(str, nodes)) for nodes in row[1:])) for row in rows]
    print_table(["PARTITION", "REPLICAS", "NEW", "DELETED"], shown)
    remark("nothing was moved: these partitions would have fewer replicas; --execute does it")


def replicas_of(topic: str, bootstrap: str) -> dict[int, list[int]]:
    """The brokers that hold each partition of a topic."""
    from millstream.cli.connect import admin_client, explained

    with explained(f"topic '{topic}'", bootstrap):
        found = admin_client(bootstrap).list_topics(timeout=ASK_S).topics.get(topic)
    if found is None or not found.partitions:
        raise CommandFailed(f"there is no topic '{topic}'")
    return {number: list(partition.replicas) for number, partition in found.partitions.items()}


def _finish(
    what: str, left: Callable[[dict[str, Any]], int], wait: bool, as_json: bool, bootstrap: str, timeout_s: float
) -> None:
    if wait:
        _wait(what, left, bootstrap, timeout_s)
    if as_json:
        print_json({"result": what if wait else "begun"})
    else:
        remark(
            what if wait or left is _nothing_left else "it has started; 'millstream cluster health' shows how far it is"
        )


def _wait(what: str, left: Callable[[dict[str, Any]], int], bootstrap: str, timeout_s: float) -> None:
    """Wait until the work is done, with a progress bar."""
    limit = time.monotonic() + timeout_s
    first = 0
    with terminal_bar() as bar:
        task = None if bar is None else bar.add_task(what, total=None)
        while True:
            still = left(cluster_status(bootstrap, ASK_S))
            first = max(first, still)
            if bar is not None and task is not None:
                bar.update(task, total=max(first, 1), completed=first - still)
            if not still:
                return
            if time.monotonic() >= limit:
                raise CommandFailed(f"{still} are left after {timeout_s:.0f} s; the work continues: {what}")
            time.sleep(_LOOK_S)


def terminal_bar() -> Any:
    """A bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(file=sys.stderr), transient=True)


def _broker(status: dict[str, Any], node: int) -> dict[str, Any] | None:
    return next((broker for broker in status["brokers"] if broker["id"] == node), None)


def _moves_left(status: dict[str, Any]) -> int:
    return int(status["moves_count"])


def _nothing_left(_: dict[str, Any]) -> int:
    return 0
