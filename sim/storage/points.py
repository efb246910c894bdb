"""A crash at every write and sync of a history, without playing it again for each.

`Enumeration` stands at every operation of the disk, before it is done, and asks the disk what would be left if the
power failed there: nothing of what was not synced, some of it torn, or all of it. Each such disk is recovered by the
production code and judged against what was promised at that very moment; the history continues undisturbed. Operations
of recovery itself are operations like any other, so recovery is interrupted everywhere, too, and now and then the
recovery of a crash point crashes again before it is let through.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from sim.engine.disk import KEPT, LOST, TORN, PowerFailure
from sim.engine.violation import Violation
from sim.storage.judge import judge
from sim.storage.life import Life

if TYPE_CHECKING:
    from sim.storage.history import History

_CRASHES_AGAIN: Final = 0.1
_LEFT: Final = (TORN, TORN, TORN, LOST, KEPT)


class Enumeration:
    """Judges the crash points of a history: `share` of them, each in `variants` variants."""

    def __init__(self, history: History, *, share: float = 1.0, variants: int = 1) -> None:
        self._history = history
        self._rng = random.Random(history.seed + 2)
        self._share = share
        self._variants = variants
        self.points = 0
        """Operations before which a power failure was judged."""

        self.recoveries = 0
        history.on_operation = self.look

    def look(self, kind: str, path: str) -> None:
        """An operation is about to be done: what if it is not?"""
        if self._share < 1.0 and self._rng.random() >= self._share:
            return
        history = self._history
        history.notice()
        self.points += 1
        for _ in range(self._variants):
            left = self._rng.choice(_LEFT)
            try:
                self._judge(left)
            except Violation as violation:
                raise Violation(f"a crash before the {kind} of {path} ({left}): {violation}") from None

    def _judge(self, left: str) -> None:
        history = self._history
        disk = history.disk.crashed(self._rng, left)
        while True:
            self.recoveries += 1
            try:
                if self._rng.random() < _CRASHES_AGAIN:
                    disk.crash_at = disk.operations + self._rng.randint(1, 40)
                life = Life(
                    disk,
                    self._rng,
                    history.topics.values(),
                    shards=self._rng.choice([1, 1, 2]),
                    now_ms=history.now_ms,
                    settings=history.settings_of_judge,
                )
                disk.crash_at = -1
                break
            except PowerFailure:
                disk.crash(torn=self._rng.random() < 0.8)
        judge(life, disk, history.topics, history.offsets)
