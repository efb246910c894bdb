"""``millstream logger``: which lines a broker writes, by room, for a time."""

from __future__ import annotations

import json
from typing import Any

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark

_ROUTE = "/v1/loggers"
_LACKS = "shows no loggers"


@click.command("list")
@as_json_option
@bootstrap_option
@timeout_option
def list_loggers(as_json: bool, bootstrap: str, timeout: float) -> None:
    """List the loggers of a broker, their levels, and when those end."""
    _show(ask_http(http_url(bootstrap, timeout, _ROUTE, _LACKS), timeout), as_json=as_json)


@click.command("set")
@click.argument("logger", metavar="LOGGER", help="A room, such as raft, or root for all.")
@click.argument("level", metavar="LEVEL", type=click.Choice(["debug", "info", "warn", "error", "default"]))
@click.option(
    "--minutes",
    type=click.FloatRange(0, 1440, min_open=True),
    default=10.0,
    metavar="N",
    help="How long; then the level is the one before.",
)
@as_json_option
@bootstrap_option
@timeout_option
def set_logger(logger: str, level: str, minutes: float, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Give a logger another level for a time. 'default' ends one before its time."""
    wanted = None if level == "default" else level.upper()
    body = json.dumps({"logger": logger, "level": wanted, "minutes": minutes}).encode()
    found = ask_http(http_url(bootstrap, timeout, _ROUTE, _LACKS), timeout, body)
    if as_json:
        print_json(found["loggers"])
    elif wanted is None:
        remark(f"{logger} has its level of before")
    else:
        remark(f"{logger}: lines from {wanted} on are written for {minutes:g} minutes")


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found["loggers"])
        return
    rows = [
        (one["logger"], one["level"], None if one["ends_in_s"] is None else f"in {one['ends_in_s']:.0f} s")
        for one in found["loggers"]
    ]
    print_table(["LOGGER", "LEVEL", "ENDS"], rows)
