"""Runs of ``create`` in one store: which are being made, and when objects may be removed.

::

    running/RUN      one object a run: renewed every RENEW_S, removed at its end
    sweep/lease      whether one run removes objects: ``held`` or ``free``, and by whom

A run writes objects that no root refers to yet, and relies on objects that are there. So objects are removed only while
no other run is being made, and none starts:

- A run first writes its mark, then waits until the lease is free.
- A sweep first takes the lease, then looks at the marks. A live one of another run ends the sweep.

One of the two sees the other, since a store shows what was written. Both expire ``STALE_MS`` after they were renewed,
by the store's clock. A holder that was only paused finds out: every renewal expects the version that it wrote last
(compare and swap). A run renews before and after its root is written, and takes the root back if its mark was ended; a
sweep renews before it removes the next objects.

**Crash.** A killed run leaves its mark, a killed sweep its lease: both expire. A run that is paused for longer than
``STALE_MS`` between the last renewal and its root, and killed right after, leaves a root without objects; ``verify``
finds it. A request to remove objects that is on its way for longer than ``STALE_MS`` is not stopped.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected
from millstream.model.quantities import FilePosition
from millstream.objects import ABSENT, Conflict, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.objects import ObjectInfo, ObjectStore
    from millstream.objects.store import Version

RENEW_S: Final = 20.0
STALE_MS: Final = 120_000
WAIT_S: Final = 0.2
_RUNNING: Final = "running/"
_LEASE: Final = ObjectKey("sweep/lease")
_HELD: Final = b"held"
_FREE: Final = b"free"
_ENDED: Final = b"ended"


class Held:
    """An object that one run keeps renewing. Safe for threads."""

    def __init__(self, store: ObjectStore, key: ObjectKey, text: bytes, version: Version) -> None:
        self.key = key
        self._store = store
        self._text = text
        self._version = version
        self._lock = threading.Lock()
        self._renewed_s = time.monotonic()
        self.lost = False
        """Whether another run has taken it to be dead. It stays so."""

    def renew(self, word: bytes = _HELD) -> bool:
        """Write it again with another text; False if it is lost. Raises Unavailable."""
        with self._lock:
            if self.lost:
                return False
            text = _text(word)
            try:
                version = self._store.put(self.key, [text], self._version)
            except (Conflict, OutcomeUnknown):  # a write whose answer was lost conflicts with itself
                found = self._store.head(self.key)
                there = b"" if found is None else _read(self._store, found)
                if found is None or there not in (text, self._text):
                    self.lost = True
                    return False
                self._version = version = found.version
                if there == self._text:
                    raise
            self._text, self._version, self._renewed_s = text, version, time.monotonic()
            return True

    def still(self) -> bool:
        """Whether it is held; it is renewed if that was some time ago."""
        return not self.lost and (time.monotonic() - self._renewed_s < RENEW_S or self.renew())


class Runs:
    """The runs of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @contextmanager
    def running(self) -> Generator[Held]:
        """Mark a run that writes objects, for the time of the block. It starts when no objects are being removed."""
        key, text = ObjectKey(f"{_RUNNING}{secrets.token_hex(8)}"), _text(_HELD)
        mark = Held(self._store, key, text, self._store.put(key, [text]))
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_S):
                with suppress(MillstreamError):  # the next renewal tries again
                    mark.renew()

        thread = threading.Thread(target=renew, name="backup mark", daemon=True)
        thread.start()
        try:
            self._wait_for_sweep(mark)
            yield mark
        finally:
            ended.set()
            thread.join()
            self._store.delete([key])

    def _wait_for_sweep(self, mark: Held) -> None:
        """Until no objects are being removed."""
        pause = threading.Event()
        while (lease := self._store.head(_LEASE)) is not None and self._word(lease) == _HELD:
            if self._age_ms(lease, mark) > STALE_MS:
                with suppress(Conflict):  # another run was first
                    self._store.put(_LEASE, [_text(_FREE)], lease.version)
                continue
            pause.wait(WAIT_S)
        if mark.lost:
            raise lost()

    @contextmanager
    def removing(self, own: Held) -> Generator[Held | None]:
        """Have the right to remove objects, for the time of the block; None while another run is being made, or removes
        objects. ``own`` is the mark of this run. Ask ``still`` before each request.
        """
        lease = self._take_lease(own)
        if lease is None:
            yield None
            return
        try:
            marks = [one for one in self._store.list(_RUNNING) if one.key != own.key]
            yield lease if all(self._end(one, own) for one in marks) else None
            if lease.still():
                self._store.delete([one.key for one in marks if self._word(one) == _ENDED])
        finally:
            lease.renew(_FREE)

    def _take_lease(self, own: Held) -> Held | None:
        found = self._store.head(_LEASE)
        if found is not None and self._word(found) == _HELD and self._age_ms(found, own) <= STALE_MS:
            return None
        text = _text(_HELD)
        try:
            version = self._store.put(_LEASE, [text], ABSENT if found is None else found.version)
        except Conflict:
            return None
        return Held(self._store, _LEASE, text, version)

    def _end(self, mark: ObjectInfo, own: Held) -> bool:
        """End the run of a mark that has expired, so that it can publish no root; False if it is live."""
        if self._age_ms(mark, own) <= STALE_MS and self._word(mark) != _ENDED:
            return False
        try:
            self._store.put(mark.key, [_text(_ENDED)], mark.version)
        except Conflict:
            return self._store.head(mark.key) is None  # it has ended by itself
        return True

    def _age_ms(self, one: ObjectInfo, own: Held) -> int:
        """How old it is, by the store's clock: ``own`` is renewed for that."""
        if not own.renew():
            raise lost()
        now = self._store.head(own.key)
        if now is None:
            raise lost()
        return now.modified_ms - one.modified_ms

    def _word(self, one: ObjectInfo) -> bytes:
        """What an object of this module says; that it has ended, if it was removed since."""
        found = self._store.head(one.key)
        return _ENDED if found is None else _read(self._store, found).partition(b" ")[0]


def lost() -> Rejected:
    """The error of a run that was paused for so long that another has ended it."""
    return Rejected(
        f"this run stood still for more than {STALE_MS // 1000} s, and another has removed what it had written; run it "
        "again"
    )


def _text(word: bytes) -> bytes:
    """A text that no other write has, so that each has a version of its own."""
    return b"%s %s\n" % (word, secrets.token_hex(8).encode())


def _read(store: ObjectStore, one: ObjectInfo) -> bytes:
    return bytes(store.get(one.key, FilePosition(0), FilePosition(one.size_bytes)))
