"""A fed batch is worked on in parts, and a link cuts what it receives into frames."""

import asyncio
from array import array

import pytest

from millstream.errors import Corruption, Rejected, Unavailable
from millstream.events.event import Event
from millstream.events.fed_batch import PART_EVENTS, FedBatch
from millstream.events.link import FRAME_BYTES_MAX, Link, _Frames
from millstream.events.serializers import make_serializer
from millstream.format.events.descriptor import LOCATION, DataDescriptor, encode_descriptor
from millstream.model.error_code import ErrorCode
from millstream.model.events import ChunkId
from millstream.model.quantities import FilePosition
from millstream.wire.codec import encode_response
from millstream.wire.headers import response_header_version
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.feed_events import EventTimes, FeedEventsResponse
from millstream.wire.messages.fetch_event_data import FetchEventDataResponse, FoundEventData


class Consumer:
    """What a batch asks of its consumer."""

    def __init__(self, select=None):
        self.data_selector = select
        self.data_allocator = None if select is None else lambda _, descriptor: [bytearray(descriptor.size)]

    def acknowledge(self, partition_index, event_id):
        raise AssertionError("nothing is acknowledged here")


def size_of(number):
    return number % 7


def payload(number):
    return bytes([number % 251]) * size_of(number)


class Topic:
    """Answers with at most ``most`` events, and refuses the descriptors of ``refused`` until they name the event."""

    name = "t"

    def __init__(self, most, refused=frozenset()):
        self.most = most
        self.refused = refused
        self.calls = []

    async def fetch(self, partition_index, wanted):
        assert partition_index == 3
        self.calls.append([one.event_id for one in wanted])
        found, data = [], b""
        for one in wanted[: self.most]:
            if one.event_id in self.refused and not one.by_id:
                found.append(FoundEventData(int(ErrorCode.INVALID_REQUEST), 0))
                continue
            found.append(FoundEventData(0, size_of(one.event_id)))
            data += payload(one.event_id)
        return FetchEventDataResponse(events=found, data=data)


def answer(first, count):
    texts = [b'{"n":%d}' % (first + n) for n in range(count)]
    descriptors = [
        encode_descriptor(
            DataDescriptor(LOCATION.pack(ChunkId(0), FilePosition(n), size_of(first + n)), size_of(first + n))
        )
        for n in range(count)
    ]
    return FeedEventsResponse(
        first_event_id=first,
        times=[EventTimes(count, 5)],
        metadata_sizes=array("I", map(len, texts)).tobytes(),
        metadata=b"".join(texts),
        descriptor_sizes=array("I", map(len, descriptors)).tobytes(),
        descriptors=b"".join(descriptors),
    )


def batch_of(first, count, consumer=None, **changed):
    fed = answer(first, count)
    if changed:
        fed = FeedEventsResponse(**{**{name: getattr(fed, name) for name in fed.__struct_fields__}, **changed})
    return FedBatch(consumer or Consumer(), "t", make_serializer(None).deserialize, 3, fed)


@pytest.mark.parametrize("count", [1, PART_EVENTS - 1, PART_EVENTS, PART_EVENTS + 1, 2 * PART_EVENTS, 2500])
def test_a_batch_comes_in_parts_that_have_each_event_once_and_only_the_last_says_so(count):
    parts = list(batch_of(40, count).parts())
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(part.events) <= PART_EVENTS for part in parts)
    assert [event.id for part in parts for event in part.events] == list(range(40, 40 + count))
    wanted = [one for part in parts for one in part.wanted]
    assert [(one.event_id, one.size) for one in wanted] == [
        (n, size_of(n)) for n in range(40, 40 + count) if size_of(n)
    ]


