"""Events that were received and not yet taken, and the pulls that wait for one.

An event goes to the oldest pull that still waits. A pull that was given up before an event came is passed over, so no
event is lost to it. Events and failures come out in the order in which they were put in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from millstream.events.event import Event
from millstream.events.futures import Pending


class _LastTaken(NamedTuple):
    """Stands after the last event of a batch: what to call when that is taken."""

    call: Callable[[], None]


_Item = Event | Exception | _LastTaken

_WAITING_MANY: Final = 64
"""From so many pulls on, those that were given up are forgotten: a program that polls gives up many a second."""


class Mailbox:
    """One consumer's. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[_Item] = deque()
        self._waiting: deque[Pending[Event]] = deque()
        self._end: Event | Exception | None = None

    def put(self, items: Sequence[Event | Exception], taken: Callable[[], None] | None = None) -> None:
        """Events or failures of events; ``taken`` is called when the last of them is taken."""
        with self._lock:
            self._ready += items
            if taken is not None:
                self._ready.append(_LastTaken(taken))
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
            item = self._ready.popleft()
            last = self._last_taken()
        if last is not None:
            last()
        if item.__class__ is Event:
            return cast("Event", item)
        assert isinstance(item, Exception)
        raise item

    def __len__(self) -> int:
        return sum(not isinstance(item, _LastTaken) for item in self._ready)

    def _hand_out(self) -> None:
        taken: list[Callable[[], None]] = []
        with self._lock:
            while self._waiting and (self._ready or self._end is not None):
                future = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                item = self._ready.popleft() if self._ready else self._end
                if isinstance(item, Exception):
                    future.set_exception(item)
                else:
                    assert isinstance(item, Event)
                    future.set_result(item)
                last = self._last_taken()
                if last is not None:
                    taken.append(last)
        for call in taken:
            call()

    def _last_taken(self) -> Callable[[], None] | None:
        """What to call if the item that was just taken was the last of its batch. The lock is held."""
        if self._ready and self._ready[0].__class__ is _LastTaken:
            return cast("_LastTaken", self._ready.popleft()).call
        return None

    def drop(self, partition_index: int) -> None:
        """Forget what is ready of a partition."""
        due: list[Callable[[], None]] = []
        with self._lock:
            kept: deque[_Item] = deque()
            for item in self._ready:
                if isinstance(item, _LastTaken):
                    if kept and not isinstance(kept[-1], _LastTaken):
                        kept.append(item)
                    else:
                        due.append(item.call)
                elif _partition_of(item) != partition_index:
                    kept.append(item)
            self._ready = kept
        for call in due:
            call()


def _partition_of(item: _Item) -> int:
    return item.partition if isinstance(item, Event) else -1
