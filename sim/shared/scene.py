"""What all parts of a simulated history share: chance, time, the store and the controller's catalogue."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from millstream.core.shared import Catalogue
from millstream.model.quantities import TimestampMs
from millstream.model.shared import SharedPartition
from sim.engine.objects import Faults, FaultyStore
from sim.shared.torn import TornStore

GRACE_MS: Final = 5_000
_PARTITIONS: Final = 4
_FAULTS: Final = Faults(error=0.02, lost_answer=0.03, throttled=0.02, truncated=0.02, conflict=0.02)


class Wrong(Exception):
    """A promise that was broken."""


class Scene:
    """The surroundings of the brokers of one history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = TimestampMs(0)
        self.memory = TornStore(self.rng, lambda: self.now_ms)
        self.faulty = FaultyStore(self.memory, self.rng, _FAULTS)
        self.catalogue = Catalogue(GRACE_MS)
        self.seen: Counter[str] = Counter()
        self.partitions = [SharedPartition(bytes([at + 1]) * 16, at % 2) for at in range(_PARTITIONS)]
        for partition in self.partitions:
            self.catalogue.create(partition)
