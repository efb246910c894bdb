"""The broker's own socket file: ``DATA/admin.sock``, through which the user that runs the broker is a superuser.

It is how the first user of a broker is created, and the way back in after a lock-out. The file has mode 0600, and the
kernel says who connects: only the broker's own user and root are taken (``app.accepting``). It speaks Kafka's protocol
without TLS and login.

A path longer than a socket's address may be (108 bytes) is reached through the directory's descriptor. A file that a
crash left is replaced: the data directory is locked, so no other broker serves it.
"""

import contextlib
import os
import socket
from typing import Final

from millstream.app.listening import BACKLOG

SOCKET_FILE: Final = "admin.sock"


def serve_socket_file(data_dir: str) -> socket.socket:
    """A listening socket. Raises OSError where the file system has none."""
    remove_socket_file(data_dir)
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
        os.close(directory)
    listener.setblocking(False)
    return listener


def remove_socket_file(data_dir: str) -> None:
    """Remove the file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(data_dir, SOCKET_FILE))
