"""A connection and one of its requests, as what all connections of a shard share sees them (`net.intake`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from millstream.iobuf import IoBuf
    from millstream.iobuf.outbox import Outbox


class Request(Protocol):
    """A request in progress (`net.connection.Exchange`)."""

    def hold(self) -> None:
        """Stop reading the connection until the request is completed."""
        ...

    def complete(self, buffers: Sequence[memoryview] | None, size: int) -> None:
        """Set the response; None: no response is sent."""
        ...


class Member(Protocol):
    """A connection (`net.connection.Connection`)."""

    frame: IoBuf | None
    """The frame that is being received, of ``frame_size`` bytes. ``frame_missing`` of them have not come."""
    frame_size: int
    frame_missing: int
    waits: bool
    """For its turn among those whose requests cost much. Written by `net.turns`, as ``sends``."""
    sends: bool
    """Waits for its turn among those that have much to send."""

    @property
    def closed(self) -> bool: ...
    @property
    def reading(self) -> bool: ...
    @property
    def writing(self) -> bool: ...
    @property
    def stash(self) -> bytes: ...
    @property
    def owed(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def received_us(self) -> int: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def exchanges(self) -> Sized: ...
    @property
    def is_stranger(self) -> bool:
        """Whether it has yet to log in."""
        ...

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...

    def has_caught_up(self) -> bool:
        """Whether a paused connection may be read again."""
        ...

    def resume(self) -> None:
        """Continue after a pause."""
        ...

    def account(self) -> None:
        """Report the unsent bytes outside the arena."""
        ...

    def flush(self) -> None:
        """Send the completed responses, and continue after a pause if nothing is in the way."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...
