"""A store that is asked a second time for a read that it answers late; the first answer counts.

A store in a cloud answers most reads in some tens of milliseconds, and one in a hundred in many times that, because one
of its machines is slow. A second request goes to another one. A read is late when it takes longer than the 99th
percentile of the last `_KNOWN_MAX` reads, and at least `LATE_S`. Second requests are at most a twentieth of all reads:
a store that has become slow as a whole is not asked twice, and neither is one that was asked too few times to be known.

Everything but ``get`` goes straight to the store. Safe for threads. The slower answer of the two is thrown away, and
keeps one of `THREADS` threads until it comes; while they are all taken, a read goes straight to the store, too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.objects.store import Buffer, ObjectInfo, ObjectKey, ObjectStore, Version

LATE_S: Final = 0.05
THREADS: Final = 8
_KNOWN_MIN: Final = 50
_KNOWN_MAX: Final = 200
_QUANTILE: Final = 0.99
_SHARE_MAX: Final = 1 / 20


class _Race:
    """Requests for the same bytes. The first answer wins; without one, the first error counts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._found: memoryview | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """One more request is in flight."""
        with self._changed:
            self._running += 1

    def end(self, found: memoryview | None, error: BaseException | None) -> None:
        """A request has ended."""
        with self._changed:
            self._running -= 1
            self._found = found if self._found is None else self._found
            self._error = error if self._error is None else self._error
            self._changed.notify_all()

    def is_over(self, wait_s: float) -> bool:
        """Whether there is an answer, or nothing is in flight; waits for it."""
        with self._changed:
            return self._changed.wait_for(self._over, wait_s)

    def outcome(self) -> memoryview:
        """The answer, when there is one. Raises what the first request that failed has raised, if all did."""
        with self._changed:
            self._changed.wait_for(self._over)
            if self._found is not None:
                return self._found
            assert self._error is not None, "a request ends with an answer or an error"
            raise self._error

    def _over(self) -> bool:
        return self._found is not None or not self._running


class Hedging:
    """``store`` with second requests. ``hedged`` is called for each of them."""

    def __init__(self, store: ObjectStore, hedged: Callable[[], object] = lambda: None) -> None:
        self._store = store
        self._hedged = hedged
        self._jobs: SimpleQueue[tuple[_Race, ObjectKey, FilePosition, FilePosition] | None] = SimpleQueue()
        self._free = threading.Semaphore(THREADS)
        self._threads: list[threading.Thread] = []
        """Started with the first read that may be hedged."""

        self._lock = threading.Lock()  # of everything below
        self._took_s: deque[float] = deque(maxlen=_KNOWN_MAX)
        self._allowance = 0.0
        """Second requests that may be made now; grows with each read, to 1 at most beyond the next one."""

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        return self._store.put(key, parts, expect)

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        return self._store.put_stream(key, parts)

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        late_s = self._late_s()
        race = _Race()
        if late_s is None or not self._ask(race, key, start, end):
            return self._timed(key, start, end)
        if not race.is_over(late_s) and self._may_ask_again() and self._ask(race, key, start, end):
            self._hedged()
        return race.outcome()

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        return self._store.head(key)

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(folder, after)

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        self._store.delete(keys)

    def close(self) -> None:
        """Waits for the requests in flight."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._store.close()

    def _ask(self, race: _Race, key: ObjectKey, start: FilePosition, end: FilePosition) -> bool:
        """Start a request on a thread. False if all are taken."""
        if not self._free.acquire(blocking=False):
            return False
        with self._lock:
            if not self._threads:
                self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]
                for thread in self._threads:
                    thread.start()
        race.begin()
        self._jobs.put((race, key, start, end))
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            race, key, start, end = job
            try:
                found, error = self._timed(key, start, end), None
            except BaseException as raised:  # noqa: BLE001  # whoever waits raises it
                found, error = None, raised
            self._free.release()
            race.end(found, error)

    def _timed(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        begun_s = time.monotonic()
        found = self._store.get(key, start, end)
        with self._lock:
            self._took_s.append(time.monotonic() - begun_s)
            self._allowance = min(2.0, self._allowance + _SHARE_MAX)
        return found

    def _late_s(self) -> float | None:
        """When a read is late; None if that is not known yet."""
        with self._lock:
            if len(self._took_s) < _KNOWN_MIN:
                return None
            known = sorted(self._took_s)
        return max(LATE_S, known[int(_QUANTILE * len(known)) - 1])

    def _may_ask_again(self) -> bool:
        with self._lock:
            if self._allowance < 1:
                return False
            self._allowance -= 1
            return True
