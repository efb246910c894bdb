"""Hands accepted connections from the supervisor to a shard.

The supervisor accepts a connection and sends its descriptor over a socket pair (SCM_RIGHTS), with the facts that only
it knows: the peer's address, the local address and the listener's name. One message is one connection, and order is
kept. Nothing waits: if a shard does not take its connections, ``send`` returns False, and the supervisor chooses
another shard or closes the connection.

``pending`` counts the connections that were sent and not yet taken, in memory shared by both ends. The supervisor adds
it to a shard's open connections when it chooses the shard with the fewest.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.model.principal import ANONYMOUS
from millstream.telemetry.log import RateLimit, log

if TYPE_CHECKING:
    from collections.abc import Callable

_MESSAGE_BYTES_MAX: Final = 16 << 10
_BATCH: Final = 64  # connections taken per turn


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a handed-over connection."""

    peer_host: str
    peer_port: int
    local_host: str
    local_port: int
    listener: str
    opening: bytes = b""
    """What the supervisor has read of it: the hello of another broker. Empty for a client."""
    principal: str = ANONYMOUS
    """Who the client is, where the supervisor knows it: by the file of a socket, or as another broker says."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Arrival).decode


class Handover:
    """Both ends of a handover. The supervisor creates it before it forks the shard. Each side calls its ``keep_*`` to
    close the other half.
    """

    def __init__(self) -> None:
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sender.setblocking(False)
        self._receiver.setblocking(False)
        self._lost = RateLimit(per_minute=6)
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")  # cell 0 sent, cell 8 taken

    @property
    def fd(self) -> int:
        """The shard's end. It is readable when connections wait."""
        return self._receiver.fileno()

    @property
    def pending(self) -> int:
        """Number of connections sent and not yet taken."""
        return self._counts[0] - self._counts[8]

    def keep_sender(self) -> None:
        """Keep the supervisor's half; called there after the fork."""
        self._receiver.close()

    def keep_receiver(self) -> None:
        """Keep the shard's half; called there after the fork."""
        self._sender.close()

    def close(self) -> None:
        """Close the remaining ends. The kernel closes connections that were not taken."""
        self._sender.close()
        self._receiver.close()

    def send(self, fd: int, arrival: Arrival) -> bool:
        """Hand ``fd`` over and close this process's copy. If the shard has no room or has ended, return False and leave
        ``fd`` open.
        """
        try:
            socket.send_fds(self._sender, [_encode(arrival)], [fd])
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        self._counts[0] += 1
        os.close(fd)
        return True

    def take(self, each: Callable[[socket.socket, Arrival], None]) -> bool:
        """Pass up to 64 waiting connections to ``each`` as sockets. False if the supervisor has closed its end."""
        for _ in range(_BATCH):
            try:
                message, fds, _, _ = socket.recv_fds(self._receiver, _MESSAGE_BYTES_MAX, 1)
            except BlockingIOError:
                return True
            if not message:
                return False
            self._counts[8] += 1
            if not fds:  # this process has no free descriptor; the kernel has closed the connection
                if self._lost.allows():
                    why = "no free file descriptor; raise the limit (LimitNOFILE, ulimit -n)"
                    log.error("a connection was lost: %s%s", why, self._lost.left_out())
                continue
            each(socket.socket(fileno=fds[0]), _decode(message))
        return True
