"""A connection as what all connections of a shard share sees it (`net.intake`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.net.client import Client
    from millstream.net.partial_frame import PartialFrame
    from millstream.net.responses import Responses


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
