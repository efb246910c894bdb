"""Messages between a shard's reactor and a helper process: a local stream socket with a length prefix of four bytes.

The reactor's end never blocks: data that the socket does not accept are kept and sent later, and all messages of a turn
leave in one system call. The helper's end blocks, with one thread per channel. A message is a few hundred bytes; bulk
data travel through the arena. End of file means that the other process has ended. The reactor learns that from the
process descriptor as well, so here it only stops reading.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.shard.reactor import Reactor

_LENGTH_BYTES: Final = 4
_RECEIVE_BYTES: Final = 64 * 1024


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, created before the fork: the reactor's and the helper's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def cut_messages(data: bytearray) -> Iterator[bytes]:
    """Remove and yield the complete messages at the front of ``data``."""
    start = 0
    while len(data) - start >= _LENGTH_BYTES:
        size = int.from_bytes(data[start : start + _LENGTH_BYTES], "little")
        end = start + _LENGTH_BYTES + size
        if len(data) < end:
            break
        yield bytes(data[start + _LENGTH_BYTES : end])
        start = end
    del data[:start]


class ReactorChannel:
    """The reactor's end."""

    def __init__(self, reactor: Reactor, end: socket.socket, on_message: Callable[[bytes], None]) -> None:
        end.setblocking(False)
        self._reactor = reactor
        self._socket = end
        self._on_message = on_message
        self._received = bytearray()
        # a new object of this size would be mapped and unmapped each time
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))
        self._queue: list[bytes] = []
        self._rest = memoryview(b"")
        self._armed = False
        self._writing = False
        self._closed = False
        self._receiving = True
        reactor.add_reader(end.fileno(), self._readable)

    def send(self, message: bytes) -> None:
        """Queue a message for the end of the turn. It is dropped if the channel is closed."""
        if self._closed:
            return
        self._queue.append(len(message).to_bytes(_LENGTH_BYTES, "little"))
        self._queue.append(message)
        if not self._armed:
            self._armed = True
            self._reactor.end_of_turn(self._flush)

    def _flush(self) -> None:
        self._armed = False
        if self._writing or self._closed:
            return  # the write callback continues, or the channel is closed
        self._push()

    def _push(self) -> None:
        if not self._rest:
            self._rest = memoryview(b"".join(self._queue))
            self._queue.clear()
        try:
            sent = self._socket.send(self._rest)
        except BlockingIOError:
            sent = 0
        except (BrokenPipeError, ConnectionResetError):
            return  # the process descriptor reports the reason
        self._rest = self._rest[sent:]
        more = bool(self._rest or self._queue)
        if more and not self._writing:
            self._reactor.add_writer(self._socket.fileno(), self._push)
        elif self._writing and not more:
            self._reactor.remove_writer(self._socket.fileno())
        self._writing = more

    def receive_all(self) -> None:
        """Receive everything that has arrived, such as the last messages of an ended process."""
        while self._receive():
            pass

    def _readable(self) -> None:
        self._receive()

    def _receive(self) -> bool:
        """Receive once. Whether there was anything."""
        try:
            count = self._socket.recv_into(self._scratch)
        except (BlockingIOError, ConnectionResetError):
            return False
        if not count:
            self._stop_receiving()
            return False
        self._received += self._scratch[:count]
        for message in cut_messages(self._received):
            self._on_message(message)
        return True

    def _stop_receiving(self) -> None:
        if self._receiving:
            self._receiving = False
            self._reactor.remove_reader(self._socket.fileno())

    def close(self) -> None:
        """Stop sending and receiving."""
        self._closed = True
        self._stop_receiving()
        if self._writing:
            self._reactor.remove_writer(self._socket.fileno())
        self._socket.close()


class HelperChannel:
    """The helper's end, used by one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def receive(self) -> list[bytes]:
        """Wait for messages. An empty list means that the shard has ended."""
        while True:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                return []
            self._received += data
            messages = list(cut_messages(self._received))
            if messages:
                return messages

    def send(self, messages: list[bytes]) -> None:
        """Send messages, if there are any. No effect if the shard has ended."""
        if not messages:
            return
        data = b"".join(len(message).to_bytes(_LENGTH_BYTES, "little") + message for message in messages)
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return
