"""Where the public keys of tokens come from: a file or an https server, read again and again by a thread.

The last good keys always stay: a source that fails, shrinks to nothing or sends something else changes
nothing but one line of the log, and is asked again after ``retry_ms``, doubled up to ``retry_max_ms``. A good source is
asked again after ``refresh_ms``; a file after ``FILE_MS`` at the latest, because looking at it costs nothing.

A token that names an unknown key asks for the keys at once, but once in ``UNKNOWN_S`` at most for all tokens:
anybody can invent a key id. Such a token waits until that attempt is over (``fd``), so that a key that was just
published loses no login.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from millstream.config.urls import file_of
from millstream.errors import Rejected, Unavailable
from millstream.secure.tokens.document import read_document
from millstream.secure.tokens.keys import BadKeys, KeySet, read_keys
from millstream.secure.tokens.rules import TokenRules
from millstream.telemetry.log import log

UNKNOWN_S: Final = 60.0
FILE_MS: Final = 10_000


class KeySource:
    """The keys, and the thread that reads them.

    Lifecycle: ``start`` once; the thread ends with the process. ``keys`` is replaced as a whole by the thread and read
    by the guard's loop.
    """

    def __init__(
        self,
        rules: TokenRules,
        read: Callable[[TokenRules], bytes] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read`` gets the document; it blocks, and raises what ``read_document`` raises."""
        self._rules = rules
        self._read = read or read_document
        self._now_s = now_s
        self._condition = threading.Condition()
        self._wanted = True  # an attempt is due or runs
        self._asked_s = float("-inf")  # when an unknown key last asked
        self._failures = 0
        self.keys: KeySet | None = None
        self.fd: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable after each attempt."""

    def start(self) -> None:
        """Start reading."""
        threading.Thread(target=self._run, name="keys", daemon=True).start()

    def ask(self) -> bool:
        """A token names a key that is not known. True if an attempt runs, or starts now: the token waits for it."""
        with self._condition:
            now_s = self._now_s()
            if not self._wanted and now_s - self._asked_s >= UNKNOWN_S:
                self._asked_s = now_s
                self._wanted = True
                self._condition.notify()
            return self._wanted

    def attempt(self) -> int:
        """Read the keys once; returns after how many ms to read them again."""
        try:
            found = read_keys(self._read(self._rules))
        except (Unavailable, Rejected, BadKeys) as error:
            wait_ms = min(self._rules.retry_ms << min(self._failures, 20), self._rules.retry_max_ms)
            if not self._failures:
                kept = "the last ones stay" if self.keys is not None else "no token is taken"
                log.warning("the keys of tokens cannot be read, %s: %s", kept, error)
            self._failures += 1
            return wait_ms
        if self._failures or self.keys is None:
            log.info("read %d keys of tokens, %d left out", sum(map(len, found.by_id.values())), found.left_out)
        self._failures = 0
        self.keys = found
        return min(self._rules.refresh_ms, FILE_MS) if file_of(self._rules.url) else self._rules.refresh_ms

    def _run(self) -> None:
        while True:
            wait_ms = self.attempt()
            with self._condition:
                self._wanted = False
                os.eventfd_write(self.fd, 1)
                self._condition.wait_for(lambda: self._wanted, wait_ms / 1000)
                self._wanted = True
