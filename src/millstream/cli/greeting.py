"""Whether a broker takes this command, asked with the project's own client before one of librdkafka is made.

librdkafka repeats a login or a handshake that is refused until the time of the command is over, and so it does at a
port that is not Kafka's: a broker has up to four, and a newcomer takes one for another. Here the first answer decides.
A broker that only takes long is left to librdkafka.
"""

from __future__ import annotations

import socket
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from millstream.cli.explained import mistaken
from millstream.cli.failure import CommandFailed
from millstream.config.forms import Endpoint
from millstream.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from millstream.client.security import Security

GREETING_S: Final = 3.0
"""Longest wait for one answer of a broker."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_REMEDY: Final = "; such properties are given by -X NAME=VALUE, --command-config FILE or a profile"


_CLIENT_ID: Final = b"millstream-cli"


def _frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(head) + len(body)) + head + body


_QUESTIONS: Final = _frame(18, 0, 1, b"") + _frame(3, 1, 2, struct.pack(">i", 0))
"""ApiVersions, and Metadata of no topics: the first request of a client that has not logged in."""


@lru_cache(maxsize=8)
def greet(endpoint: Endpoint, security: Security | None) -> None:
    """Connect as the command will. ``security`` is None without TLS and login.

    Raises:
        CommandFailed: no attempt will succeed: the port is another one, or TLS or the login is refused.
    """
    if security is None:
        if _answers(endpoint):
            return
        _refuse_http(endpoint)  # before the client waits as long once more
    from millstream.client.connection import Connection
    from millstream.client.security import PLAIN
    from millstream.wire.errors import ProtocolError
    from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

    try:
        opened = Connection(
            endpoint.host, endpoint.port, client_id="millstream-cli", timeout_s=GREETING_S, security=security or PLAIN
        )
        with opened as connection:  # the first request shows whether a login is missing
            connection.ask(MetadataRequest(topics=[]), MetadataResponse)
    except (ProtocolError, Unavailable):
        if security is not None:
            _refuse_http(endpoint)
    except Rejected as error:
        raise CommandFailed(error.message + _REMEDY, error.code.name) from None


def _refuse_http(endpoint: Endpoint) -> None:
    """Raise CommandFailed if HTTP answers there."""
    failure = mistaken(f"{endpoint.host}:{endpoint.port}")
    if failure is not None:
        raise failure from None


def _answers(endpoint: Endpoint) -> bool:
    """Whether a broker answers in clear and without a login, by bytes that need none of the client's modules: most
    commands are for such a broker, and start in a tenth of a second.
    """
    try:
        with socket.create_connection(endpoint, GREETING_S) as connection, connection.makefile("rb") as stream:
            connection.sendall(_QUESTIONS)
            for correlation_id in (1, 2):
                size = int.from_bytes(stream.read(4), "big")
                if size > _ANSWER_BYTES_MAX or stream.read(size)[:4] != struct.pack(">i", correlation_id):
                    return False
    except OSError:
        return False
    return True
