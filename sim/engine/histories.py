"""Histories from seeds: what they find, what they count, and the hunt for planted bugs.

A scenario has a function ``play(seed, counts)``, which plays the history of a seed, adds to ``counts`` what happened,
and returns what it found.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.telemetry.log import log as operator_log
from sim.engine.planting import hunt_with
from sim.engine.timeline import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from sim.engine.planting import Hunt, PlantedBug

_HISTORIES: Final = attrgetter("histories")
_COLLECTIONS: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector; those of Python cost a history an eighth of its time."""


class Finding(msgspec.Struct, frozen=True):
    """What a history found."""

    seed: int
    what: str
    trace: str
    """Where it was noticed."""
    setting: Any = None
    """What the seed decided about the history."""
    events: tuple[str, ...] = ()
    """The last events before it."""


class Counts(msgspec.Struct):
    """Sums over histories."""

    histories: int = 0
    simulated_us: int = 0
    steps: int = 0
    operations: int = 0
    """Requests of clients."""
    cpu_s: float = 0.0
    trace: int = 0
    """Hash over everything that happened in the last history, and when."""
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    seen: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def hours(self) -> float:
        """Simulated hours."""
        return self.simulated_us / SECOND / 3600


def attempt(
    seed: int,
    counts: Counts,
    run: Callable[[], object],
    errors: tuple[type[BaseException], ...],
    setting: Any = None,
    events: Callable[[], Iterable[str]] = tuple,
) -> Finding | None:
    """Run a history, count it, and make a finding of one of ``errors``, which is in ``counts``, too."""
    began = time.process_time()
    finding: Finding | None = None
    try:
        with _rare_collections():
            run()
    except errors as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-4:])
        finding = Finding(seed, str(error) or repr(error), where, setting, tuple(events()))
        counts.findings.append(finding)
    counts.cpu_s += time.process_time() - began
    counts.histories += 1
    return finding


@contextmanager
def _rare_collections() -> Generator[None]:
    """Collect garbage rarely, and not what was there before: a history makes many objects, and few cycles."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def hunt(
    bug: PlantedBug,
    play: Callable[..., Finding | None],
    first_seed: int = 0,
    *,
    draw: Callable[[int], Any] | None = None,
    spent: Callable[[Counts], int] = _HISTORIES,
) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up.

    With ``draw`` the setting of each seed is given the bug's shape. ``spent`` says what counts towards the budget.
    """
    counts = Counts()

    def look(seed: int) -> tuple[Finding | None, int]:
        before = spent(counts)
        finding = play(seed, counts) if draw is None else play(seed, counts, bug.shape(draw(seed)))
        return finding, spent(counts) - before

    return hunt_with(bug, look, first_seed)


@contextmanager
def quiet() -> Generator[None]:
    """Without the brokers' log lines: a history has hundreds."""
    process = operator_log._process  # pyright: ignore[reportPrivateUsage]
    before = process.fd
    sink = os.open(os.devnull, os.O_WRONLY)
    process.fd = sink
    try:
        yield
    finally:
        process.fd = before
        os.close(sink)
