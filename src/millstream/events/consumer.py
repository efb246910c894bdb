"""Consumers: metadata and descriptors are fed, data are fetched where they are wanted.

For each partition a task on the engine's loop feeds events ahead of the program: at most ``max_num_batches`` batches,
of ``max_bytes`` each, that the program has not taken. What a program decides, its *data selector* and *data
allocator*, runs on a thread of the consumer. Then all selected data of the batch are fetched in as few round trips as
their size allows, into the buffers of the allocator.

An event whose selector, allocator or data failed is not skipped: pulling it raises its error, and the next pull goes
on. A lost connection or a moved leader costs a repetition. A pull that times out loses nothing.

A consumer begins behind the last event that was acknowledged under its name, else at the first one. Acknowledgements
are durable and only move forward; ``seek`` moves anywhere. Consumers of one name share the partitions (``membership``):
each feeds those that it is assigned, and a partition that changes hands goes on behind its last acknowledged event. A
consumer with ``targets`` feeds those and shares nothing.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.events.cluster import check
from millstream.events.event import Event
from millstream.events.futures import Pending
from millstream.events.mailbox import Mailbox
from millstream.events.membership import Membership
from millstream.events.positions import Positions
from millstream.events.topic import FETCH_EVENTS_MAX, by_event_id
from millstream.format.events.batch import cut
from millstream.format.events.descriptor import (
    DataDescriptor,
    decode_descriptor,
    encode_descriptor,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.feed_events import FeedEventsRequest, FeedEventsResponse
from millstream.wire.messages.fetch_event_data import FoundEventData, WantedEventData

if TYPE_CHECKING:
    from millstream.events.link import Link
    from millstream.events.topic import TopicFacts

DataSelector: TypeAlias = Callable[[Any, DataDescriptor], DataDescriptor | None]
"""Metadata and descriptor → what of the data is wanted; None for nothing."""
DataAllocator: TypeAlias = Callable[[Any, DataDescriptor], Sequence[Any]]
"""Metadata and selected descriptor → writable buffers that have exactly its size together."""

FEED_BYTES_MAX: Final = 1 << 20
WAIT_MS: Final = 500
_NO_DATA: Final = bytes(8)
_EVENTS_MAX: Final = (1 << 31) - 1
_PAUSE_SECONDS: Final = 0.05
_CANCEL_SECONDS: Final = 0.2


class _Wanted(NamedTuple):
    """Data to fetch: for the event at a place of its batch, into these buffers (None: into new memory)."""

    place: int
    event_id: int
    descriptor: bytes
    size: int
    buffers: list[memoryview] | None
    by_id: bool = False
    """Whether the descriptor names the event and not a place in a chunk."""


class Consumer:
    """Consumes events of one topic under a name. Safe for threads. Close it, or use it as a context manager."""

    def __init__(
        self,
        topic: TopicFacts,
        name: str,
        *,
        data_selector: DataSelector | None = None,
        data_allocator: DataAllocator | None = None,
        batch_size: int | None = None,
        max_num_batches: int = 2,
        targets: Sequence[int] | None = None,
        max_bytes: int = FEED_BYTES_MAX,
    ) -> None:
        """Begin to feed. ``data_selector`` and ``data_allocator`` come together; without them all data are fetched.

        Args:
            topic: what is consumed.
            name: whose acknowledgements count.
            data_selector: which data of an event are fetched.
            data_allocator: where they go.
            batch_size: maximum number of events in a batch; None leaves it to ``max_bytes``.
            max_num_batches: maximum number of batches of a partition that wait for the program.
            targets: partitions; if None, its share of all.
            max_bytes: maximum size of metadata and descriptors in a batch.
        """
        if (data_selector is None) != (data_allocator is None):
            raise Rejected("a data selector and a data allocator come together")
        if (batch_size is not None and batch_size < 1) or max_num_batches < 1 or max_bytes < 1:
            raise Rejected("batch_size, max_num_batches and max_bytes are 1 at least")
        unknown = [one for one in targets or () if one not in topic.partitions]
        if unknown:
            raise Rejected(f"{topic.name} has no partition {unknown[0]}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.topic = topic
        self.name = name
        self.data_selector = data_selector
        self.data_allocator = data_allocator
        self.batch_size = batch_size
        self.max_num_batches = max_num_batches
        self.targets = list(topic.partitions if targets is None else targets)
        self._max_bytes = max_bytes
        self._engine = topic.engine
        self._cluster = topic.cluster
        self._mailbox = Mailbox()
        self._decisions = ThreadPoolExecutor(1, thread_name_prefix=f"events-{name}")
        self._feeds: dict[int, asyncio.Task[None]] = {}
        self._running: set[int] = set()
        """Partitions that are fed and have not ended."""
        self._membership: Membership | None = None
        if targets is None:
            self._membership = Membership(topic, name, self._take, self._end_if_complete, self._mailbox.end)
        self._positions = Positions(topic, name, self._membership)
        self._closed = False
        self._engine.start(self._begin()).result()
        self._engine.leave_at_exit(self)
        topic.cluster.consumers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """Events, until the topic is complete and all of it was consumed."""
        while (event := self.pull()).id is not None:
            yield event

    def pull(self, timeout_s: float | None = None) -> Event:
        """The next event; at the end of a completed topic one without id.

        Raises:
            TimeoutError: none came in time. The next pull gets it.
            MillstreamError: this event's selector, allocator or data failed, or the topic is gone.
        """
        ready = self._mailbox.take()
        if ready is not None:
            return ready
        future = self.pull_soon()
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()

    def pull_soon(self) -> Pending[Event]:
        """The next event, later. ``cancel`` gives the pull up."""
        self._engine.check()
        return self._mailbox.pull()

    def process(
        self,
        function: Callable[[Event], object],
        *,
        timeout_s: float | None = None,
        max_events: int | None = None,
    ) -> int:
        """Call a function with each event, on this thread; returns how many there were.

        It ends after ``max_events``, at the end of a completed topic, or when none came for ``timeout_s``.
        """
        count = 0
        while max_events is None or count < max_events:
            try:
                event = self.pull(timeout_s)
            except TimeoutError:
                return count
            if event.id is None:
                return count
            function(event)
            count += 1
        return count

    def acknowledge(self, partition_index: int, event_id: int) -> Pending[None]:
        """The event and all before it are done with. The result: it is durable."""
        self._engine.check()
        done: Pending[None] = Pending()
        self._engine.call(self._positions.acknowledge, partition_index, event_id + 1, done)
        return done

    def seek(self, partition_index: int, event_id: int) -> None:
        """Go on at an event of a partition, forwards or backwards; durable. What waits to be pulled is dropped."""
        if partition_index not in self.targets:
            raise Rejected(f"{self.name} does not consume partition {partition_index}")
        self._engine.start(self._seek(partition_index, event_id)).result()

    def lag(self) -> dict[int, int]:
        """For each partition the number of events that are not acknowledged."""
        return self._engine.start(self._lag()).result()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop feeding; acknowledgements under way are waited for. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._engine.start(self._stop()).result(timeout_s)
            self._decisions.shutdown(wait=False)
            self._mailbox.end(Rejected("the consumer is closed"))

    def stop(self) -> Future[None] | None:
        """Stop feeding, without waiting for anything. For finalizers, which may not wait."""
        if self._closed:
            return None
        self._closed = True
        self._decisions.shutdown(wait=False)
        with suppress(Rejected, RuntimeError):  # after a fork, or when the interpreter ends
            return self._engine.start(self._stop())
        return None

    # -- feeding -------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._membership is not None:
            await self._membership.join()
        else:
            await self._take(set(self.targets))

    async def _take(self, wanted: set[int]) -> None:
        """Feed exactly these partitions; what waits to be pulled of others is dropped."""
        gone = self._feeds.keys() - wanted
        for one in gone:
            await _cancelled(self._feeds.pop(one))
            self._mailbox.drop(one)
            self._running.discard(one)
        if gone:
            await self._positions.finish()
        new = sorted(wanted - self._feeds.keys())
        positions = await self._positions.ask(new) if new else {}
        for one in new:
            self._positions.forget(one)
            self._start(one, max(0, positions[one]))
        self._end_if_fed()

    def _start(self, partition_index: int, position: int) -> None:
        self._running.add(partition_index)
        self._feeds[partition_index] = asyncio.ensure_future(self._feed(partition_index, position))

    def _end_if_fed(self) -> None:
        """The end, if every partition that is fed has ended."""
        if self._feeds and not self._running:
            self._mailbox.end(Event(None))

    async def _end_if_complete(self) -> None:
        """The end of a consumer without a partition: that of the topic."""
        if await self.topic.is_complete():
            self._mailbox.end(Event(None))

    async def _feed(self, partition_index: int, position: int) -> None:
        """Feed one partition to its end."""
        room = asyncio.Semaphore(self.max_num_batches)
        link: Link | None = None
        try:
            while True:
                await room.acquire()
                try:
                    if link is None or not link.is_open:
                        link, _ = await self._cluster.own_link(self.topic.name, partition_index)
                    answer = await self._next(link, partition_index, position)
                except (Retriable, Unavailable):
                    self._cluster.forget(self.topic.name)
                    link = _closed(link)
                    room.release()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = max(position, answer.log_start_offset)
                    room.release()
                    continue
                if answer.no_more_events:
                    break
                count = len(answer.metadata_sizes) // 4
                if count:
                    await self._work_on(partition_index, answer, room)
                    position = answer.first_event_id + count
                else:
                    room.release()
        except Exception as error:  # noqa: BLE001 (the program gets it, whatever it is)
            self._mailbox.end(error)
            return
        finally:
            _closed(link)
        self._running.discard(partition_index)
        self._end_if_fed()

    async def _next(self, link: Link, partition_index: int, position: int) -> FeedEventsResponse:
        request = FeedEventsRequest(
            consumer=self.name,
            topic_id=self.topic.id,
            partition_index=partition_index,
            next_event_id=position,
            max_events=self.batch_size or _EVENTS_MAX,
            max_bytes=self._max_bytes,
            max_wait_ms=WAIT_MS,
        )
        version = link.version_of(request.API_KEY)
        answer = await link.call(request, FeedEventsResponse, version, self._cluster.timeout_s + WAIT_MS / 1000)
        if answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE or answer.log_start_offset <= position:
            check(answer.error_code, f"feed of {self.topic.name}-{partition_index}", answer.error_message)
        return answer

    async def _work_on(self, partition_index: int, answer: FeedEventsResponse, room: asyncio.Semaphore) -> None:
        """Decide on a batch, fetch what is wanted of it, and put it into the mailbox."""
        loop = asyncio.get_running_loop()
        events, wanted = await loop.run_in_executor(self._decisions, self._decide, partition_index, answer)
        await self._fetch(partition_index, events, wanted)
        self._mailbox.put(events, lambda: self._engine.call(room.release))

    def _decide(
        self, partition_index: int, answer: FeedEventsResponse
    ) -> tuple[list[Event | Exception], list[_Wanted]]:
        """On the consumer's thread: deserialize, ask selector and allocator."""
        metadata = cut(_bytes(answer.metadata), _sizes(answer.metadata_sizes))
        descriptors = cut(_bytes(answer.descriptors), _sizes(answer.descriptor_sizes))
        times = [one.timestamp for one in answer.times for _ in range(one.count)]
        if not len(metadata) == len(descriptors) == len(times):
            raise Corruption(
                f"a feed of {self.topic.name} with {len(metadata)} metadata, {len(descriptors)} descriptors"
            )
        events: list[Event | Exception] = []
        wanted: list[_Wanted] = []
        deserialize = self.topic.serializer.deserialize
        choose = self._choose if self.data_selector is not None else None
        event_id = answer.first_event_id
        for place, (text, stored, timestamp) in enumerate(zip(metadata, descriptors, times, strict=True)):
            try:
                event = Event(event_id + place, partition_index, deserialize(text), (), timestamp, stored, self)
                if choose is not None:
                    one = choose(event, place)
                    if one is not None:
                        wanted.append(one)
                elif stored[:8] != _NO_DATA:
                    wanted.append(_Wanted(place, event_id + place, stored, int.from_bytes(stored[:8], "little"), None))
                events.append(event)
            except Exception as error:  # noqa: BLE001 (whatever the program's functions raise)
                events.append(_failure(event_id + place, error))
        return events, wanted

    def _choose(self, event: Event, place: int) -> _Wanted | None:
        """What is to be fetched for an event, as selector and allocator decide."""
        assert event.id is not None and self.data_selector is not None and self.data_allocator is not None
        selected = self.data_selector(event.metadata, event.descriptor)
        if selected is None:
            return None
        event.data = list(self.data_allocator(event.metadata, selected))
        buffers = [memoryview(one).cast("B") for one in event.data]
        room, size = sum(map(len, buffers)), selected.size
        if room != size:
            raise Rejected(f"the allocator gave {room} bytes for {size}")
        return _Wanted(place, event.id, encode_descriptor(selected), size, buffers) if size else None

    async def _fetch(self, partition_index: int, events: list[Event | Exception], wanted: list[_Wanted]) -> None:
        """Fetch the selected data of a batch, and put them where they belong."""
        while wanted:
            asked = wanted[:FETCH_EVENTS_MAX]
            answer = await self.topic.fetch(
                partition_index, [WantedEventData(one.event_id, one.descriptor) for one in asked]
            )
            if not answer.events:
                raise Corruption(f"a fetch of data of {self.topic.name}-{partition_index} without an event")
            data, at = _view(answer.data), 0
            again: list[_Wanted] = []
            for one, found in zip(asked, answer.events, strict=False):
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

    # -- positions and end ---------------------------------------------------------------------------------------------

    async def _seek(self, partition_index: int, event_id: int) -> None:
        feed = self._feeds.get(partition_index)
        if feed is None:
            raise Rejected(f"another consumer of the name {self.name} has partition {partition_index} now")
        await self._positions.seek(partition_index, event_id)
        await _cancelled(feed)
        self._mailbox.drop(partition_index)
        self._start(partition_index, event_id)

    async def _lag(self) -> dict[int, int]:
        positions = await self._positions.ask(self.targets)
        ends = await self.topic.ends()
        return {one: ends[one].next_id - max(positions[one], ends[one].first_id) for one in self.targets}

    async def _stop(self) -> None:
        for task in list(self._feeds.values()):
            await _cancelled(task)
        await self._positions.finish()
        if self._membership is not None:
            await self._membership.leave()


def _failure(event_id: int, error: Exception) -> MillstreamError:
    """The error of an event whose selector, allocator or metadata failed."""
    if isinstance(error, MillstreamError):
        return error
    failure = Rejected(f"event {event_id}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _by_id(wanted: _Wanted) -> _Wanted:
    """The same with the event's id for its place: chunks of another replica, which leads now, may be cut elsewhere."""
    named = by_event_id(wanted.event_id, decode_descriptor(wanted.descriptor))
    return wanted._replace(descriptor=encode_descriptor(named), by_id=True)


def _no_data(wanted: _Wanted, found: FoundEventData) -> MillstreamError:
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


def _closed(link: Link | None) -> None:
    if link is not None:
        link.close()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. ``asyncio.wait_for`` loses a cancellation that comes with the result (Python
    3.11), so it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_SECONDS)
