"""Long-running work, cut into slices and limited to a share of the core.

Housekeeping, loading and similar work are generators. At each ``yield`` the reactor may serve its sockets. A slice
advances one generator for up to ``SLICE_US``; then its kind of work pauses for ``slice × (1 − share) / share``. The
pause is skipped if nothing but background work happened since the last slice, so an idle core is used fully. Kinds of
work do not wait for each other; tasks of one kind take turns.

A generator that raises stops the shard, like any callback. A cancelled generator is closed (its ``finally`` blocks
run), and its ``done`` is not called.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.telemetry.metrics import Counter, StatsSlab

SLICE_US: Final = 200
"""Length of a slice in µs. Well below the 500 µs of a stall, because a step may overshoot."""


class Loop(Protocol):
    """The part of ``shard.reactor.Reactor`` that is used here."""

    entries: int
    stats: StatsSlab

    def call_soon(self, callback: Callable[..., None], *args: object) -> None: ...

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> object: ...


class BackgroundTask:
    """A generator that is being advanced in slices."""

    __slots__ = ("done", "generator", "running")

    def __init__(self, generator: Generator[None, None, None], done: Callable[[], None] | None) -> None:
        self.generator = generator
        self.done = done
        self.running = True

    def cancel(self) -> None:
        """Advance the generator no further. The generator itself must not call this."""
        if self.running:
            self.running = False
            self.generator.close()


class _Kind:
    """Tasks of one kind of work, and their common share."""

    __slots__ = ("queue", "scheduled", "seen_entries", "share", "time")

    def __init__(self, time_counter: Counter) -> None:
        self.queue: deque[BackgroundTask] = deque()
        self.share = 1.0
        self.scheduled = False
        self.seen_entries = 0
        self.time = time_counter


class Background:
    """The background work of one reactor."""

    def __init__(self, reactor: Loop) -> None:
        self._reactor = reactor
        self._kinds: dict[str, _Kind] = {}

    def start(
        self, work: str, generator: Generator[None, None, None], share: float, done: Callable[[], None] | None
    ) -> BackgroundTask:
        if not 0 < share <= 1:
            raise ValueError(f"a share of the core lies in (0, 1], not {share}")
        kind = self._kinds.get(work)
        if kind is None:
            kind = self._kinds[work] = _Kind(self._reactor.stats.counter("background_time", work=work))
        kind.share = share
        task = BackgroundTask(generator, done)
        kind.queue.append(task)
        if not kind.scheduled:
            kind.scheduled = True
            self._reactor.call_soon(self._slice, kind)
        return task

    def _slice(self, kind: _Kind) -> None:
        """Advance the first task for one slice, and schedule the next slice."""
        reactor = self._reactor
        begun_ns = time.perf_counter_ns()
        limit_ns = begun_ns + SLICE_US * 1000
        task = kind.queue.popleft()
        finished = not task.running
        while not finished and time.perf_counter_ns() < limit_ns:
            try:
                next(task.generator)
            except StopIteration:
                finished = True
                task.running = False
                if task.done is not None:
                    task.done()
            finished = finished or not task.running
        if not finished:
            kind.queue.append(task)
        took_us = (time.perf_counter_ns() - begun_ns) // 1000
        kind.time.inc(took_us)
        if not kind.queue:
            kind.scheduled = False
            return
        reactor.entries -= 1  # the slice itself does not count as other work
        others_waited = reactor.entries != kind.seen_entries
        kind.seen_entries = reactor.entries
        if kind.share < 1 and others_waited:
            reactor.call_later(int(took_us * (1 - kind.share) / kind.share) + 1, lambda: self._slice(kind))
        else:
            reactor.call_soon(self._slice, kind)
