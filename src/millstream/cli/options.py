"""Options that several commands share, declared once."""

from typing import Annotated

import typer

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="MILLSTREAM_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Broker to connect to; several may be given with commas.",
    ),
]
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]

Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to wait for the broker.")
]
TIMEOUT_DEFAULT = 15.0
