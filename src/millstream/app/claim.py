"""What only one broker may have: its data directory and its ports.

A directory that another broker has is refused before the ports are tried: who starts a broker twice by mistake learns
that it runs already. A directory that no broker has used yet is made only after the ports are bound, so a start that
finds a port taken leaves nothing behind.
"""

import contextlib
import os
import socket
from typing import Final, NamedTuple

from millstream.app.listening import bind, bind_all
from millstream.app.lock import lock_data_dir, was_locked
from millstream.config.settings import Settings
from millstream.errors import Unavailable

HTTP_PORT: Final = 9644
"""Redpanda's port for metrics and administration, which its users' dashboards know."""


class Claim(NamedTuple):
    """The ports are bound, and refuse connections until ``listening.serve``."""

    lock: int
    """Open file that holds the lock of the data directory."""

    listeners: dict[str, socket.socket]
    """A socket for each Kafka listener, by name."""

    http: socket.socket


def claim(settings: Settings) -> Claim:
    """Lock the data directory and bind the ports; all or nothing.

    Raises:
        Rejected: another broker has the directory.
        Unavailable: another process has a port, or the directory cannot be made.
    """
    with contextlib.ExitStack() as taken:
        lock = _lock(settings.data_dir, taken) if was_locked(settings.data_dir) else None
        listeners = bind_all(settings.listen)
        for listener in listeners.values():
            taken.callback(listener.close)
        http = _bind_http(settings)
        taken.callback(http.close)
        if lock is None:
            lock = _lock(settings.data_dir, taken)
        taken.pop_all()
    return Claim(lock, listeners, http)


def _bind_http(settings: Settings) -> socket.socket:
    """The HTTP port: the one that is set, or the default one on the first listener's host."""
    first = settings.listen[0]
    host, port = settings.http_listen or (first.host, HTTP_PORT if first.port else 0)
    return bind(host, port, setting="--http")


def _lock(data_dir: str, taken: contextlib.ExitStack) -> int:
    try:
        lock = lock_data_dir(data_dir)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if os.path.exists(data_dir) and not os.path.isdir(data_dir):
            reason = "it is a file"
        raise Unavailable(f"cannot start on {data_dir}: {reason}; name a directory that can be written") from error
    taken.callback(os.close, lock)
    return lock
