"""Consumers: metadata and descriptors are fed, data are fetched where they are wanted.

For each partition a task on the engine's loop feeds events ahead of the program: at most ``max_num_batches`` batches,
of ``max_bytes`` each, that the program has not taken. What a program decides, its *data selector* and *data
allocator*, runs on a thread of the consumer. Then all selected data of the batch are fetched in as few round trips as
their size allows, into the buffers of the allocator.

An event whose selector, allocator or data failed is not skipped: pulling it raises its error, and the next pull goes
on. A lost connection or a moved leader costs a repetition. A pull that times out loses nothing.

A consumer starts after the last event that was acknowledged under its name, else at the first one. Acknowledgements
are durable and only move forward; ``seek`` moves anywhere. Consumers of one name share the partitions (``membership``):
each feeds those that it is assigned, and a partition that changes hands continues after its last acknowledged event. A
consumer with ``targets`` feeds those and shares nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from millstream.errors import Rejected, Retriable, Unavailable
from millstream.events.cluster import check
from millstream.events.event import Event
from millstream.events.fed_batch import FedBatch
from millstream.events.futures import Pending
from millstream.events.mailbox import Mailbox
from millstream.events.membership import Membership
from millstream.events.positions import Positions
from millstream.format.events.descriptor import (
    DataDescriptor,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.feed_events import FeedEventsRequest, FeedEventsResponse

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


class _Run:
    """One partition, from the first feed to the last."""

    __slots__ = ("ended", "partition_index", "room")

    def __init__(self, partition_index: int, batches_max: int) -> None:
        self.partition_index = partition_index
        self.room = asyncio.Semaphore(batches_max)
        """Batches that may be asked for: fewer by those that the program has not taken."""
        self.ended = False
        """Nothing more goes into the mailbox."""


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
        """Start to feed. ``data_selector`` and ``data_allocator`` come together; without them all data are fetched.

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
            MillstreamError: this event's selector, allocator or data failed, or the topic was deleted.
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
        """Continue at an event of a partition, forwards or backwards; durable. What waits to be pulled is dropped."""
        if partition_index not in self.targets:
            raise Rejected(f"{self.name} does not consume partition {partition_index}")
        self._engine.start(self._seek(partition_index, event_id)).result()

    def lag(self) -> dict[int, int]:
        """For each partition the number of events that are not acknowledged."""
        return self._engine.start(self._lag()).result()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop feeding; acknowledgements in progress are waited for. Closing twice is allowed."""
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
        """Feed one partition to its end. The next batch is asked for while the one before is worked on."""
        run = _Run(partition_index, self.max_num_batches)
        working: asyncio.Task[None] | None = None
        link: Link | None = None
        try:
            while True:
                await run.room.acquire()
                try:
                    if link is None or not link.is_open:
                        link, _ = await self._cluster.own_link(self.topic.name, partition_index)
                    answer = await self._next(link, partition_index, position)
                except (Retriable, Unavailable):
                    self._cluster.forget(self.topic.name)
                    link = _closed(link)
                    run.room.release()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = max(position, answer.log_start_offset)
                    run.room.release()
                    continue
                count = len(answer.metadata_sizes) // 4
                if not count and not answer.no_more_events:
                    run.room.release()
                    continue
                if working is not None:
                    await working
                if run.ended:
                    return
                if answer.no_more_events:
                    break
                batch = FedBatch(self, self.topic.name, self.topic.serializer.deserialize, partition_index, answer)
                working = asyncio.ensure_future(self._work_on(run, batch))
                position = answer.first_event_id + count
        except Exception as error:  # noqa: BLE001 (the program gets it, whatever it is)
            self._mailbox.end(error)
            return
        finally:
            run.ended = True
            if working is not None:
                working.cancel()
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

    async def _work_on(self, run: _Run, batch: FedBatch) -> None:
        """Decide on a batch, fetch what is wanted of it, and put it into the mailbox, part by part: while the data of
        one part are on their way, the next one is decided on.
        """
        loop = asyncio.get_running_loop()
        parts = batch.parts()
        try:
            deciding = loop.run_in_executor(self._decisions, next, parts, None)
            while (part := await deciding) is not None:
                deciding = loop.run_in_executor(self._decisions, next, parts, None)
                await part.fetch(self.topic, run.partition_index)
                if run.ended:
                    return
                self._mailbox.put(part.events, partial(self._engine.call, run.room.release) if part.is_last else None)
        except Exception as error:  # noqa: BLE001 (the program gets it, whatever it is)
            run.ended = True
            self._mailbox.end(error)

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
