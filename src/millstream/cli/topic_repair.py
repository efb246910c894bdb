"""``millstream topic repair NAME:PARTITION``: bring a partition back that a broker does not serve.

::

    topic repair t:0                        the broker of --bootstrap repairs its replica; loses what it says
    topic repair t:0 --unclean --from 2     no replica leads: that of broker 2 is the partition's log from now on

The broker that is asked has to hold a replica. Without ``--execute`` the command says what it would do and what that
costs, and nothing changes.
"""

from __future__ import annotations

import json
from typing import Any

import click

from millstream.cli.broker_http import ask_http, http_url, http_url_of
from millstream.cli.cluster_recover import who_and_when
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, remark

_PATH = "/v1/partitions/repair"
_LACKS = "repairs nothing"
_STEPS = {
    "open": "open it again, with its records that were put aside: nothing is lost",
    "install": "put its files aside and have the replica filled by the partition's leader: nothing is lost",
    "cut": "cut it back to its last sound batch",
    "derive": "derive its file 'epochs' from its batches, and from the object store if it is archived",
}
_DONE = {
    "open": "it was opened again; nothing is lost",
    "install": "its files were put aside; the partition's leader fills the replica",
    "cut": "it was cut back to its last sound batch",
    "derive": "its file 'epochs' was derived; it is led in a new term",
}


@click.command("repair")
@click.argument("place", metavar="NAME:PARTITION")
@click.option("--execute", is_flag=True, help="Do it. Without this the command only says what it would do.")
@click.option(
    "--unclean",
    is_flag=True,
    help="No replica leads, and none will: take that of --from. Records that it lacks are lost, acknowledged or not.",
)
@click.option("--from", "node", type=int, metavar="BROKER", help="The broker whose replica --unclean takes.")
@as_json_option
@bootstrap_option
@timeout_option
def repair(
    place: str, execute: bool, unclean: bool, node: int | None, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Bring a partition back that this broker does not serve (KAFKA_STORAGE_ERROR)."""
    name, _, index = place.rpartition(":")
    if not name or not index.isdecimal():
        raise WrongUsage(f"{place} is no partition: NAME:PARTITION is wanted, for example orders:0")
    if unclean != (node is not None):
        raise WrongUsage("--unclean and --from belong together: --from names the broker whose replica is taken")
    order: dict[str, Any] = {"topic": name, "partition": int(index), "execute": execute}
    if node is None:
        url = http_url(bootstrap, timeout, _PATH, _LACKS)
    else:
        url = http_url_of(bootstrap, node, timeout, _PATH, _LACKS)
        order |= {"unclean_from": node, "reason": who_and_when("millstream topic repair --unclean")}
    answer = ask_http(url, max(timeout, 600.0) if execute else max(timeout, 60.0), json.dumps(order).encode())
    if as_json:
        print_json(answer)
    elif node is not None:
        _show_unclean(place, node, answer)
    else:
        _show(place, answer)


def _show(place: str, answer: dict[str, Any]) -> None:
    remark(f"{place} is not served: {answer['reason']}" if not answer["done"] else f"{place} is served again")
    step = answer["step"]
    remark(f"{'done' if answer['done'] else 'a repair would'}: {(_DONE if answer['done'] else _STEPS)[step]}")
    if step in ("cut", "derive"):
        end = f"; it ends at offset {answer['end_offset']}" if answer["end_offset"] >= 0 else ""
        remark(f"{answer['lost']} records {'are' if answer['done'] else 'would be'} lost{end}")
    if not answer["done"]:
        remark(f"nothing was changed; 'millstream topic repair {place} --execute' does it")


def _show_unclean(place: str, node: int, answer: dict[str, Any]) -> None:
    done, end = answer["done"], answer["end_offset"]
    where = f"offset {end}" if end >= 0 else "its end, which shows when it is opened"
    if done:
        remark(f"{place} is led by broker {node}, whose log is the partition's up to {where}")
    else:
        remark(f"{place} has no leader: {answer['reason']}")
        remark(f"an unclean cut would let the replica of broker {node} be the partition's log, up to {where}")
    verb = "are" if done else "would be"
    if answer["lost"]:
        remark(f"{answer['lost']} records after that, which are damaged on this broker, {verb} lost")
    if missing := answer.get("missing"):
        remark(f"{missing} archived records are in no object of the store, and cannot be read")
    remark(f"records that this replica lacks {verb} lost, acknowledged ones among them; the others are filled from it")
    if not done:
        again = f"millstream topic repair {place} --unclean --from {node}"
        remark(f"nothing was changed; compare with '--from' each other replica, then '{again} --execute' does it")
