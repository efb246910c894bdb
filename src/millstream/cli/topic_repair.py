"""``millstream topic repair NAME:PARTITION``: bring a partition back that a broker does not serve.

The command asks the broker that ``--bootstrap`` names, which has to hold a replica. Without ``--execute`` it says what
it would do and what that costs, and nothing changes.
"""

from __future__ import annotations

import json

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, remark

_STEPS = {
    "open": "open it again, with its records that were put aside: nothing is lost",
    "install": "put its files aside and have the replica filled by the partition's leader: nothing is lost",
    "cut": "cut it back to its last sound batch",
}
_DONE = {
    "open": "it was opened again; nothing is lost",
    "install": "its files were put aside; the partition's leader fills the replica",
    "cut": "it was cut back to its last sound batch",
}


@click.command("repair")
@click.argument("place", metavar="NAME:PARTITION")
@click.option("--execute", is_flag=True, help="Do it. Without this the command only says what it would do.")
@as_json_option
@bootstrap_option
@timeout_option
def repair(place: str, execute: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Bring a partition back that this broker does not serve (KAFKA_STORAGE_ERROR)."""
    name, _, index = place.rpartition(":")
    if not name or not index.isdigit():
        raise WrongUsage(f"{place} is no partition: NAME:PARTITION is wanted, for example orders:0")
    url = http_url(bootstrap, timeout, "/v1/partitions/repair", "repairs nothing")
    body = json.dumps({"topic": name, "partition": int(index), "execute": execute}).encode()
    answer = ask_http(url, max(timeout, 600.0) if execute else max(timeout, 60.0), body)
    if as_json:
        print_json(answer)
        return
    remark(f"{place} is not served: {answer['reason']}" if not answer["done"] else f"{place} is served again")
    step = answer["step"]
    remark(f"{'done' if answer['done'] else 'a repair would'}: {(_DONE if answer['done'] else _STEPS)[step]}")
    if step == "cut":
        end = f"; it ends at offset {answer['end_offset']}" if answer["end_offset"] >= 0 else ""
        remark(f"{answer['lost']} records {'are' if answer['done'] else 'would be'} lost{end}")
    if not answer["done"]:
        remark(f"nothing was changed; 'millstream topic repair {place} --execute' does it")
