"""The reactor's ends of a helper's lanes: which lane carries which command.

Commands of one lane are executed in the order in which they were sent. Lanes of one kind are alike and take turns.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from millstream.helper.channel import ReactorChannel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from millstream.shard.reactor import Reactor

C = TypeVar("C")


class Sender(Protocol):
    """The part of a channel that lanes use; ``ReactorChannel`` in production."""

    def send(self, message: bytes, /) -> None: ...

    def receive_all(self) -> None: ...

    def close(self) -> None: ...


class Lanes(Generic[C]):
    """All lanes of one helper, or of several. Lifecycle: ``open`` once the reactor exists, ``close`` once.

    ``table`` has the lanes for each type of command.
    """

    def __init__(self, table: Mapping[type[C], range], encode: Callable[[C], bytes]) -> None:
        turns = {lanes: cycle(lanes) for lanes in table.values()}
        self._next: dict[type[C], Iterator[int]] = {kind: turns[lanes] for kind, lanes in table.items()}
        self._encode = encode
        self.channels: Sequence[Sender] = ()
        """Empty before ``open``."""

    def open(self, reactor: Reactor, ends: Sequence[socket.socket], on_message: Callable[[bytes], None]) -> None:
        """Send and receive on this reactor. ``on_message`` is called with each message of the helper."""
        self.channels = [ReactorChannel(reactor, end, on_message) for end in ends]

    def send(self, command: C) -> None:
        """Send a command. It leaves at the end of the turn."""
        self.channels[next(self._next[type(command)])].send(self._encode(command))

    def send_to_all(self, command: C) -> None:
        """Send a command to every lane."""
        for channel in self.channels:
            channel.send(self._encode(command))

    def receive_all(self) -> None:
        """Receive everything that has arrived: the end of a process may be noticed before its last messages."""
        for channel in self.channels:
            channel.receive_all()

    def close(self) -> None:
        """Stop sending and receiving."""
        for channel in self.channels:
            channel.close()
