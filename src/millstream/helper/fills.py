"""Commands whose reply fills memory of the arena: finds the memory, and waits for it, in order.

While the arena has no memory, a command waits (``RETRY_US``) for others to release theirs, up to ``PATIENCE_US``. Then,
or when too many wait, it fails retriably. If the memory turns out too small, the command is sent again with as much as
its reply asks for. Callbacks never run before ``start`` has returned.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.errors import Retriable
from millstream.iobuf.room import allocate_room, release_all, spans_of
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from millstream.errors import MillstreamError
    from millstream.helper.link import CallId, HelperLink
    from millstream.iobuf import Arena, Fragment
    from millstream.shard.reactor import Reactor

RETRY_US: Final = 2_000
PATIENCE_US: Final = 5_000_000
WAITING_MAX: Final = 4096


class Fill(Protocol):
    """One call, from ``Fills.start`` to its callback."""

    begun_us: int
    fragments: list[Fragment]
    """Owned by the call: ``finish`` passes them on or releases them. Empty while it waits."""

    @property
    def reply(self) -> type[Any]:
        """Type of the reply."""
        ...

    def prepare(self) -> int:
        """Size in bytes of the memory to allocate. 0: the call has ended, its callback is scheduled."""
        ...

    def command(self, number: CallId, spans: list[int]) -> Any:
        """The command, which may fill these spans."""
        ...

    def finish(self, reply: Any) -> bool:
        """The reply. False: the call is sent again, with the memory that ``prepare`` asks for now."""
        ...

    def fail(self, error: MillstreamError) -> None:
        """There was no memory for it."""
        ...

    def failed(self, failure: Any, /) -> None:
        """The helper could not carry out the command; ``fragments`` are released."""
        ...


class Fills:
    """The calls of one shard to one helper."""

    def __init__(self, reactor: Reactor, arena: Arena, link: HelperLink[Any, Any]) -> None:
        self._reactor = reactor
        self.arena = arena
        self._link = link
        self._waiting: deque[Fill] = deque()
        self._retrying = False

    def start(self, fill: Fill) -> None:
        """Send a command, or queue it after those that wait."""
        if len(self._waiting) >= WAITING_MAX:
            failure = Retriable("too many reads wait for memory", ErrorCode.KAFKA_STORAGE_ERROR)
            self._reactor.call_soon(fill.fail, failure)
        else:
            self._send_or_wait(fill)

    def send_all(self) -> None:
        """Let ``prepare`` end every call that waits: the helper is about to stop."""
        while self._waiting:
            self._send(self._waiting.popleft())

    def _send_or_wait(self, fill: Fill) -> None:
        if self._waiting or not self._send(fill):
            self._waiting.append(fill)
            self._arm()

    def _send(self, fill: Fill) -> bool:
        """Send the command. False if there is no memory for it."""
        size_bytes = fill.prepare()
        if not size_bytes:
            return True
        fragments = allocate_room(self.arena, size_bytes)
        if fragments is None:
            return False
        fill.fragments = fragments
        command = fill.command(self._link.next_id(), spans_of(fragments))
        self._link.ask(command, fill.reply, partial(self._answered, fill), partial(self._failed, fill))
        return True

    def _answered(self, fill: Fill, reply: Any) -> None:
        if not fill.finish(reply):
            release(fill)
            self._send_or_wait(fill)

    def _failed(self, fill: Fill, failure: Any) -> None:
        release(fill)
        fill.failed(failure)

    def _arm(self) -> None:
        if not self._retrying:
            self._retrying = True
            self._reactor.call_later(RETRY_US, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        waiting = self._waiting
        while waiting and self._send(waiting[0]):
            waiting.popleft()
        oldest_us = self._reactor.now_us() - PATIENCE_US
        while waiting and waiting[0].begun_us < oldest_us:
            waiting.popleft().fail(Retriable("no memory to read into", ErrorCode.KAFKA_STORAGE_ERROR))
        if waiting:
            self._arm()


def release(fill: Fill) -> None:
    """Release the memory of a call."""
    fragments, fill.fragments = fill.fragments, []
    release_all(fragments)
