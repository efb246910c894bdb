"""A connection and one of its requests, as what all connections of a shard share sees them (`net.intake`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf.outbox import Buffer, Holder
    from millstream.net.client import Client
    from millstream.net.partial_frame import PartialFrame
    from millstream.net.responses import Responses


class Request(Protocol):
    """A request in progress (`net.connection.Exchange`)."""

    buffers: Sequence[Buffer] | None
    size: int
    holder: Holder | None
    """The response, once it is ``done``; None for none."""

    @property
    def done(self) -> bool: ...
    @property
    def holds(self) -> bool:
        """Whether its connection is not read until it is completed."""
        ...

    def hold(self) -> None:
        """Stop reading the connection until the request is completed."""
        ...

    def complete(self, buffers: Sequence[memoryview] | None, size: int) -> None:
        """Set the response; None: no response is sent."""
        ...


class Member(Protocol):
    """A connection (`net.connection.Connection`)."""

    frame: PartialFrame | None
    """The frame that is being received. Written by `net.budget`."""

    def on_readable(self) -> None:
        """Receive what the kernel has."""
        ...

    @property
    def client(self) -> Client: ...
    @property
    def responses(self) -> Responses: ...
    @property
    def closed(self) -> bool: ...
    @property
    def reading(self) -> bool: ...
    @property
    def stash(self) -> bytes: ...
    @property
    def frames(self) -> int: ...
    @property
    def received_us(self) -> int: ...
    @property
    def is_stranger(self) -> bool:
        """Whether it has yet to log in."""
        ...

    def has_caught_up(self) -> bool:
        """Whether a paused connection may be read again."""
        ...

    def resume(self) -> None:
        """Continue after a pause."""
        ...

    def flush(self) -> None:
        """Send the completed responses, and continue after a pause if nothing is in the way."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...
