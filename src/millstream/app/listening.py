"""Listening sockets: the port is taken when the broker starts, and answers when it can serve.

::

    bind ──► the port is ours: a second broker on it is refused   (clients: connection refused)
    serve ─► connections are taken                                (clients: connected)

Between the two a broker recovers its log, which may take seconds. Were it listening then, the kernel would accept
clients into the backlog, where they hang until the broker is ready instead of trying another one, and are reset if it
is killed on the way. A socket that is merely bound does not hold the port, though: Linux lets anybody else who also
asks for ``SO_REUSEADDR`` bind it, and without that option a restarted broker would have to wait for the connections
of its former self. So ``bind`` listens for a moment, which makes the kernel look for real owners, shuts the listener
down again, which keeps a port that was asked for by number, and withdraws the option, so that nobody can bind beside
it. A client that connects in that moment is reset and tries again. A port of the kernel's choice (0) has no former
owner and needs none of this.
"""

import socket
from typing import Any, Final

from millstream.errors import Unavailable

BACKLOG: Final = 1024


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the port, and refuses connections until ``serve``.

    Raises:
        Unavailable: the address is somebody else's, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            if port:
                _seize(listener, address[4])
            else:
                listener.bind(address[4])
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise port_taken(host, port, error, "--listen") from error
    return listener


def _seize(listener: socket.socket, address: Any) -> None:
    """Take a port by number, although connections of its former owner may linger."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.shutdown(socket.SHUT_RDWR)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def serve(listener: socket.socket) -> None:
    """Take connections from now on; they wait in the backlog for a non-blocking ``accept``."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise port_taken(host, port, error, "--listen") from error
    listener.setblocking(False)


def port_taken(host: str, port: int, error: OSError, setting: str) -> Unavailable:
    """What is said when an address cannot be had."""
    return Unavailable(
        f"cannot listen on {literal(host)}:{port}: {error.strerror or error}; "
        f"choose another address with {setting}, or port 0"
    )


def literal(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
