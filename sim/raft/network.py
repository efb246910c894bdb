"""The network of the simulated world: who reaches whom, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from sim.raft.knobs import Knobs


class Network:
    """Delays and losses between slots. ``cut`` holds the ordered pairs that nothing passes."""

    def __init__(self, knobs: Knobs, chance: random.Random) -> None:
        self._knobs = knobs
        self._chance = chance
        self.cut: set[tuple[int, int]] = set()
        self.calm = False
        """Healed: nothing is lost or repeated."""
        self._last: dict[tuple[int, int], int] = {}

    def arrivals(self, sender: int, receiver: int, now: int) -> list[int]:
        """Times at which a message that is sent now arrives: none if it is lost, two if it is repeated."""
        if (sender, receiver) in self.cut:
            return []
        if self.calm:
            return [self._arrival(sender, receiver, now)]
        chance, knobs = self._chance, self._knobs
        if knobs.loss and chance.random() < knobs.loss:
            return []
        arrivals = [self._arrival(sender, receiver, now)]
        if knobs.duplicate and chance.random() < knobs.duplicate:
            arrivals.append(self._arrival(sender, receiver, now) + chance.randrange(20 * knobs.delay_us))
        return arrivals

    def heal(self) -> None:
        self.cut.clear()
        self.calm = True

    def _arrival(self, sender: int, receiver: int, now: int) -> int:
        delay = self._knobs.delay_us
        arrival = now + delay // 2 + int(self._chance.random() * delay)
        if not self.calm and self._chance.random() < 0.01:
            arrival += int(self._chance.random() * 30 * delay)
        if self._knobs.fifo:
            pair = (sender, receiver)
            arrival = max(arrival, self._last.get(pair, 0) + 1)
            self._last[pair] = arrival
        return arrival
