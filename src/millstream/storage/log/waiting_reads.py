"""Reads that wait until the arena has memory for them, in order.

While the arena has none, a read waits (``RETRY_US``) for others to release theirs, up to ``PATIENCE_US``. Then, or when
too many wait, it fails retriably.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from millstream.errors import Retriable
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.errors import MillstreamError
    from millstream.shard.reactor import Reactor

RETRY_US: Final = 2_000
PATIENCE_US: Final = 5_000_000
WAITING_MAX: Final = 4096


class WaitingRead(Protocol):
    """The part of a read that is used here."""

    @property
    def begun_us(self) -> int: ...


R = TypeVar("R", bound=WaitingRead)


class WaitingReads(Generic[R]):
    """The queue of one shard. ``start`` begins a read, and says whether there was memory for it; ``fail`` ends one."""

    def __init__(
        self, reactor: Reactor, start: Callable[[R], bool], fail: Callable[[R, MillstreamError], None]
    ) -> None:
        self._reactor = reactor
        self._start = start
        self._fail = fail
        self._waiting: deque[R] = deque()
        self._retrying = False

    def begin(self, read: R) -> None:
        """A new read: start it, or let it wait behind the others. Its callback never comes before this returned."""
        if len(self._waiting) >= WAITING_MAX:
            failure = Retriable("too many reads wait for memory", ErrorCode.KAFKA_STORAGE_ERROR)
            self._reactor.call_soon(self._fail, read, failure)
        else:
            self.again(read)

    def again(self, read: R) -> None:
        """A read that was begun needs other memory: start it, or let it wait behind the others."""
        if self._waiting or not self._start(read):
            self._waiting.append(read)
            self._arm()

    def start_all(self) -> None:
        """Nothing waits any more: ``start`` refuses them."""
        while self._waiting:
            self._start(self._waiting.popleft())

    def _arm(self) -> None:
        if not self._retrying:
            self._retrying = True
            self._reactor.call_later(RETRY_US, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        waiting = self._waiting
        while waiting and self._start(waiting[0]):
            waiting.popleft()
        oldest_us = self._reactor.now_us() - PATIENCE_US
        while waiting and waiting[0].begun_us < oldest_us:
            self._fail(waiting.popleft(), Retriable("no memory to read into", ErrorCode.KAFKA_STORAGE_ERROR))
        if waiting:
            self._arm()
