"""Brokers, topics and leaders as the client of event topics sees them, on the engine's loop.

``leader`` finds the link to the leader of a partition; ``forget`` makes the next call look again. ``insist`` repeats
what failed for a passing reason, with growing pauses, until its time is over.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from millstream.client.security import PLAIN, Security
from millstream.errors import MillstreamError, Rejected, Retriable, Unavailable
from millstream.events.link import Link
from millstream.model.error_code import RETRIABLE, ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millstream.wire.messages.events_metadata import (
    EventsMetadataRequest,
    EventsMetadataResponse,
    EventsMetadataTopic,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.schema import Request, Response

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Response)

_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0

COMPLETE: Final = "events.complete"
"""Topic property: no event follows the last one."""


class ClosesConsumer(Protocol):
    """A consumer, as far as its client closes it."""

    def close(self) -> None: ...


class EventCluster:
    """Links to brokers. Every method but ``__init__`` runs on the engine's loop."""

    def __init__(self, bootstrap: str, timeout_s: float, security: Security = PLAIN) -> None:
        self.timeout_s = timeout_s
        self.security = security
        self.consumers: weakref.WeakSet[ClosesConsumer] = weakref.WeakSet()
        """Consumers that use these links, as long as the program has them. Any thread."""
        self._seeds = [_address(part) for part in bootstrap.split(",") if part.strip()]
        if not self._seeds:
            raise Rejected("bootstrap servers are missing: give host:port, several separated by commas")
        self._addresses: dict[int, tuple[str, int]] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._topics: dict[str, EventsMetadataTopic] = {}
        self._coordinators: dict[str, Link] = {}

    async def close(self) -> None:
        """Close every link."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def topics(self, names: list[str] | None) -> dict[str, EventsMetadataTopic]:
        """Event topics by name (None: all), unknown ones left out."""

        async def ask() -> dict[str, EventsMetadataTopic]:
            answer = await self._anyone(EventsMetadataRequest(names), EventsMetadataResponse)
            self._addresses = {one.node_id: (one.host, one.port) for one in answer.brokers}
            found: dict[str, EventsMetadataTopic] = {}
            for topic in answer.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                check(topic.error_code, f"topic {topic.name}", topic.error_message)
                found[topic.name] = self._topics[topic.name] = topic
            return found

        return await self.insist("metadata", ask)

    async def topic(self, name: str) -> EventsMetadataTopic:
        """One topic. Raises Rejected if it does not exist."""
        found = (await self.topics([name])).get(name)
        if found is None:
            raise Rejected(f"there is no event topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    async def leader(self, topic: str, partition: int) -> tuple[Link, int]:
        """The link to the leader of a partition, and the leader's epoch."""
        known = self._topics.get(topic) or await self.topic(topic)
        for one in known.partitions:
            if one.partition_index == partition:
                if one.leader_id not in self._addresses:
                    self.forget(topic)
                    raise Retriable(f"{topic}-{partition} has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
                return await self.link(*self._addresses[one.leader_id]), one.leader_epoch
        raise Rejected(f"{topic} has no partition {partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def own_link(self, topic: str, partition: int) -> tuple[Link, int]:
        """A new link to the leader of a partition, for calls that wait on the broker. Its caller closes it."""
        link, epoch = await self.leader(topic, partition)
        host, _, port = link.address.rpartition(":")
        return await Link.open(host, int(port), self.security), epoch

    async def coordinator(self, consumer: str) -> Link:
        """The link to the broker that keeps the positions of a consumer."""
        held = self._coordinators.get(consumer)
        if held is not None and held.is_open:
            return held
        request = FindCoordinatorRequest(coordinator_keys=[consumer])
        answer = await self._anyone(request, FindCoordinatorResponse, 4)
        (found,) = answer.coordinators
        check(found.error_code, f"coordinator of {consumer}", found.error_message)
        link = self._coordinators[consumer] = await self.link(found.host, found.port)
        return link

    def forget_coordinator(self, consumer: str) -> None:
        """Another broker may keep the positions of a consumer by now."""
        self._coordinators.pop(consumer, None)

    def forget(self, topic: str) -> None:
        """What is known of a topic may be old."""
        self._topics.pop(topic, None)

    async def link(self, host: str, port: int) -> Link:
        """The shared link to an address."""
        held = self._links.get((host, port))
        if held is None or not held.is_open:
            held = self._links[host, port] = await Link.open(host, port, self.security)
        return held

    async def create(self, name: str, partitions_count: int, replicas_count: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        values = [CreatableTopicConfig(key, value) for key, value in configs.items()]
        topic = CreatableTopic(name, partitions_count, replicas_count, configs=values)
        request = CreateTopicsRequest([topic], timeout_ms=int(self.timeout_s * 1000))
        answer = await self._anyone(request, CreateTopicsResponse)
        for one in answer.topics:
            check(one.error_code, f"create topic {name}", one.error_message)

    async def delete(self, name: str) -> None:
        """Delete a topic."""
        request = DeleteTopicsRequest([DeleteTopicState(name)], [name], int(self.timeout_s * 1000))
        answer = await self._anyone(request, DeleteTopicsResponse)
        self.forget(name)
        for one in answer.responses:
            check(one.error_code, f"delete topic {name}", None)

    async def complete(self, name: str) -> None:
        """Let a topic end where it ends."""
        change = AlterConfigsResource(_TOPIC_RESOURCE, name, [AlterableConfig(COMPLETE, _SET, "true")])
        answer = await self._anyone(IncrementalAlterConfigsRequest([change]), IncrementalAlterConfigsResponse)
        for one in answer.responses:
            check(one.error_code, f"complete topic {name}", one.error_message)

    async def insist(self, what: str, ask: Callable[[], Awaitable[_T]], topic: str | None = None) -> _T:
        """Repeat ``ask`` until it succeeds, fails for a lasting reason, or time is over; ``topic`` is forgotten."""
        deadline = time.monotonic() + self.timeout_s
        pause_s = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await ask()
            except (Retriable, Unavailable) as error:
                if topic is not None:
                    self.forget(topic)
                if time.monotonic() + pause_s > deadline:
                    raise Unavailable(f"{what}: {error.message}", error.code) from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)

    async def _anyone(self, request: Request, answer: type[_R], highest: int = 32767) -> _R:
        """Ask the first broker that answers, in a version of ``highest`` at most."""
        failures: list[str] = []
        for host, port in dict.fromkeys([*self._seeds, *self._addresses.values()]):
            try:
                link = await self.link(host, port)
            except Unavailable as error:
                failures.append(error.message)
                continue
            return await link.call(request, answer, link.version_of(request.API_KEY, highest), self.timeout_s)
        raise Unavailable("; ".join(failures), ErrorCode.NETWORK_EXCEPTION)


def check(code: int, what: str, detail: str | None) -> None:
    """Raise the error of a code: Retriable if a retry can succeed, else Rejected; nothing for 0."""
    if not code:
        return
    known = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
    kind: type[MillstreamError] = Retriable if known in RETRIABLE else Rejected
    raise kind(f"{what}: {detail or known.name}", known)


def json_text(description: Mapping[str, Any]) -> str:
    """A description as it is stored with a topic."""
    return msgspec.json.encode(dict(description)).decode()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise Rejected(f"{text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
