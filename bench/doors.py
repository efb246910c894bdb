"""Brokers behind TLS 1.3 and a login: the keys and the user of both subjects, and how the generator gets in.

`Doors` makes an authority, a certificate and a password for one broker, and says its settings in the words of either
subject; both check rights, and the user of the load has all. From then on :func:`connect` knows that broker by its
address: every connection of the benchmark is made there, so a load runs over TLS without knowing it.
"""

import secrets
import socket
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

from millstream.secure.authority import issue, make_authority

USER = "load"
MECHANISM = "PLAIN"
PROTOCOL = "SASL_SSL"
_HANDSHAKE, _AUTHENTICATE = 17, 36

_opened: "dict[str, Doors]" = {}


class Doors:
    """Keys, user and password of the broker at ``bootstrap``, in a directory of its own."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        directory.mkdir(mode=0o700)
        authority = make_authority("benchmark")
        pair = issue(authority, "broker", ["localhost", "127.0.0.1"])
        self._keys, self._authority, self.user_file = (
            directory / name for name in ("broker.pem", "ca.pem", "user.txt")
        )
        self._keys.write_bytes(pair.key + pair.certificate)
        self._authority.write_bytes(authority.certificate)
        self._password = secrets.token_hex(16)
        self.user_file.write_text(f"{USER}:{self._password}\n", encoding="utf-8")
        self._context = ssl.create_default_context(cafile=str(self._authority))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        _opened[bootstrap] = self

    def ours(self) -> dict[str, str]:
        """Settings of ours. The user comes from ``user_file``."""
        return {
            "ssl.keystore.location": str(self._keys),
            "ssl.enabled.protocols": "TLSv1.3",
            "sasl.enabled.mechanisms": MECHANISM,
            "super.users": f"User:{USER}",
        }

    def peer(self) -> dict[str, str]:
        """Settings of Apache Kafka; its controller's listener, in the same process, stays open."""
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        words = f'username="{USER}" password="{self._password}" user_{USER}="{self._password}";'
        return {
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{PROTOCOL}:{PROTOCOL}",
            "security.inter.broker.protocol": PROTOCOL,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": f"{login} {words}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority),
            "ssl.enabled.protocols": "TLSv1.3",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{USER};User:ANONYMOUS",
        }

    def enter(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """TLS and the login, on a connection that was just made; raises ConnectionRefusedError if it is refused."""
        secured = self._context.wrap_socket(plain, server_hostname=host)
        name = MECHANISM.encode()
        _ask(secured, _HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        token = f"\0{USER}\0{self._password}".encode()
        _ask(secured, _AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
        return secured


def _ask(connection: ssl.SSLSocket, api_key: int, version: int, body: bytes) -> None:
    """One request with header version 1; its answer begins with the error."""
    client = b"load"
    header = struct.pack(">hhih", api_key, version, 0, len(client)) + client
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
        more = connection.recv(4096)
        if not more:
            raise ConnectionRefusedError("the broker ended the connection at its login")
        answer += more
    error = struct.unpack_from(">h", answer, 8)[0]
    if error:
        raise ConnectionRefusedError(f"the login was refused: error {error}")


def connect(bootstrap: str, timeout_s: float | None = None) -> socket.socket:
    """A blocking connection to a broker, through its doors if it has any."""
    host, _, port = bootstrap.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    doors = _opened.get(bootstrap)
    if doors is None:
        return plain
    try:
        return doors.enter(plain, host)
    except BaseException:
        plain.close()
        raise


class Stream:
    """A non-blocking TLS connection with the calls of a socket that the loads use: whoever waits for the descriptor
    need not know that bytes may be left in the TLS layer, as `recv_into` takes all that has come.
    """

    def __init__(self, secured: ssl.SSLSocket) -> None:
        secured.setblocking(False)
        self._secured = secured
        self.fileno = secured.fileno
        self.close = secured.close

    def sendmsg(self, frames: Sequence[memoryview | bytes | bytearray]) -> int:
        """Bytes taken; raises BlockingIOError if none are. What is sent next has to begin with the rest."""
        data, sent = memoryview(b"".join(frames)), 0
        try:
            while sent < len(data):
                sent += self._secured.send(data[sent:])
        except ssl.SSLWantWriteError:
            if not sent:
                raise BlockingIOError from None
        return sent

    def recv_into(self, buffer: memoryview | bytearray) -> int:
        """Bytes received, 0 at the end; raises BlockingIOError if there are none. ``buffer`` has room for all that a
        broker may have sent.
        """
        view, got = memoryview(buffer), 0
        try:
            while got < len(view):
                count = self._secured.recv_into(view[got:])
                if count == 0:
                    return got
                got += count
        except ssl.SSLWantReadError:
            if not got:
                raise BlockingIOError from None
        return got


def non_blocking(bootstrap: str) -> socket.socket | Stream:
    """As `connect`, for a loop that waits for many."""
    connection = connect(bootstrap)
    if isinstance(connection, ssl.SSLSocket):
        return Stream(connection)
    connection.setblocking(False)
    return connection
