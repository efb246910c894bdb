"""Tunes garbage collection: short collections while the shard works, full ones when it has little to do.

Almost every object of a request dies by reference count, so the cycle collector finds little. Its cost is that a
collection walks every object of its generation, at about 100 ns each. Therefore:

- objects that exist after start-up are frozen (exempt);
- a young collection comes after ``YOUNG_THRESHOLD`` new live objects, and takes a few milliseconds at most;
- objects that outlive it (mostly descriptions of the log cache) are not collected while the shard is busy, because that
  would walk a hundred thousand objects at once. A shard that used less than ``QUIET_SHARE`` of its core during
  ``LOOK_US`` does it then (``collect_when_quiet``);
- on a shard that is never quiet CPython does it after ``MIDDLE_THRESHOLD`` young collections.

The metric ``gc_pause`` has every pause, by generation.

From the command line (``cli.start``) until the supervisor calls ``freeze_for_fork``, collection is off; the process
that recovers the log turns it on for itself. A child's collector does not touch frozen objects, so their pages stay
shared.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.telemetry.metrics import Histogram, StatsSlab

YOUNG_THRESHOLD: Final = 5_000  # net new container objects between young collections
MIDDLE_THRESHOLD: Final = 10_000
FULL_THRESHOLD: Final = 1

LOOK_US: Final = 5_000_000
QUIET_SHARE: Final = 0.1
YOUNG_MIN: Final = 4
"""Young collections after which it is worth collecting what they left."""


class Timers(Protocol):
    """The part of ``shard.reactor.Reactor`` that is used here."""

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> object: ...


_pauses: list[Histogram] = []
_begun_ns: list[int] = [0]


def _on_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _begun_ns[0] = time.perf_counter_ns()
    elif _pauses:
        _pauses[info["generation"]].observe((time.perf_counter_ns() - _begun_ns[0]) // 1000)


def tune() -> None:
    """Set the thresholds for a process that relies mostly on reference counts."""
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, FULL_THRESHOLD)


def collect_when_quiet(reactor: Timers) -> None:
    """Check every ``LOOK_US`` whether the shard had little to do, and if so collect what outlived young collections."""
    used_ns = time.process_time_ns()

    def look() -> None:
        nonlocal used_ns
        before_ns, used_ns = used_ns, time.process_time_ns()
        if used_ns - before_ns < QUIET_SHARE * 1000 * LOOK_US and gc.get_count()[1] >= YOUNG_MIN:
            gc.collect(1)
        reactor.call_later(LOOK_US, look)

    reactor.call_later(LOOK_US, look)


def measure(stats: StatsSlab) -> None:
    """Record the pauses of this process from now on."""
    _pauses[:] = [stats.histogram("gc_pause", generation=str(generation)) for generation in range(3)]
    if _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def stop_measuring() -> None:
    """Stop recording."""
    _pauses.clear()
    if _on_collection in gc.callbacks:
        gc.callbacks.remove(_on_collection)


def settle() -> None:
    """Collect once, then exempt all remaining objects."""
    gc.collect()
    gc.freeze()


def freeze_for_fork() -> None:
    """In the supervisor, right before the fork: exempt all objects, without a collection in between."""
    gc.disable()
    gc.collect()
    gc.freeze()
    gc.enable()
