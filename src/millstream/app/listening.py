"""Listening sockets: the port is taken when the broker starts, and answers when it can serve.

::

    bind ──► the port is ours: a second broker on it is refused   (clients: connection refused)
    serve ─► connections are taken                                (clients: connected)

Between the two a broker recovers its log, which may take seconds. Were it listening then, the kernel would accept
clients into the backlog, where they hang until the broker is ready instead of trying another one, and are reset if it
is killed on the way. A socket that is merely bound does not hold the port, though: Linux lets anybody else who also
asks for ``SO_REUSEADDR`` bind it, and without that option a restarted broker would have to wait for the connections
of its former self. So ``bind`` listens for a moment, which makes the kernel look for real owners, shuts the listener
down again, which keeps a port that was asked for by number, and withdraws the option, so that no process can bind
beside it. A client that connects in that moment is reset and tries again. A port of the kernel's choice (0) has no
former owner and needs none of this.
"""

import socket
from collections.abc import Sequence
from typing import Any, Final

from millstream.config.listeners import Listener
from millstream.config.settings import Settings
from millstream.errors import Unavailable

BACKLOG: Final = 1024


def bind_all(listeners: Sequence[Listener]) -> dict[str, socket.socket]:
    """A socket for each listener by its name, in their order; all of them or none.

    Raises:
        Unavailable: another process has an address, or this machine does not have it.
    """
    by_four = {each.port for each in listeners if ":" not in each.host and each.port}
    bound: dict[str, socket.socket] = {}
    try:
        for each in listeners:
            bound[each.name] = bind(each.host, each.port, only_six=each.port in by_four)
    except Unavailable:
        for listener in bound.values():
            listener.close()
        raise
    return bound


def bind(host: str, port: int, *, only_six: bool = False, setting: str = "--listen") -> socket.socket:
    """A socket that has the port, and refuses connections until ``serve``.

    An IPv6 address for every interface takes IPv4 connections too, as in Kafka, unless ``only_six``: another listener
    of this broker has the port there. ``setting`` is what a refusal names as the remedy.

    Raises:
        Unavailable: another process has the address, or this machine does not have it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            if only_six and family is socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port:
                _seize(listener, address[4])
            else:
                listener.bind(address[4])
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise port_taken(host, port, error, setting) from error
    return listener


def _seize(listener: socket.socket, address: Any) -> None:
    """Take a port by number, although connections of its former owner may linger."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.shutdown(socket.SHUT_RDWR)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def serve(listener: socket.socket, setting: str = "--listen") -> None:
    """Take connections from now on; they wait in the backlog for a non-blocking ``accept``."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise port_taken(host, port, error, setting) from error
    listener.setblocking(False)


def port_taken(host: str, port: int, error: OSError, setting: str) -> Unavailable:
    """What is said when an address cannot be had."""
    return Unavailable(
        f"cannot listen on {literal(host)}:{port}: {error.strerror or error}; "
        f"choose another address with {setting}, or port 0"
    )


def plain(host: str) -> str:
    """An IPv4 address that came by an IPv6 socket as itself."""
    return host.removeprefix("::ffff:") if "." in host else host


def reached(listener: socket.socket) -> str:
    """Where this machine reaches a listener."""
    host, port = str(listener.getsockname()[0]), int(listener.getsockname()[1])
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"{literal(host)}:{port}"


def http_names(settings: Settings) -> list[str]:
    """The names by which the HTTP port may be asked, beside addresses and loopback names."""
    endpoints = [
        *settings.listen,
        *settings.advertised_listeners,
        *filter(None, [settings.http_listen, settings.peer_listen]),
    ]
    return [*settings.http_allowed_hosts, *(each.host for each in endpoints)]


def literal(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
