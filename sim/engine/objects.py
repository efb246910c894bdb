"""An object store in memory with faults from a seed, for tests of everything that stands on ``millstream.objects``.

``MemoryStore`` behaves as the protocol says. ``FaultyStore`` puts faults before it, each with a probability of its own:
an error without effect, an error after the effect (a lost answer), throttling, a truncated read, a conflict that no
other writer caused, and a delay, which is reported to ``pause`` and not slept. The same seed and calls give the same
faults. ``script`` fixes the faults of the next calls instead.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import OutcomeUnknown, Unavailable
from millstream.model.quantities import TimestampMs
from millstream.objects.errors import Conflict, NotFound, ShortRead, Throttled
from millstream.objects.store import ABSENT, ObjectInfo, ObjectKey, Version, check_folder, check_key, check_range

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.objects.store import Buffer, ObjectStore

ERROR: Final = "error"
LOST_ANSWER: Final = "lost answer"
THROTTLED: Final = "throttled"
TRUNCATED: Final = "truncated"
CONFLICT: Final = "conflict"
NONE: Final = "none"


class MemoryStore:
    """Objects in a dictionary. ``now_ms`` gives the modification times."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.url = "memory://"
        self.objects: dict[ObjectKey, tuple[bytes, ObjectInfo]] = {}
        self._now_ms = now_ms
        self._changes = 0
        self._lock = threading.Lock()

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        check_key(key)
        data = b"".join(parts)
        with self._lock:
            present = self.objects.get(key)
            if expect is not None and expect != (ABSENT if present is None else present[1].version):
                raise Conflict(f"{self.url}: the object {key} does not have the expected version")
            self._changes += 1
            version = Version(str(self._changes))
            self.objects[key] = data, ObjectInfo(key, len(data), version, TimestampMs(self._now_ms()))
        return version

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        return self.put(key, [bytes(part) for part in parts])

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        check_key(key)
        check_range(key, start, end)
        found = self.objects.get(key)
        if found is None:
            raise NotFound(f"{self.url} has no object {key}")
        if end > len(found[0]):
            raise ShortRead(f"{self.url}: the object {key} ends before byte {end}")
        return memoryview(found[0])[start:end]

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        check_key(key)
        found = self.objects.get(key)
        return found[1] if found else None

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        check_folder(folder)
        with self._lock:
            keys = sorted(key for key in self.objects if key.startswith(folder) and key > after)
        for key in keys:
            found = self.objects.get(key)
            if found is not None:
                yield found[1]

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            check_key(key)
        with self._lock:
            for key in keys:
                self.objects.pop(key, None)

    def close(self) -> None:
        """Nothing to close."""


class Faults(msgspec.Struct, frozen=True):
    """Probability of each fault in one call; their sum is at most 1. A fault that does not fit the call does not
    happen.
    """

    error: float = 0.0
    lost_answer: float = 0.0
    throttled: float = 0.0
    truncated: float = 0.0
    conflict: float = 0.0
    slow: float = 0.0
    slow_s: float = 1.0


class FaultyStore:
    """``store`` with faults. ``calls`` and ``faults`` count what happened."""

    def __init__(
        self,
        store: ObjectStore,
        rng: random.Random,
        chances: Faults,
        pause: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._rng = rng
        self._pause = pause
        self.chances = chances
        self.script: deque[str] = deque()
        self.calls = 0
        self.faults: dict[str, int] = {}

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        fault = self._before(key, changes=True, conditional=expect is not None)
        version = self._store.put(key, parts, expect)
        self._after(fault, key)
        return version

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        fault = self._before(key, changes=True)
        version = self._store.put_stream(key, parts)
        self._after(fault, key)
        return version

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        fault = self._before(key, reads=True)
        data = self._store.get(key, start, end)
        if fault == TRUNCATED:
            kept = self._rng.randrange(len(data))
            raise ShortRead(f"{self.url}: the object {key} returned {kept} of {len(data)} bytes (injected)")
        return data

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        self._before(key)
        return self._store.head(key)

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """An error may come after any object."""
        fault = self._before(folder, reads=True)
        left = self._rng.randrange(4) if fault == TRUNCATED else -1
        for info in self._store.list(folder, after):
            if not left:
                raise Unavailable(f"{self.url}: the listing of {folder} broke off (injected)")
            left -= 1
            yield info

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        fault = self._before("objects", changes=True)
        if fault == LOST_ANSWER:
            self._store.delete(keys[: self._rng.randrange(len(keys) + 1)])
            self._after(fault, "objects")
        self._store.delete(keys)

    def close(self) -> None:
        self._store.close()

    def _before(self, what: str, *, changes: bool = False, conditional: bool = False, reads: bool = False) -> str:
        self.calls += 1
        fault = self.script.popleft() if self.script else self._draw()
        fits = {LOST_ANSWER: changes, TRUNCATED: reads, CONFLICT: conditional}
        if not fits.get(fault, True):
            return NONE
        if fault != NONE:
            self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault == ERROR:
            kind = OutcomeUnknown if changes else Unavailable
            raise kind(f"{self.url}: {what}: the connection failed (injected)")
        if fault == THROTTLED:
            raise Throttled(f"{self.url}: {what}: slow down (injected)")
        if fault == CONFLICT:
            raise Conflict(f"{self.url}: {what}: another writer was faster (injected)")
        return fault

    def _after(self, fault: str, what: str) -> None:
        if fault == LOST_ANSWER:
            raise OutcomeUnknown(f"{self.url}: {what}: the answer was lost (injected)")

    def _draw(self) -> str:
        chances = self.chances
        if chances.slow and self._rng.random() < chances.slow:
            self._pause(chances.slow_s)
        point = self._rng.random()
        for fault, chance in (
            (ERROR, chances.error),
            (LOST_ANSWER, chances.lost_answer),
            (THROTTLED, chances.throttled),
            (TRUNCATED, chances.truncated),
            (CONFLICT, chances.conflict),
        ):
            point -= chance
            if point < 0:
                return fault
        return NONE
