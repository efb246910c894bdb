"""Garbage collection: seldom, measured, and never over what was there at the start.

Almost everything a broker makes per request dies by reference count, so the cycle collector has little to find; what
hurts is that a full collection walks every object of the process. Hence: objects that exist after start-up are frozen
(exempt), the young generation is larger than CPython's default, and full collections come rarely. Each collection's
pause goes into `gc_pause` by generation.

The supervisor calls `freeze_for_fork` before it forks: frozen objects are not touched by a child's collector, so the
pages they lie on stay shared.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.telemetry.metrics import Histogram, StatsSlab

YOUNG_THRESHOLD: Final = 20_000  # net new container objects between young collections
MIDDLE_THRESHOLD: Final = 25
FULL_THRESHOLD: Final = 100

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
