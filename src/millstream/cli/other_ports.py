"""What answers at an address where no broker does, for the advice in an error.

A broker has up to four ports, and a newcomer takes one for another. The HTTP port is recognised by its answer; every
other one is something that takes connections.
"""

from __future__ import annotations

import socket
from enum import Enum
from typing import Final

from millstream.config.forms import parse_endpoint
from millstream.errors import Rejected, Unavailable

_PATIENCE_S: Final = 1.0


class Found(Enum):
    """Who listens at an address."""

    NOTHING = "nothing"
    HTTP = "http"
    SOMETHING = "something"


def what_answers(bootstrap: str) -> Found:
    """Look at the addresses in their order; the first that takes a connection decides."""
    from millstream.cli.failure import with_port

    for text in bootstrap.split(","):
        try:
            with socket.create_connection(parse_endpoint(with_port(text.strip())), _PATIENCE_S) as connection:
                return _asked(connection)
        except (OSError, ValueError):
            continue
    return Found.NOTHING


def _asked(connection: socket.socket) -> Found:
    """What a connection answers to a request of HTTP; Kafka's protocol ends such a connection without a byte."""
    try:
        connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        return Found.HTTP if connection.recv(5) == b"HTTP/" else Found.SOMETHING
    except OSError:
        return Found.SOMETHING


def tls_advice(bootstrap: str) -> str:
    """What stands between this command and the first address that takes a connection, if it is TLS; else empty."""
    from millstream.cli import identity
    from millstream.cli.failure import with_port
    from millstream.client.security import Security, secured

    mine = identity.security()
    for text in bootstrap.split(","):
        try:
            address = parse_endpoint(with_port(text.strip()))
            connection = socket.create_connection(address, _PATIENCE_S)
        except (OSError, ValueError):
            continue
        asked = mine if mine.speaks_tls else Security("SSL", check_name=False, verify=False)
        try:
            secured(connection, address.host, asked).close()
        except Rejected as error:
            return error.message if mine.speaks_tls else ""
        except Unavailable:
            return "the connection ends in the TLS handshake; is it a port without TLS?" if mine.speaks_tls else ""
        if mine.speaks_tls:
            return ""
        return (
            "the broker takes TLS only; add -X security.protocol=SSL -X ssl.ca.location=FILE, or name a file of such "
            "properties with --command-config, or a profile"
        )
    return ""
