"""What producers and consumers know of their topic, and the two requests that need nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import Rejected, Retriable
from millstream.events.cluster import check
from millstream.events.selectors import make_selector
from millstream.events.serializers import make_serializer
from millstream.events.validators import make_validator
from millstream.format.events.descriptor import (
    BY_ID,
    DataDescriptor,
    decode_location,
    descriptor_of_event,
    encode_descriptor,
)
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.wire.messages.events_metadata import (
    EventsMetadataPartition,
    EventsMetadataRequest,
    EventsMetadataResponse,
)
from millstream.wire.messages.fetch_event_data import (
    FetchEventDataRequest,
    FetchEventDataResponse,
    WantedEventData,
)

if TYPE_CHECKING:
    from millstream.events.cluster import EventCluster
    from millstream.events.engine import Engine
    from millstream.events.selectors import PartitionSelector
    from millstream.wire.messages.events_metadata import EventsMetadataTopic


FETCH_BYTES_MAX: Final = 16 << 20
"""Maximum size of the data in one answer, unless one event has more."""
FETCH_EVENTS_MAX: Final = 4096


class Ends(NamedTuple):
    """The first event that is kept, and the id that the next event will have."""

    first_id: int
    next_id: int


class TopicFacts:
    """An open topic, as ``EventsClient.open_topic`` found it. It does not change."""

    def __init__(
        self,
        engine: Engine,
        cluster: EventCluster,
        described: EventsMetadataTopic,
        *,
        validator: Any,
        selector: Any,
        serializer: Any,
    ) -> None:
        """``validator``, ``selector`` and ``serializer`` replace those that are stored with the topic."""
        self.engine = engine
        self.cluster = cluster
        self.name = described.name
        self.id = described.topic_id
        self.partitions = [one.partition_index for one in described.partitions]
        self.uuids = {one.partition_index: one.uuid for one in described.partitions}
        self.event_bytes_max = described.event_bytes_max
        self.validator = make_validator(_stored(described.validator) if validator is None else validator)
        self.serializer = make_serializer(_stored(described.serializer) if serializer is None else serializer)
        self._selector = _stored(described.selector) if selector is None else selector
        make_selector(self._selector)

    def new_selector(self) -> PartitionSelector:
        """A partition selector for one producer."""
        return make_selector(self._selector)

    def fetch_data(self, partition_index: int, wanted: Sequence[tuple[int, DataDescriptor]]) -> list[memoryview]:
        """The selected data of many events, by event id and descriptor, in as few round trips as their size allows.

        Raises:
            Rejected: a descriptor does not fit its event, whose data have another size, or there is no such event.
        """
        return self.engine.start(self._fetch_all(partition_index, wanted)).result()

    # -- on the loop ---------------------------------------------------------------------------------------------------

    async def ends(self) -> dict[int, Ends]:
        """``end_ids`` on the engine's loop. Only the leader of a partition knows them."""
        found = await self.cluster.topic(self.name)
        if found.topic_id != self.id:
            raise Rejected(f"topic {self.name} was deleted and created again")
        ends: dict[int, Ends] = {}
        for one in found.partitions:
            known = one if one.next_event_id >= 0 else await self._told_by_leader(one.partition_index)
            ends[one.partition_index] = Ends(known.first_event_id, known.next_event_id)
        return ends

    async def _told_by_leader(self, partition_index: int) -> EventsMetadataPartition:
        what = f"end of {self.name}-{partition_index}"

        async def ask() -> EventsMetadataPartition:
            link, _ = await self.cluster.leader(self.name, partition_index)
            version = link.version_of(EventsMetadataRequest.API_KEY)
            request = EventsMetadataRequest([self.name])
            answer = await link.call(request, EventsMetadataResponse, version, self.cluster.timeout_s)
            for one in (one for topic in answer.topics for one in topic.partitions):
                if one.partition_index == partition_index and one.next_event_id >= 0:
                    return one
            raise Retriable(f"the broker at {link.address} does not lead it", ErrorCode.NOT_LEADER_OR_FOLLOWER)

        return await self.cluster.insist(what, ask, self.name)

    async def is_complete(self) -> bool:
        """Whether no event follows the last one."""
        found = await self.cluster.topic(self.name)
        if found.topic_id != self.id:
            raise Rejected(f"topic {self.name} was deleted and created again")
        return found.complete

    async def fetch(self, partition_index: int, wanted: Sequence[WantedEventData]) -> FetchEventDataResponse:
        """One round trip on the engine's loop: the data of the first of the wanted events."""
        cluster = self.cluster
        request = FetchEventDataRequest(self.id, partition_index, -1, FETCH_BYTES_MAX, list(wanted))
        what = f"data of {self.name}-{partition_index}"

        async def ask() -> FetchEventDataResponse:
            link, _ = await cluster.leader(self.name, partition_index)
            version = link.version_of(request.API_KEY)
            answer = await link.call(request, FetchEventDataResponse, version, cluster.timeout_s)
            check(answer.error_code, what, answer.error_message)
            return answer

        return await cluster.insist(what, ask, self.name)

    async def _fetch_all(self, partition_index: int, wanted: Sequence[tuple[int, DataDescriptor]]) -> list[memoryview]:
        left = [
            (place, event_id, descriptor, decode_location(descriptor.location).chunk == BY_ID)
            for place, (event_id, descriptor) in enumerate(wanted)
        ]
        found = [memoryview(b"")] * len(wanted)
        while left:
            asked = left[:FETCH_EVENTS_MAX]
            request = [WantedEventData(event_id, encode_descriptor(descriptor)) for _, event_id, descriptor, _ in asked]
            answer = await self.fetch(partition_index, request)
            if not answer.events:
                raise Rejected(f"no data of event {left[0][1]}")
            data, at = memoryview(answer.data or b""), 0  # type: ignore[arg-type]
            again: list[tuple[int, int, DataDescriptor, bool]] = []
            for (place, event_id, descriptor, by_id), one in zip(asked, answer.events, strict=False):
                if one.error_code == ErrorCode.INVALID_REQUEST and not by_id:
                    again.append((place, event_id, by_event_id(event_id, descriptor), True))
                    continue
                check(one.error_code, f"data of event {event_id}", None)
                found[place] = data[at : at + one.size]
                at += one.size
            left = [*again, *left[len(answer.events) :]]
        return found


def by_event_id(event_id: int, descriptor: DataDescriptor) -> DataDescriptor:
    """The same selection with the event's id for its place: chunks of another replica, which leads now, may be cut
    elsewhere.
    """
    named = descriptor_of_event(Offset(event_id), descriptor.base_size)
    return DataDescriptor(named.location, descriptor.base_size, descriptor.views)


def _stored(text: str) -> Mapping[str, Any] | None:
    """A description that is stored with a topic."""
    return msgspec.json.decode(text) if text else None
