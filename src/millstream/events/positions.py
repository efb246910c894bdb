"""Where a consumer stands in each partition: asked for and stored at the coordinator of its name.

An acknowledgement only moves forward, ``seek`` moves anywhere. Acknowledgements that come while one is in flight go
together in the next request. A consumer that shares its partitions (``membership``) stores as a member of its group;
a request from before the last change of the group is repeated.

Runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millstream.errors import Retriable
from millstream.events.cluster import check
from millstream.events.futures import Pending, fail, settle
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.acknowledge_events import (
    AcknowledgedPartition,
    AcknowledgeEventsRequest,
    AcknowledgeEventsResponse,
)

if TYPE_CHECKING:
    from millstream.events.membership import Membership
    from millstream.events.topic import TopicFacts

_OLD_MEMBER: Final = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
_FINISH_SECONDS: Final = 5.0


class Positions:
    """The positions of one consumer in one topic."""

    def __init__(self, topic: TopicFacts, name: str, membership: Membership | None) -> None:
        self._topic = topic
        self._name = name
        self._membership = membership
        self._acknowledged: dict[int, int] = {}
        self._waiting: list[tuple[int, Pending[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def acknowledge(self, partition_index: int, next_event_id: int, done: Pending[None]) -> None:
        """Store a position if it is further than the stored one. ``done`` says when it is durable."""
        self._acknowledged[partition_index] = max(self._acknowledged.get(partition_index, -1), next_event_id)
        self._waiting.append((partition_index, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._send())

    async def finish(self) -> None:
        """Wait until what was acknowledged is stored, for some seconds at most."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_FINISH_SECONDS)

    def forget(self, partition_index: int) -> None:
        """Another consumer has the partition now, or the position was moved."""
        self._acknowledged.pop(partition_index, None)

    async def ask(self, partitions: Sequence[int]) -> dict[int, int]:
        """The stored positions; -1 without one."""
        return await self._exchange(dict.fromkeys(partitions, -1), seek=False)

    async def seek(self, partition_index: int, event_id: int) -> None:
        """Store a position, forwards or backwards. Acknowledgements that wait go first, or they would undo it."""
        await self.finish()
        await self._exchange({partition_index: event_id}, seek=True)
        self.forget(partition_index)

    async def _send(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            new = {one: self._acknowledged[one] for one, _ in waiting if one in self._acknowledged}
            try:
                await self._exchange(new, seek=False)
            except Exception as error:  # noqa: BLE001 (the program gets it, and later acknowledgements go on)
                for _, done in waiting:
                    fail(done, error)
            else:
                for _, done in waiting:
                    settle(done, None)
        self._task = None

    async def _exchange(self, positions: Mapping[int, int], *, seek: bool) -> dict[int, int]:
        """Store positions, or only ask for those that are -1; the stored ones."""
        topic, name, cluster = self._topic, self._name, self._topic.cluster
        what = f"positions of {name} in {topic.name}"
        wanted = [AcknowledgedPartition(*one) for one in sorted(positions.items())]

        async def ask() -> dict[int, int]:
            member = self._membership
            who = ("", -1) if member is None else (member.id, member.epoch)
            request = AcknowledgeEventsRequest(name, topic.id, seek, wanted, *who)
            link = await cluster.coordinator(name)
            answer = await link.call(
                request, AcknowledgeEventsResponse, link.version_of(request.API_KEY), cluster.timeout_s
            )
            if answer.error_code:
                cluster.forget_coordinator(name)
            if member is not None and answer.error_code in _OLD_MEMBER:
                raise Retriable(f"{what}: the group has changed", ErrorCode(answer.error_code))
            check(answer.error_code, what, answer.error_message)
            for one in answer.partitions:
                check(one.error_code, what, None)
            return {one.partition_index: one.next_event_id for one in answer.partitions}

        return await cluster.insist(what, ask, topic.name)
