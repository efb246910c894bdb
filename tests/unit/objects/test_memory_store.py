"""The store in memory holds the contract of a store."""

from __future__ import annotations

import random

import pytest
from store_suite import StoreSuite

from millstream.objects.retrying import Retrying
from sim.engine.objects import Faults, FaultyStore, MemoryStore


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestRetriesHideFaults(StoreSuite):
    """The suite holds through retries over a store that fails in a third of all calls."""

    @pytest.fixture
    def store(self):
        chances = Faults(error=0.1, lost_answer=0.1, throttled=0.05, truncated=0.1)
        faulty = FaultyStore(MemoryStore(), random.Random(1), chances)
        return _StreamsRepeated(faulty)


class _StreamsRepeated(Retrying):
    """A stream is repeated by its caller, who has the parts: the suite's caller repeats a list."""

    def __init__(self, store: FaultyStore) -> None:
        self._now_s = 0.0
        super().__init__(store, clock=lambda: self._now_s, pause=self._passed, rng=random.Random(2))

    def _passed(self, seconds: float) -> None:
        self._now_s += seconds

    def put_stream(self, key, parts):
        return self.put(key, list(parts))
