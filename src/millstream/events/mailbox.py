"""Events that were received and not yet taken, and the pulls that wait for one.

An event goes to the oldest pull that still waits. A pull that was given up before an event came is passed over, so no
event is lost to it. Events and failures come out in the order in which they were put in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from millstream.events.event import Event
from millstream.events.futures import Pending

_Item = tuple[Event | Exception, Callable[[], None] | None]

_WAITING_MANY: Final = 64
"""From so many pulls on, those that were given up are forgotten: a program that polls gives up many a second."""


class Mailbox:
    """One consumer's. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[_Item] = deque()
        self._waiting: deque[Pending[Event]] = deque()
        self._end: Event | Exception | None = None

    def put(self, items: list[_Item]) -> None:
        """Events or failures of events, each with what to call when it is taken."""
        with self._lock:
            self._ready += items
        self._hand_out()

    def end(self, last: Event | Exception) -> None:
        """Nothing follows: every further pull gets ``last``."""
        with self._lock:
            if self._end is None:
                self._end = last
        self._hand_out()

    def pull(self) -> Pending[Event]:
        """The next event, when there is one."""
        future: Pending[Event] = Pending()
        with self._lock:
            if len(self._waiting) >= _WAITING_MANY:
                self._waiting = deque(one for one in self._waiting if not one.cancelled())
            self._waiting.append(future)
        self._hand_out()
        return future

    def take(self) -> Event | None:
        """The next event if it is here and no pull waits; None otherwise. Cheaper than ``pull``.

        Raises:
            Exception: the failure that stands in the event's place.
        """
        with self._lock:
            if self._waiting or not self._ready:
                return None
            item, when_taken = self._ready.popleft()
        if when_taken is not None:
            when_taken()
        if isinstance(item, Exception):
            raise item
        return item

    def __len__(self) -> int:
        return len(self._ready)

    def _hand_out(self) -> None:
        taken: list[Callable[[], None]] = []
        with self._lock:
            while self._waiting and (self._ready or self._end is not None):
                future = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                item, when_taken = self._ready.popleft() if self._ready else (self._end, None)
                if isinstance(item, Exception):
                    future.set_exception(item)
                else:
                    assert item is not None
                    future.set_result(item)
                if when_taken is not None:
                    taken.append(when_taken)
        for call in taken:
            call()

    def drop(self, partition_index: int) -> None:
        """Forget what is ready of a partition."""
        with self._lock:
            kept = [item for item in self._ready if _partition_of(item[0]) != partition_index]
            self._ready = deque(kept)


def _partition_of(item: Event | Exception) -> int:
    return item.partition if isinstance(item, Event) else -1
