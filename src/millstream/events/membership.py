"""A consumer as a member of the group of its name: consumers of one name share the partitions of a topic.

The group is one of Kafka's, with the consumer protocol (KIP-848): the coordinator assigns the partitions, and a
heartbeat a second says what the member owns and gets what it is to own. So Kafka's group tools show the consumers of
an event topic, and a consumer that comes, goes or dies moves partitions within a second, or after the session time-out
of the group if it died without a word.

A partition that is to go is given up first (``take`` returns), then the next heartbeat says so, and only then another
member gets it. A member that the coordinator no longer knows gives all up and joins again. Anything else that the
coordinator refuses ends the consumer with that error.

Runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError, Retriable, Unavailable
from millstream.events.cluster import check
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)

if TYPE_CHECKING:
    from millstream.events.topic import TopicFacts

BEAT_SECONDS: Final = 1.0
"""Pause between heartbeats, unless the coordinator wants them more often."""

_REBALANCE_MS: Final = 30_000
_LEAVE_SECONDS: Final = 2.0
_JOINS, _LEAVES = 0, -1
_NOT_KNOWN: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class Membership:
    """One member of a group. ``join`` starts, ``leave`` ends it."""

    def __init__(
        self,
        topic: TopicFacts,
        group: str,
        take: Callable[[set[int]], Awaitable[None]],
        idle: Callable[[], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        """``take`` gives up and starts partitions until exactly those that it gets are owned. ``idle`` is called with
        each heartbeat without any. ``failed`` gets the error that ends the membership.
        """
        self.id = uuid.uuid4().hex
        self.epoch = _JOINS
        self.owned: set[int] = set()
        self._topic = topic
        self._group = group
        self._take = take
        self._idle = idle
        self._failed = failed
        self._pause_s = BEAT_SECONDS
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Enter the group. What the coordinator has for the member at once is taken when it returns."""
        await self._topic.cluster.insist(f"group {self._group}", self._beat)
        self._task = asyncio.ensure_future(self._keep())

    async def leave(self) -> None:
        """Leave the group; what was owned goes to others at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self.epoch = _LEAVES
        with suppress(MillstreamError, TimeoutError):
            await asyncio.wait_for(self._send(), _LEAVE_SECONDS)

    async def _keep(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._pause_s)
                try:
                    while await self._beat():
                        pass
                    if not self.owned:
                        await self._idle()
                except (Retriable, Unavailable):
                    self._topic.cluster.forget_coordinator(self._group)
        except Exception as error:  # noqa: BLE001 (the program gets it, whatever it is)
            self._failed(error)

    async def _beat(self) -> bool:
        """One heartbeat, and what follows from it. Whether partitions were given up, which the next one is to say."""
        answer = await self._send()
        if answer.error_code in _NOT_KNOWN and self.epoch != _JOINS:
            self.epoch = _JOINS
            await self._own(set())
            raise Retriable(f"group {self._group} does not know its member", ErrorCode(answer.error_code))
        check(answer.error_code, f"group {self._group}", answer.error_message)
        self.epoch = answer.member_epoch
        self._pause_s = min(BEAT_SECONDS, answer.heartbeat_interval_ms / 1000)
        if answer.assignment is None:
            return False
        assigned = answer.assignment.topic_partitions
        return await self._own({one for part in assigned if part.topic_id == self._topic.id for one in part.partitions})

    async def _own(self, wanted: set[int]) -> bool:
        """Own exactly these partitions; whether some were given up."""
        if wanted == self.owned:
            return False
        given_up = bool(self.owned - wanted)
        await self._take(wanted)
        self.owned = wanted
        return given_up

    async def _send(self) -> ConsumerGroupHeartbeatResponse:
        joins = self.epoch == _JOINS
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=_REBALANCE_MS if joins else -1,
            subscribed_topic_names=[self._topic.name] if joins else None,
            topic_partitions=[OwnedTopicPartitions(self._topic.id, sorted(self.owned))] if self.owned else [],
        )
        cluster = self._topic.cluster
        link = await cluster.coordinator(self._group)
        version = link.version_of(request.API_KEY)
        answer = await link.call(request, ConsumerGroupHeartbeatResponse, version, cluster.timeout_s)
        if answer.error_code:
            cluster.forget_coordinator(self._group)
        return answer
