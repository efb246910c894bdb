"""Paces background work: short pieces with pauses in between, until something waits for it.

What a checkpoint does to hundreds of small files takes a tenth of a second of CPU and disk. Done at once, it delayed
the writer of the write-ahead log and the shard by 5–30 ms again and again. With three quarters of the time left to
others, no delay is measurable.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_NS: Final = 500_000
"""Minimum work between two pauses in ns, because a pause costs two wake-ups."""

_RESTS: Final = 3
"""Length of a pause, as a multiple of the piece before it."""

_REST_S_MAX: Final = 0.05
"""Maximum length of a pause in s, for pieces that only waited."""

_clock_ns = time.perf_counter_ns


class Throttle:
    """The pace of one worker. ``hurry`` may be called on any thread. Job numbers increase.

    ``wait`` is for tests: it waits for the given seconds, or less if ``hurry`` is called.
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
    def is_throttled(self) -> bool:
        """Whether the job is paced, because no caller waits for it."""
        return not self._hurried.is_set()

    def begin(self, job: int) -> None:
        """Start a paced job, unless ``hurry`` was already called for it."""
        with self._lock:
            self._job = job
            if job > self._hurry_up_to:
                self._hurried.clear()
        self._begun_ns = _clock_ns()

    def end(self) -> None:
        """End the job. Work outside of a job is not paced."""
        self._hurried.set()

    def hurry(self, job: int) -> None:
        """End the pacing of this job, which may be over or not yet started."""
        with self._lock:
            self._hurry_up_to = max(self._hurry_up_to, job)
            if job >= self._job:
                self._hurried.set()

    def pause(self) -> None:
        """Pause between two steps of a job."""
        if self._hurried.is_set():
            return
        worked_ns = _clock_ns() - self._begun_ns
        if worked_ns >= _PIECE_NS:
            self._wait(min(_RESTS * worked_ns / 1e9, _REST_S_MAX))
            self._begun_ns = _clock_ns()
