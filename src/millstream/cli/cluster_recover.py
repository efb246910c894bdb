"""``millstream cluster recover --unsafe``: continue without permanently lost brokers that were a majority.

::

    ask every survivor ► plan (`core.controller.recovery_plan`) ► show it ──--execute──► the controller's log, if need
    be: the survivor with the newest one leads it alone ► the controller retires the disks of the lost brokers ► each
    partition: the survivor with the newest log leads it alone ► wait until all are led

Without ``--execute`` nothing is changed. Each step can be repeated, so an interrupted recovery is completed by the same
command. Survivors are asked over HTTP, also those that wait for a majority after a restart.
"""

from __future__ import annotations

import getpass
import json
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from millstream.cli.broker_http import ask_http, http_address, http_url
from millstream.cli.cluster_changes import ASK_S
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import emit, print_json, print_table, remark
from millstream.core.controller.recovery_plan import CONTROLLER_GROUP, RecoveryPlan, Survivor, plan_recovery
from millstream.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S: Final = 0.5
_NAMED: Final = 50
"""Maximum number of partitions in the table; ``--json`` has all of them."""


@click.command("recover")
@click.option("--unsafe", is_flag=True, help="Say that you know that records may be lost. Required.")
@click.option("--lost", required=True, metavar="ID,ID,…", help="Brokers that never come back; all of them.")
@click.option(
    "--survivor",
    "survivors",
    multiple=True,
    metavar="HOST:PORT",
    help="HTTP address of each broker that is left (`--http` of its start). Without it that of --bootstrap.",
)
@click.option("--execute", is_flag=True, help="Do it. Without this option the command only says what would be done.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=120.0,
    metavar="SECONDS",
    help="How long to wait for each step; the command can be repeated.",
)
@as_json_option
@bootstrap_option
def recover(
    unsafe: bool,
    lost: str,
    survivors: tuple[str, ...],
    execute: bool,
    timeout: float,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Continue without a lost majority of the brokers; records that only lost brokers had are lost."""
    if not unsafe:
        raise WrongUsage(
            "records may be lost: read 'Most brokers are lost' in the page on operations, then give --unsafe"
        )
    try:
        nodes = sorted({int(part) for part in lost.split(",")})
    except ValueError:
        raise WrongUsage("--lost takes the ids of brokers, as in '--lost 2,3'") from None
    urls = [http_address(survivor) for survivor in survivors]
    if not urls:
        urls = [http_url(bootstrap, ASK_S, "", "cannot be asked for its replicas")]
    recovery = _Recovery(urls, nodes, timeout)
    plan = recovery.plan()
    if as_json:
        print_json({"executed": execute, **msgspec.to_builtins(plan)})
    else:
        _show(plan, nodes)
    if execute:
        recovery.execute(plan)
        remark("every partition that a survivor holds has a leader; replace the lost brokers now, or let them go")
    elif not as_json:
        remark("nothing was changed; with --execute it is done")


def _show(plan: RecoveryPlan, lost: list[int]) -> None:
    nodes = ", ".join(map(str, lost))
    if plan.controller is not None:
        emit(f"- the controller's log has lost its majority: broker {plan.controller.survivor} continues it alone\n")
    if plan.undeclared:
        emit(f"- the data directories of the brokers {nodes} are retired: none of them ever comes back\n")
    at_risk = [part for part in plan.partitions if part.may_lose_acknowledged and part.survivor is not None]
    gone = [part for part in plan.partitions if part.survivor is None]
    emit(
        f"- partitions that have lost their majority: {len(plan.partitions)}; {len(at_risk)} of them may lose records "
        f"that were acknowledged, {len(gone)} cannot be recovered\n"
    )
    emit("- a partition that only lost brokers held is in none of these: its records are lost\n\n")
    if plan.partitions:
        print_table(
            ["PARTITION", "#SURVIVOR", "#KEPT UP TO", "MAY BE LOST"],
            [
                (
                    f"{part.topic}/{part.partition}",
                    "-" if part.survivor is None else part.survivor,
                    part.end_offset,
                    "acknowledged records from there on"
                    if part.may_lose_acknowledged
                    else "records that were not acknowledged with acks=all",
                )
                for part in plan.partitions[:_NAMED]
            ],
        )
        if len(plan.partitions) > _NAMED:
            emit(f"and {len(plan.partitions) - _NAMED} more; --json has all of them\n")


class _Recovery:
    """One run of the command."""

    def __init__(self, urls: list[str], lost: list[int], timeout_s: float) -> None:
        self._urls = urls
        self._lost = lost
        self._timeout_s = timeout_s
        self._by_node: dict[int, str] = {}
        self._reason = who_and_when("millstream cluster recover --unsafe")

    def plan(self) -> RecoveryPlan:
        """Ask the survivors. Raises CommandFailed if one does not answer, or if there is nothing to recover."""
        survivors = self._survivors()
        try:
            return plan_recovery(survivors, self._lost)
        except Rejected as error:
            raise CommandFailed(error.message) from None

    def execute(self, plan: RecoveryPlan) -> None:
        """Carry out the plan, step by step."""
        if plan.controller is not None:
            if plan.controller.survivor is None:
                raise CommandFailed("no survivor has the whole controller's log: this cluster cannot be recovered")
            node = plan.controller.survivor
            remark(f"broker {node} takes over the controller's log")
            self._wait(f"broker {node} leads the controller's log", lambda: self._lead(node, [CONTROLLER_GROUP]))
        self._wait("there is a controller", lambda: any(one.controller is not None for one in self._survivors()))
        remark(f"the controller retires the data directories of the brokers {', '.join(map(str, self._lost))}")
        self._wait("the lost brokers are retired", self._declared)
        remark("the survivors take over the partitions")
        self._wait("every partition has a leader", self._led)

    def _declared(self) -> bool:
        """Have the lost brokers declared lost; whether every survivor knows it."""
        survivors = self._survivors()
        known = [broker.lost for one in survivors for broker in one.brokers if broker.id in self._lost]
        if known and all(known) and len(known) == len(survivors) * len(self._lost):
            return True
        request = json.dumps({"type": "declare_lost", "nodes": self._lost, "reason": self._reason}).encode()
        results = ask_http(f"{self._urls[0]}/v1/cluster", ASK_S, request)["results"]
        refused = [one["message"] or one["error"] for one in results if one["error"]]
        if refused:
            raise CommandFailed(refused[0])
        return False

    def _led(self) -> bool:
        """Let survivors lead the groups that have no majority; whether none is left."""
        try:
            plan = plan_recovery(self._survivors(), self._lost)
        except Rejected as error:
            raise CommandFailed(error.message) from None
        left = [part for part in plan.partitions if part.survivor is not None]
        for node in sorted({part.survivor for part in left if part.survivor is not None}):
            self._lead(node, [part.group for part in left if part.survivor == node])
        return not left

    def _lead(self, node: int, groups: list[int]) -> bool:
        """Let a survivor lead groups alone. It refuses while it has not missed their leader yet."""
        order = {"groups": groups, "lost": self._lost, "reason": self._reason}
        ask_http(f"{self._by_node[node]}/v1/recovery", ASK_S, json.dumps(order).encode())
        return True

    def _survivors(self) -> list[Survivor]:
        found: list[Survivor] = []
        for url in self._urls:
            answer: Any = ask_http(f"{url}/v1/recovery", ASK_S)
            survivor = msgspec.convert(answer, Survivor)
            self._by_node[survivor.node_id] = url
            found.append(survivor)
        return found

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        """Try until it is so; a refusal may be a matter of seconds."""
        limit = time.monotonic() + self._timeout_s
        while True:
            why = ""
            try:
                if done():
                    return
            except CommandFailed as failure:
                why = f": {failure}"
            if time.monotonic() >= limit:
                raise CommandFailed(f"not after {self._timeout_s:.0f} s: {what}{why}; give the command again")
            time.sleep(_LOOK_S)


def who_and_when(what: str) -> str:
    """For the log of the cluster: what is done, by whom, where and when."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{what} by {user}@{socket.gethostname()} at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"
