"""Ports for brokers that are started without being given any."""

import errno
import random
import socket
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 10_000
"""Below it are ports of known services."""

_LAST_PORT: Final = 65_535
_CHANCE: Final = random.SystemRandom()
"""Programs that start at once with one seed, such as processes of a test run, must not draw the same ports."""

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of ``host`` that no process listens on now, all different. They are outside the range that the kernel gives
    to connections and to listeners that ask for any: a broker that is away for a while finds its port free.

    Raises:
        OSError: no process can listen on that host here.
    """
    first, last = map(int, _RANGE.read_text().split())
    others = [port for port in range(FIRST_PORT, _LAST_PORT + 1) if not first <= port <= last]
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            try:
                sockets.append(socket.create_server((host, _CHANCE.choice(others or [0]))))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a process could listen on a port now."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
