"""Positions of a consumer: what is acknowledged, what is sought, and in which order the coordinator gets it."""

import asyncio

import pytest

from millstream.events.futures import Pending
from millstream.events.positions import Positions
from millstream.wire.messages.acknowledge_events import AcknowledgedPartitionResult, AcknowledgeEventsResponse


class Coordinator:
    """A topic, its cluster and its link in one. Requests wait for ``gate``; ``failures`` are raised first."""

    name = "t"
    id = bytes(16)
    timeout_s = 60.0

    def __init__(self):
        self.cluster = self
        self.gate = asyncio.Event()
        self.failures = []
        self.stored = -1

    async def coordinator(self, name):
        return self

    async def insist(self, what, ask, topic):
        return await ask()

    def version_of(self, api_key):
        return 0

    async def call(self, request, answer, version, timeout_s):
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        (one,) = request.partitions
        if one.next_event_id >= 0:
            self.stored = one.next_event_id if request.seek else max(self.stored, one.next_event_id)
        return AcknowledgeEventsResponse(partitions=[AcknowledgedPartitionResult(0, 0, self.stored)])


def test_acknowledgements_that_wait_do_not_undo_a_seek():
    async def work():
        coordinator = Coordinator()
        positions = Positions(coordinator, "c", None)
        positions.acknowledge(0, 5, Pending())
        await asyncio.sleep(0)  # it is in flight; the next one waits
        positions.acknowledge(0, 9, Pending())
        seeking = asyncio.ensure_future(positions.seek(0, 1))
        await asyncio.sleep(0)
        coordinator.gate.set()
        await seeking
        await positions.finish()
        return coordinator.stored

    assert asyncio.run(work()) == 1


def test_an_acknowledgement_that_fails_in_any_way_says_so_and_later_ones_go_on():
    async def work():
        coordinator = Coordinator()
        coordinator.gate.set()
        coordinator.failures = [OverflowError("no such event")]
        positions = Positions(coordinator, "c", None)
        first, second = Pending(), Pending()
        positions.acknowledge(0, 5, first)
        await positions.finish()
        with pytest.raises(OverflowError):
            first.result(0)
        positions.acknowledge(0, 6, second)
        await positions.finish()
        second.result(0)
        return coordinator.stored

    assert asyncio.run(work()) == 6
