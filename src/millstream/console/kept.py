"""Logins of browsers, by a random key that the browser has in its cookie.

A login ends ``LOGIN_S`` after it was made, or earlier if what proved it does, and when it was not used for ``IDLE_S``.
At most ``LOGINS_MAX`` are kept; the one that was not used for longest goes first. Nothing is written to the disk, so
all of them end with the process. A key that is not known is no error: its visitor logs in again.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

LOGIN_S: Final = 8 * 3600
IDLE_S: Final = 3600
LOGINS_MAX: Final = 1000
_KEY_BYTES: Final = 32

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    value: T
    until: float
    idle_until: float


class KeptLogins(Generic[T]):
    """The logins. Safe for threads.

    Invariant: the entries are in the order of their last use, so of ``idle_until``, too.
    """

    def __init__(self, ended: Callable[[T], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``ended`` is called, without a lock, with each login that has ended."""
        self._ended = ended
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()

    def add(self, value: T, holds_s: float = LOGIN_S) -> str:
        """The key of a new login, which holds no longer than ``holds_s``."""
        now, key = self._clock(), secrets.token_urlsafe(_KEY_BYTES)
        with self._lock:
            dropped = self._idle(now)
            if len(self._kept) >= LOGINS_MAX:
                dropped.append(self._kept.popitem(last=False)[1].value)
            self._kept[key] = _Kept(value, now + min(holds_s, LOGIN_S), now + IDLE_S)
        self._end(dropped)
        return key

    def find(self, key: str) -> T | None:
        """The login, which is used now; None if the key is not known, or its time is over."""
        now = self._clock()
        with self._lock:
            dropped = self._idle(now)
            found = self._kept.pop(key, None)
            if found is not None and found.until > now:
                self._kept[key] = found._replace(idle_until=now + IDLE_S)
            elif found is not None:
                dropped.append(found.value)
                found = None
        self._end(dropped)
        return None if found is None else found.value

    def remove(self, key: str) -> None:
        """End a login."""
        with self._lock:
            found = self._kept.pop(key, None)
        self._end([] if found is None else [found.value])

    def clear(self) -> None:
        """End all of them."""
        with self._lock:
            every = [each.value for each in self._kept.values()]
            self._kept.clear()
        self._end(every)

    def _idle(self, now: float) -> list[T]:
        """Take out what was not used for too long."""
        found: list[T] = []
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if oldest.idle_until > now:
                break
            del self._kept[key]
            found.append(oldest.value)
        return found

    def _end(self, dropped: list[T]) -> None:
        for value in dropped:
            self._ended(value)
