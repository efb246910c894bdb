"""A store that repeats what may be repeated, waits when it is throttled, and settles unknown outcomes.

- A read is repeated after ``Unavailable`` and ``ShortRead``; a change after ``OutcomeUnknown`` too. Between attempts
  it waits a random time below a bound that doubles (full jitter), at most ``_WAIT_MAX_S``.
- It gives up after ``patience_s``, or when the retry budget of the store is empty, with the error of the last attempt.
- A conditional ``put`` may fail with ``Conflict`` because an earlier attempt of the *same* call succeeded and its
  answer was lost. After an unclear attempt the object is therefore compared with what was to be written: the same
  bytes are a success. Two writers of the same bytes may then both succeed; a caller that must tell them apart writes an
  identity into the object.

Safe for threads. Waiting holds no lock.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from millstream.errors import OutcomeUnknown, Unavailable
from millstream.model.quantities import FilePosition
from millstream.objects.errors import Conflict, ShortRead, Throttled
from millstream.objects.pace import Rate, RetryBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millstream.errors import MillstreamError
    from millstream.objects.store import Buffer, ObjectInfo, ObjectKey, ObjectStore, Version

PATIENCE_S: Final = 60.0
_WAIT_S: Final = 0.1
_WAIT_MAX_S: Final = 10.0
_COMPARED_BYTES: Final = 4 << 20

_Result = TypeVar("_Result")


class Retrying:
    """``store`` with retries. Clock, pause and randomness come from outside for tests."""

    def __init__(
        self,
        store: ObjectStore,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._patience_s = patience_s
        self._clock = clock
        self._pause = pause
        self._rng = rng or random.Random()
        self._lock = threading.Lock()  # of the budget, the rate and the generator
        self._budget = RetryBudget()
        self._rate = Rate()

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        unclear = False

        def attempt() -> Version:
            nonlocal unclear
            try:
                return self._store.put(key, parts, expect)
            except OutcomeUnknown:
                unclear = True
                raise
            except Conflict:
                ours = self._written(key, parts) if unclear else None
                if ours is None:
                    raise
                return ours

        return self._call(attempt)

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        """One attempt only: the parts are used up by it. The caller repeats it with new ones."""
        self._wait_for_turn()
        try:
            version = self._store.put_stream(key, parts)
        except Throttled:
            with self._lock:
                self._rate.throttled(self._clock())
            raise
        with self._lock:
            self._budget.succeeded()
        return version

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        return self._call(lambda: self._store.get(key, start, end))

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        return self._call(lambda: self._store.head(key))

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """A listing that fails half-way continues after the last key that it returned."""
        begun_s = self._clock()
        attempts = 0
        while True:
            self._wait_for_turn()
            try:
                for info in self._store.list(folder, after):
                    after = info.key
                    attempts = 0
                    begun_s = self._clock()
                    yield info
            except Unavailable as error:
                attempts += 1
                self._before_retry(error, begun_s, attempts)
            else:
                return

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        self._call(lambda: self._store.delete(keys))

    def close(self) -> None:
        self._store.close()

    def _call(self, attempt: Callable[[], _Result]) -> _Result:
        begun_s = self._clock()
        attempts = 0
        while True:
            self._wait_for_turn()
            try:
                result = attempt()
            except (Unavailable, OutcomeUnknown, ShortRead) as error:
                attempts += 1
                self._before_retry(error, begun_s, attempts)
            else:
                with self._lock:
                    self._budget.succeeded()
                return result

    def _wait_for_turn(self) -> None:
        with self._lock:
            wait_s = self._rate.wait_s(self._clock())
        if wait_s > 0:
            self._pause(wait_s)

    def _before_retry(self, error: MillstreamError, begun_s: float, attempts: int) -> None:
        """Wait, or raise ``error`` when no retry is left."""
        with self._lock:
            now_s = self._clock()
            if isinstance(error, Throttled):
                self._rate.throttled(now_s)
            wait_s = self._rng.random() * min(_WAIT_MAX_S, _WAIT_S * 2 ** min(attempts, 16))
            given_up = now_s + wait_s - begun_s > self._patience_s or not self._budget.take()
        if given_up:
            raise error
        self._pause(wait_s)

    def _written(self, key: ObjectKey, parts: Sequence[Buffer]) -> Version | None:
        """The version of the object if it has exactly these bytes."""
        info = self._store.head(key)
        if info is None or info.size_bytes != sum(memoryview(part).nbytes for part in parts):
            return None
        position = 0
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), _COMPARED_BYTES):
                piece = view[start : start + _COMPARED_BYTES]
                end = position + len(piece)
                if self._store.get(key, FilePosition(position), FilePosition(end)) != piece:
                    return None
                position = end
        return info.version
