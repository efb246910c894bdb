"""``millstream cache``: the hit rates of a broker's caches, and the size that the warm cache needs.

A read goes to each cache after the caches above it miss. The hit rate of a cache is the share of these reads that it
served.
"""

from __future__ import annotations

from typing import Any, Final

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table
from millstream.config.forms import human_size

_ORDINALS: Final = {2: "2nd", 3: "3rd"}


@click.command("status")
@as_json_option
@bootstrap_option
@timeout_option
def status(as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show the hit rates of all caches of a broker, and the size that the warm cache needs for each further group."""
    answer = ask_http(http_url(bootstrap, timeout, "/v1/cache", "tells nothing of its caches"), timeout)
    if as_json:
        print_json(answer)
        return
    print_facts(_facts(answer))
    emit("\n")
    print_table(["SERVED BY", "#COUNT", "UNIT", "#HIT RATE"], _rates(answer["served"]))
    emit("\n")
    print_table(
        ["GROUP", "#WARM CACHE NEEDS", "FITS"],
        [
            (
                _ORDINALS.get(one["group"], f"{one['group']}th"),
                human_size(one["needed_bytes"]),
                "yes" if one["fits"] else "no: cache.max.size.bytes is too small to serve it",
            )
            for one in answer["groups"]
        ],
        empty="no two readers follow each other in the archive now, so nothing tells what the warm cache needs",
    )


def _facts(answer: dict[str, Any]) -> list[tuple[str, object]]:
    if answer["type"] == "none":
        return [("warm cache", "none; cache.type=nvme or memory makes one")]
    left = ", ".join(f"{count} {reason}" for reason, count in answer["evicted"].items() if count) or "none"
    return [
        ("warm cache", answer["type"] + ("" if answer["is_on"] else ", switched off for a minute: see the log")),
        ("policy, fill", f"{answer['policy']}, {answer['fill']}"),
        ("size", f"{human_size(answer['size_bytes'])} of {human_size(answer['size_bytes_max'])}"),
        ("blocks", answer["blocks"]),
        ("left it", left),
        ("dropped fills", answer["dropped_fills"]),
    ]


def _rates(served: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """The hit rate of each cache. The last source of a unit serves all reads that reach it."""
    rows: list[tuple[object, ...]] = []
    for number, one in enumerate(served):
        reached = sum(other["count"] for other in served[number:] if other["unit"] == one["unit"])
        rows.append((one["by"], one["count"], one["unit"], f"{one['count'] / reached:.1%}" if reached else "-"))
    return rows
