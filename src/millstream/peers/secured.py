"""TLS between brokers: eight clear bytes, then a handshake in which both sides show a certificate.

::

    dialler ──opening 8──► supervisor ──(socket handed over)──► target shard ◄══ TLS ══► HELLO, WELCOME, turns
                               ├ kind PROBE: the supervisor itself does the handshake and answers
                               └ kind CLIENT, CALLER: the socket goes to the shard with the fewest connections

The process that accepts is not the one that owns the connection, and the state of TLS cannot be handed over. So the
first eight bytes are clear: magic, kind and target shard. They choose the process that does the handshake, and prove
nothing.

Both sides trust the authority of the brokers alone (``listener.name.peer.ssl.truststore.…``), and the dialling side
checks that the certificate names the host that it dialled. Whether brokers speak TLS is set, never negotiated: an
opening that is not expected, or one that is missing, ends the connection with a line that names the setting.

Who has a certificate of the brokers' authority is a broker, and may do everything: what a CLIENT asks for is not
checked again. The broker that it belongs to has checked the caller's rights before. A CALLER has no rights of its own:
after the handshake it says for whom it acts (``wire.sasl.ON_BEHALF``), and has the rights of that principal. The name
is sent over TLS, because nothing of the clear bytes is proved.

**Failure.** A handshake that fails or takes too long ends its connection as any other fault does; the dialler tries
again. New key material is used from the next handshake on.
"""

import ssl
import struct
from enum import IntEnum
from socket import socket as TcpSocket  # noqa: N812
from typing import Final

from millstream.errors import Corruption
from millstream.model.quantities import ShardId
from millstream.secure.contexts import client_context, server_context
from millstream.secure.endpoint import Credentials
from millstream.secure.tls_socket import TlsSocket

OPENING_BYTES: Final = 8
_MAGIC: Final = b"MSPT"
_OPENING: Final = struct.Struct("<4sBxH")
SET_IT: Final = "set peer.security.protocol to the same value on every broker"


class OpeningKind(IntEnum):
    """What a connection is for."""

    BROKER = 1
    PROBE = 2
    CLIENT = 3
    """A client of a broker's own, such as its schema registry: Kafka's protocol follows the handshake."""
    CALLER = 4
    """A client of a broker's own that acts for a caller, such as its console."""


CLIENT_OPENING: Final = _OPENING.pack(_MAGIC, OpeningKind.CLIENT, 0)
CALLER_OPENING: Final = _OPENING.pack(_MAGIC, OpeningKind.CALLER, 0)


class PeerTls:
    """Contexts of both sides of this broker's connections to others. One a process; ``renew`` replaces them."""

    def __init__(self, credentials: Credentials) -> None:
        self.renew(credentials)

    def renew(self, credentials: Credentials) -> None:
        """Use other key material from the next handshake on."""
        self.accepting: ssl.SSLContext = server_context(credentials.material, credentials.options)
        self.dialling: ssl.SSLContext = client_context(credentials.material, credentials.options)

    def accept(self, sock: TcpSocket) -> TlsSocket:
        """The accepting side, after the opening."""
        return TlsSocket(sock, self.accepting, server_side=True)

    def dial(self, sock: TcpSocket, host: str, opening: bytes) -> TlsSocket:
        """The dialling side of a connected socket. The opening fits the empty buffer of the socket.

        Raises:
            OSError: the connection has failed.
        """
        sock.send(opening)
        return TlsSocket(sock, self.dialling, server_side=False, server_hostname=host)


def encode_opening(kind: OpeningKind, target: int = 0) -> bytes:
    """The clear bytes."""
    return _OPENING.pack(_MAGIC, kind, target)


def decode_opening(data: bytes) -> tuple[OpeningKind, ShardId]:
    """Kind and target shard.

    Raises:
        Corruption: it is no opening.
    """
    magic, kind, target = _OPENING.unpack(data)
    if magic != _MAGIC:
        raise Corruption(f"a connection without TLS between brokers; {SET_IT}")
    try:
        return OpeningKind(kind), ShardId(target)
    except ValueError:
        raise Corruption(f"an opening of kind {kind}") from None