@pytest.mark.parametrize("most", [1 << 20, 100])
@pytest.mark.parametrize("select", [None, lambda _, descriptor: descriptor])
def test_data_of_every_part_come_to_their_events_however_few_an_answer_has(most, select):
    topic = Topic(most, refused={41, 1700})
    parts = list(batch_of(40, 2000, Consumer(select)).parts())
    for part in parts:
        asyncio.run(part.fetch(topic, 3))
    for event in (event for part in parts for event in part.events):
        assert isinstance(event, Event)
        assert event.metadata == {"n": event.id}
        assert b"".join(event.data) == payload(event.id)
    asked = [one for call in topic.calls for one in call]
    assert asked.count(41) > 1, "what was refused was asked for by its id"


def test_an_event_that_fails_in_any_part_is_an_error_in_its_place():
    def select(metadata, descriptor):
        if metadata["n"] in (5, 1500):
            raise KeyError("which")
        return descriptor

    parts = list(batch_of(0, 2000, Consumer(select)).parts())
    for part in parts:
        asyncio.run(part.fetch(Topic(1 << 20), 3))
    events = [event for part in parts for event in part.events]
    assert [n for n, event in enumerate(events) if isinstance(event, Rejected)] == [5, 1500]
    assert all(b"".join(event.data) == payload(n) for n, event in enumerate(events) if isinstance(event, Event))


@pytest.mark.parametrize("field", ["metadata_sizes", "descriptor_sizes"])
def test_a_feed_whose_parts_do_not_fit_together_is_corrupt(field):
    with pytest.raises(Corruption):
        list(batch_of(0, 10, **{field: bytes(36)}).parts())


def test_an_answer_without_an_event_is_corrupt():
    (part,) = batch_of(1, 3).parts()
    with pytest.raises(Corruption, match="without an event"):
        asyncio.run(part.fetch(Topic(0), 3))


class Transport:
    def __init__(self):
        self.sent = []
        self.closed = False

    def writelines(self, parts):
        self.sent.append(b"".join(parts))

    def close(self):
        self.closed = True


def framed(correlation_id, software):
    response = ApiVersionsResponse(error_code=0, finalized_features_epoch=software)
    head = correlation_id.to_bytes(4, "big") + bytes(response_header_version(18, 3))
    body = bytes(encode_response(response, 3))
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


async def connected():
    link = Link("here:1")
    frames = _Frames(link)
    frames.connection_made(Transport())
    return link, frames


def feed(frames, data, step):
    """As the loop does: never more than the buffer has room for."""
    at = 0
    while at < len(data):
        room = frames.get_buffer(-1)
        count = min(step, len(room), len(data) - at)
        assert count, "no room"
        room[:count] = data[at : at + count]
        frames.buffer_updated(count)
        at += count


@pytest.mark.parametrize("step", [1, 3, 7, 64, 1 << 20])
def test_frames_come_whole_however_they_arrive(step):
    async def play():
        link, frames = await connected()
        calls = [asyncio.ensure_future(link.call(ApiVersionsRequest(), ApiVersionsResponse, 3, 60)) for _ in range(50)]
        await asyncio.sleep(0)
        feed(frames, b"".join(framed(number + 1, number) for number in range(50)), step)
        return [(await one).finalized_features_epoch for one in calls]

    assert asyncio.run(play()) == list(range(50))


@pytest.mark.parametrize(
    "data",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\0\0\0\3abc",
        framed(9, 0),
        framed(1, 0)[:4] + b"\0\0\0\1" + b"\xff" * 60,
    ],
)
def test_bytes_that_are_no_answer_close_the_link_and_fail_what_is_due(data):
    async def play():
        link, frames = await connected()
        call = asyncio.ensure_future(link.call(ApiVersionsRequest(), ApiVersionsResponse, 3, 60))
        await asyncio.sleep(0)
        feed(frames, data, 1 << 20)
        with pytest.raises(Unavailable, match="lost the broker"):
            await call
        assert not link.is_open
        with pytest.raises(Unavailable):
            await link.call(ApiVersionsRequest(), ApiVersionsResponse, 3, 60)

    asyncio.run(play())


def test_an_answer_that_nobody_asked_for_closes_the_link():
    async def play():
        link, frames = await connected()
        feed(frames, framed(1, 0), 1 << 20)
        assert not link.is_open

    asyncio.run(play())
