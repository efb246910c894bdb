"""Garbage collection: seldom, measured, in small pieces while there is work, and the rest when there is none.

Almost everything a broker makes per request dies by reference count, so the cycle collector has little to find; what
hurts is that a collection walks every object of its generation, at some hundred nanoseconds each. Hence:

- objects that exist after start-up are frozen (exempt);
- a young collection comes after ``YOUNG_THRESHOLD`` new objects that live, and takes a few milliseconds at most;
- what outlived it (descriptions of what the log cache holds, mostly) is not looked at again while the shard is busy: it
  would be a hundred thousand objects in one go. A shard that used less than ``QUIET_SHARE`` of its core for ``LOOK_US``
  does that then (``collect_when_quiet``);
- on a shard that is never quiet CPython does it after all, after ``MIDDLE_THRESHOLD`` young ones.

Each collection's pause goes into `gc_pause` by generation.

Nothing is collected from the command line (`cli.start`) until the supervisor calls `freeze_for_fork`; the process that
recovers the log meanwhile switches the collector on for itself. Frozen objects are not touched by a child's collector,
so the pages they lie on stay shared.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import Histogram, StatsSlab

YOUNG_THRESHOLD: Final = 5_000  # net new container objects between young collections
MIDDLE_THRESHOLD: Final = 10_000
FULL_THRESHOLD: Final = 1

LOOK_US: Final = 5_000_000
QUIET_SHARE: Final = 0.1
YOUNG_MIN: Final = 4
"""So many young collections are worth one of what they left."""

_pauses: list[Histogram] = []
_begun_ns: list[int] = [0]


def _on_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _begun_ns[0] = time.perf_counter_ns()
    elif _pauses:
        _pauses[info["generation"]].observe((time.perf_counter_ns() - _begun_ns[0]) // 1000)


def tune() -> None:
    """Thresholds for a process that mostly relies on reference counts."""
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, FULL_THRESHOLD)


def collect_when_quiet(reactor: Reactor) -> None:
    """Look every `LOOK_US` whether the shard had little to do, and collect what outlived young collections then."""
    used_ns = time.process_time_ns()

    def look() -> None:
        nonlocal used_ns
        before_ns, used_ns = used_ns, time.process_time_ns()
        if used_ns - before_ns < QUIET_SHARE * 1000 * LOOK_US and gc.get_count()[1] >= YOUNG_MIN:
            gc.collect(1)
        reactor.call_later(LOOK_US, look)

    reactor.call_later(LOOK_US, look)


def measure(stats: StatsSlab) -> None:
    """Count the pauses of this process from now on."""
    _pauses[:] = [stats.histogram("gc_pause", generation=str(generation)) for generation in range(3)]
    if _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def stop_measuring() -> None:
    """Take the measurement off again."""
    _pauses.clear()
    if _on_collection in gc.callbacks:
        gc.callbacks.remove(_on_collection)


def settle() -> None:
    """Collect once, then exempt what is left."""
    gc.collect()
    gc.freeze()


def freeze_for_fork() -> None:
    """In the supervisor, right before forking: no collection in between, everything exempt."""
    gc.disable()
    gc.collect()
    gc.freeze()
    gc.enable()
