"""Work that nobody waits for, done in short pieces with rests between them, until somebody does.

What a checkpoint does to hundreds of small files is a tenth of a second of processor and disk. Done in one go it kept
writers of the write-ahead log and the shard from both for 5–30 ms, over and over while it went on. With three
quarters of the time left to others, none of them notices.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_NS: Final = 500_000
"""Worked at least between two rests: a rest costs two wake-ups."""

_RESTS: Final = 3
"""A rest is so many times as long as the piece before it."""

_REST_S_MAX: Final = 0.05
"""A piece that took long because it had to wait is not paid for with seconds."""

_clock_ns = time.perf_counter_ns


class Leisure:
    """For one worker at a time; `hurry` may be called on any thread. Jobs have growing numbers.

    `wait` is for tests: it waits so many seconds, less once somebody hurries.
    """

    def __init__(self, wait: Callable[[float], object] | None = None) -> None:
        self._hurried = threading.Event()
        self._hurried.set()
        self._wait = self._hurried.wait if wait is None else wait
        self._lock = threading.Lock()
        self._job = 0
        self._hurry_up_to = 0
        self._begun_ns = 0

    @property
    def at_leisure(self) -> bool:
        """Nobody waits for the job."""
        return not self._hurried.is_set()

    def begin(self, job: int) -> None:
        """A job begins that may rest, unless somebody already waits for it."""
        with self._lock:
            self._job = job
            if job > self._hurry_up_to:
                self._hurried.clear()
        self._begun_ns = _clock_ns()

    def end(self) -> None:
        """The job is over; what comes without a `begin` does not rest."""
        self._hurried.set()

    def hurry(self, job: int) -> None:
        """Somebody waits for this job: no more rests. It may be over, or yet to begin."""
        with self._lock:
            self._hurry_up_to = max(self._hurry_up_to, job)
            if job >= self._job:
                self._hurried.set()

    def rest(self) -> None:
        """Between two steps of a job."""
        if self._hurried.is_set():
            return
        worked_ns = _clock_ns() - self._begun_ns
        if worked_ns >= _PIECE_NS:
            self._wait(min(_RESTS * worked_ns / 1e9, _REST_S_MAX))
            self._begun_ns = _clock_ns()
