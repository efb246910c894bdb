"""A batch of events that was fed: metadata read, selector and allocator asked, selected data fetched.

The batch is worked on in parts of ``PART_EVENTS``. ``FedBatch.parts`` decides, on the consumer's thread;
``FedPart.fetch`` fetches, on the engine's loop, in as few round trips as the size of the data allows. So the data of a
part are on their way while the next part is decided on, and the program has the part before.

An event whose metadata, selector, allocator or data failed stands in its part as its error. A batch that does not fit
together raises ``Corruption``.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.events.cluster import check
from millstream.events.event import Acknowledges, Event
from millstream.events.topic import by_event_id
from millstream.format.events.batch import cut
from millstream.format.events.descriptor import DataDescriptor, decode_descriptor, encode_descriptor
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.fetch_event_data import FetchEventDataResponse, FoundEventData, WantedEventData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.wire.messages.feed_events import FeedEventsResponse

PART_EVENTS: Final = 1024
"""Few enough that the first events of a batch come soon, enough that a round trip costs little an event."""

_NO_DATA: Final = bytes(8)


class Decides(Acknowledges, Protocol):
    """The consumer of a batch. Selector and allocator come together."""

    data_selector: Callable[[Any, DataDescriptor], DataDescriptor | None] | None
    data_allocator: Callable[[Any, DataDescriptor], Sequence[Any]] | None


class Fetches(Protocol):
    """An open topic, as far as data are fetched of it."""

    name: str

    async def fetch(self, partition_index: int, wanted: Sequence[WantedEventData]) -> FetchEventDataResponse:
        """As ``TopicFacts.fetch``."""
        ...


class Wanted(WantedEventData):
    """Data to fetch: for the event at a place of its part, into these buffers (None: into new memory)."""

    place: int = 0
    size: int = 0
    buffers: list[memoryview] | None = None
    by_id: bool = False
    """Whether the descriptor names the event and not a place in a chunk."""


class FedPart(NamedTuple):
    """Events of a batch in order, and what of their data is wanted."""

    events: list[Event | Exception]
    wanted: list[Wanted]
    is_last: bool

    async def fetch(self, topic: Fetches, partition_index: int) -> None:
        """Fetch the selected data, and put them where they belong."""
        wanted, events = self.wanted, self.events
        while wanted:
            answer = await topic.fetch(partition_index, wanted)
            if not answer.events:
                raise Corruption(f"a fetch of data of {topic.name}-{partition_index} without an event")
            data, at = _view(answer.data), 0
            again: list[Wanted] = []
            for one, found in zip(wanted, answer.events, strict=False):
                piece, at = data[at : at + found.size], at + found.size
                event = events[one.place]
                assert isinstance(event, Event)
                if found.error_code == ErrorCode.INVALID_REQUEST and not one.by_id:
                    again.append(_by_id(one))
                elif found.error_code or found.size != one.size:
                    events[one.place] = _no_data(one, found)
                elif one.buffers is None:
                    event.data = [piece]
                else:
                    _scatter(piece, one.buffers)
            wanted = [*again, *wanted[len(answer.events) :]]


class FedBatch:
    """One answer to a feed. Its parts are made one after the other, on any thread."""

    def __init__(
        self,
        consumer: Decides,
        topic: str,
        deserialize: Callable[[bytes], Any],
        partition_index: int,
        answer: FeedEventsResponse,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._deserialize = deserialize
        self._partition_index = partition_index
        self._answer = answer

    def parts(self) -> Iterator[FedPart]:
        """The batch in parts, one at least. Calls selector and allocator."""
        answer = self._answer
        metadata = cut(_bytes(answer.metadata), _sizes(answer.metadata_sizes))
        descriptors = cut(_bytes(answer.descriptors), _sizes(answer.descriptor_sizes))
        times = [one.timestamp for one in answer.times for _ in range(one.count)]
        count = len(metadata)
        if not count == len(descriptors) == len(times):
            raise Corruption(f"a feed of {self._topic} with {count} metadata, {len(descriptors)} descriptors")
        for start in range(0, count, PART_EVENTS):
            end = start + PART_EVENTS
            events, wanted = self._decide(
                answer.first_event_id + start, metadata[start:end], descriptors[start:end], times[start:end]
            )
            yield FedPart(events, wanted, end >= count)

    def _decide(
        self, first_id: int, metadata: list[bytes], descriptors: list[bytes], times: list[int]
    ) -> tuple[list[Event | Exception], list[Wanted]]:
        """Deserialize, ask selector and allocator."""
        events: list[Event | Exception] = []
        wanted: list[Wanted] = []
        consumer, partition_index, deserialize = self._consumer, self._partition_index, self._deserialize
        choose = self._choose if consumer.data_selector is not None else None
        for place, (text, stored, timestamp) in enumerate(zip(metadata, descriptors, times, strict=True)):
            try:
                event = Event(first_id + place, partition_index, deserialize(text), (), timestamp, stored, consumer)
                if choose is not None:
                    one = choose(event, place)
                    if one is not None:
                        wanted.append(one)
                elif stored[:8] != _NO_DATA:
                    wanted.append(Wanted(first_id + place, stored, place, int.from_bytes(stored[:8], "little")))
                events.append(event)
            except BaseException as error:  # noqa: BLE001 (SystemExit of the program's functions would end the engine)
                events.append(_failure(first_id + place, error))
        return events, wanted

    def _choose(self, event: Event, place: int) -> Wanted | None:
        """What is to be fetched for an event, as selector and allocator decide."""
        select, allocate = self._consumer.data_selector, self._consumer.data_allocator
        assert event.id is not None and select is not None and allocate is not None
        selected = select(event.metadata, event.descriptor)
        if selected is None:
            return None
        event.data = list(allocate(event.metadata, selected))
        buffers = [memoryview(one).cast("B") for one in event.data]
        if any(one.readonly for one in buffers):
            raise Rejected("the allocator gave a buffer that is read-only")
        room, size = sum(map(len, buffers)), selected.size
        if room != size:
            raise Rejected(f"the allocator gave {room} bytes for {size}")
        return Wanted(event.id, encode_descriptor(selected), place, size, buffers) if size else None


def _failure(event_id: int, error: BaseException) -> MillstreamError:
    """The error of an event whose selector, allocator or metadata failed."""
    if isinstance(error, MillstreamError):
        return error
    failure = Rejected(f"event {event_id}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _by_id(wanted: Wanted) -> Wanted:
    """The same with the event's id for its place: chunks of another replica, which leads now, may be cut elsewhere."""
    named = by_event_id(wanted.event_id, decode_descriptor(wanted.descriptor))
    return Wanted(wanted.event_id, encode_descriptor(named), wanted.place, wanted.size, wanted.buffers, True)


def _no_data(wanted: Wanted, found: FoundEventData) -> MillstreamError:
    """Why the data of an event did not come."""
    try:
        check(found.error_code, f"data of event {wanted.event_id}", None)
    except MillstreamError as error:
        return error
    return Corruption(f"{found.size} bytes of data for {wanted.size} of event {wanted.event_id}")


def _scatter(data: memoryview, buffers: Sequence[memoryview]) -> None:
    at = 0
    for one in buffers:
        one[:] = data[at : at + len(one)]
        at += len(one)


def _bytes(data: Any) -> bytes:
    """A field of an answer, which decoders leave in its frame, as bytes: they are cut into many pieces."""
    return b"" if data is None else bytes(data)


def _sizes(data: bytes) -> array[int]:
    sizes = array("I")
    sizes.frombytes(data)
    return sizes


def _view(data: Any) -> memoryview:
    """A records field of an answer, which decoders leave in its frame."""
    return memoryview(b"" if data is None else data)
