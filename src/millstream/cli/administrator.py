"""The connection of commands that change users and rights: the broker's socket file, or its address.

With ``--data DIR`` the command connects to ``DIR/admin.sock``, where the user that runs the broker is a superuser. Else
it connects to ``--bootstrap``, and needs the rights of its login there.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from millstream.cli import identity
from millstream.cli.explained import explain_error
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.what_answers import with_port
from millstream.config.forms import parse_endpoint
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.client.connection import Connection

SOCKET_FILE: Final = "admin.sock"

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Data directory of a broker on this machine: connect through its socket file, as a superuser.",
)


@contextmanager
def administrator(data: str | None, bootstrap: str, timeout_s: float, what: str) -> Generator[Connection]:
    """A connection; errors in the block become sentences about ``what``."""
    from millstream.client.connection import Connection

    place = bootstrap if data is None else os.path.join(data, SOCKET_FILE)
    try:
        if data is not None:
            if not os.path.exists(place):
                raise CommandFailed(f"there is no {place}: no broker runs on {data}")
            opened = Connection(os.path.abspath(place), 0, client_id="millstream-cli", timeout_s=timeout_s)
        else:
            try:
                host, port = parse_endpoint(with_port(bootstrap.split(",", maxsplit=1)[0].strip()))
            except ValueError:
                raise WrongUsage(f"--bootstrap: {bootstrap!r} is not valid, expected HOST:PORT") from None
            opened = Connection(
                host, port, client_id="millstream-cli", timeout_s=timeout_s, security=identity.security()
            )
        with opened as connection:
            yield connection
    except MillstreamError as error:
        raise explain_error(error, what, place) from None
