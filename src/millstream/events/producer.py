"""Producers: events become batches, one line of batches a partition.

``push`` validates, selects and serializes on the caller's thread, puts the event into the partition's open batch, and
returns a ``Pending`` of its id. A batch is sent when it is full, when a caller waits for one of its events, or on
``flush``; with an adaptive size (None) it leaves whenever the line is free, with all that came in between.

Bounds: a line holds ``max_num_batches`` batches that wait; then ``push`` blocks. Data are not copied: the caller keeps
them unchanged until the event's future is done.

Order. With ``Ordering.STRICT`` one batch of a line is in flight, with a producer id and sequence, so that a batch
whose answer was lost is sent again and stored once. With ``LOOSE`` several are in flight without one: a lost answer is
``OutcomeUnknown``. A batch that is refused fails its own events only; those after it continue.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, ShuttingDown, Unavailable
from millstream.events.cluster import check
from millstream.events.futures import Pending, PushedEvent, all_of
from millstream.events.validators import DefaultValidator
from millstream.format.events.batch import Producer as ProducerIdentity
from millstream.format.events.batch import build_event_batch, too_large
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.push_events import PushEventsRequest, PushEventsResponse

if TYPE_CHECKING:
    from millstream.events.topic import TopicFacts

BATCH_BYTES_MAX: Final = 4 << 20
"""A batch with as many bytes is full, with any number of events."""
LOOSE_IN_FLIGHT: Final = 4
_ADAPTIVE_EVENTS_MAX: Final = 1 << 16
_INIT_PRODUCER_ID: Final = 22
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_MAY_BE_STORED: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Refusals that a batch also gets after it was appended: the next leader may keep it."""

Buffer = bytes | bytearray | memoryview


class Ordering(Enum):
    """Whether the events of one producer keep their order in a partition."""

    STRICT = "strict"
    LOOSE = "loose"


class _Batch:
    """Events that travel together. Changed under the producer's lock until it leaves."""

    __slots__ = ("bytes", "data", "done", "metadata", "urgent")

    def __init__(self) -> None:
        self.metadata: list[bytes] = []
        self.data: list[Sequence[Buffer]] = []
        self.bytes = 0
        self.urgent = False
        """Whether a caller waits for it."""
        self.done: Future[int] = Future()
        """The id of its first event, or why it has none."""


class _Line:
    """The batches of one partition. The lock guards ``waiting``, ``open``, ``running``; the rest is the loop's."""

    __slots__ = ("in_flight", "open", "partition", "running", "sequence", "waiting")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.waiting: deque[_Batch] = deque()
        self.open: _Batch | None = None
        """The last one that waits, as long as it takes events."""
        self.in_flight: set[_Batch] = set()
        self.running = False
        """Whether a task sends; written under the lock."""
        self.sequence = 0


class Producer:
    """Pushes events of one topic. Safe for threads. Close it, or use it as a context manager; exit flushes it, too."""

    def __init__(
        self,
        topic: TopicFacts,
        name: str = "",
        *,
        batch_size: int | None = None,
        max_num_batches: int = 2,
        ordering: Ordering = Ordering.STRICT,
    ) -> None:
        if (batch_size is not None and batch_size < 1) or max_num_batches < 1:
            raise Rejected("batch_size and max_num_batches are 1 at least")
        self.topic = topic
        self.name = name
        self.batch_size = batch_size
        self.max_num_batches = max_num_batches
        self.ordering = ordering
        self._engine = topic.engine
        self._cluster = topic.cluster
        self._lines = [_Line(one) for one in topic.partitions]
        self._selector = topic.new_selector()
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._cause = self._send_soon
        validator = topic.validator
        self._validate = None if type(validator) is DefaultValidator else validator.validate
        self._serialize = topic.serializer.serialize
        self._events_max = batch_size or _ADAPTIVE_EVENTS_MAX
        self._closed = False
        self._identity: ProducerIdentity | None = None
        self._engine.at_exit(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(
        self,
        metadata: Any,
        data: Buffer | Sequence[Buffer] | Any = b"",
        *,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> Pending[int]:
        """Hand over one event; its id comes later.

        Args:
            metadata: a JSON value; a str is JSON text.
            data: a buffer of any element type (bytes, numpy array), or several, that stay unchanged until then.
            partition: wanted partition, for the topic's selector.
            timeout_s: how long to wait for room; None waits for ever.

        Raises:
            InvalidEvent: the topic's validator refuses the event.
            Rejected: the event is too large or cannot be serialized, or the producer is closed.
            TimeoutError: there was no room in time.
        """
        self._engine.check()
        value = _json_value(metadata) if isinstance(metadata, str) else metadata
        pieces: Sequence[Buffer] = (data,) if isinstance(data, bytes) else _pieces(data)
        size = sum(map(len, pieces))
        if self._validate is not None:
            self._validate(value, size)
        packed = self._serialize(value)
        size += len(packed)
        if size > self.topic.event_bytes_max:
            raise Rejected(too_large(size, self.topic.event_bytes_max), ErrorCode.MESSAGE_TOO_LARGE)
        with self._lock:
            line = self._lines[self._selector.select(value, partition, len(self._lines))]
            batch = line.open
            if batch is None or self._closed:
                batch = self._open_batch(line, timeout_s)
            number = len(batch.metadata)
            batch.metadata.append(packed)
            batch.data.append(pieces)
            batch.bytes += size
            if number + 1 >= self._events_max or batch.bytes >= BATCH_BYTES_MAX:
                line.open = None
            if not line.running:
                self._wake(line)
        return PushedEvent(batch.done, number, self._cause)

    def flush(self) -> Pending[None]:
        """Send everything that was pushed; done when all of it is answered."""
        with self._room:
            batches = [batch.done for line in self._lines for batch in (*line.waiting, *line.in_flight)]
            self._hurry()
        return all_of(batches)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Refuse further events, send the others. TimeoutError if that takes longer."""
        self._closed = True
        self.flush().result(timeout_s)

    # -- the caller's side ---------------------------------------------------------------------------------------------

    def _open_batch(self, line: _Line, timeout_s: float | None) -> _Batch:
        """The batch that takes the next event; waits for room. The lock is held."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._closed:
                raise Rejected("the producer is closed")
            if line.open is not None:
                return line.open
            if len(line.waiting) < self.max_num_batches:
                line.open = _Batch()
                line.waiting.append(line.open)
                return line.open
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self.topic.name}: no room for an event in {timeout_s} s")
            self._room.wait(left)

    def _send_soon(self) -> None:
        """A caller waits: what is there leaves."""
        with self._room:
            self._hurry()

    def _hurry(self) -> None:
        """Let every batch leave, full or not. The lock is held."""
        for line in self._lines:
            for batch in line.waiting:
                batch.urgent = True
            self._wake(line)

    def _wake(self, line: _Line) -> None:
        """See that a task sends the line, if something is ready. The lock is held."""
        if not line.running and self._ready(line):
            line.running = True
            self._engine.call(partial(asyncio.ensure_future, self._send(line), loop=self._engine.loop))

    def _ready(self, line: _Line) -> bool:
        if not line.waiting:
            return False
        first = line.waiting[0]
        return self.batch_size is None or first.urgent or first is not line.open

    # -- the loop's side -----------------------------------------------------------------------------------------------

    async def _send(self, line: _Line) -> None:
        """Send the batches of a line until none is ready."""
        most = LOOSE_IN_FLIGHT if self.ordering is Ordering.LOOSE else 1
        tasks: set[asyncio.Task[None]] = set()
        while True:
            with self._room:
                if not self._ready(line):
                    line.running = False
                    return
                batch = line.waiting.popleft()
                if batch is line.open:
                    line.open = None
                line.in_flight.add(batch)
                self._room.notify_all()
            task = asyncio.ensure_future(self._deliver(line, batch))
            tasks.add(task)
            if len(tasks) >= most:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _deliver(self, line: _Line, batch: _Batch) -> None:
        """One batch, to its end."""
        try:
            first = await self._push(line, batch)
        except MillstreamError as error:
            self._over(line, batch)
            batch.done.set_exception(error)
        except BaseException as error:
            self._over(line, batch)
            batch.done.set_exception(ShuttingDown(f"the event was not sent: {error!r}"))
            raise
        else:
            self._over(line, batch)
            batch.done.set_result(first)

    def _over(self, line: _Line, batch: _Batch) -> None:
        with self._room:
            line.in_flight.discard(batch)

    async def _push(self, line: _Line, batch: _Batch) -> int:
        own = None
        strict = self.ordering is Ordering.STRICT
        if strict:
            own = await self._producer_identity()
        identity = None if own is None else ProducerIdentity(own.id, own.epoch, line.sequence)
        now_ms = TimestampMs(time.time_ns() // 1_000_000)
        pieces = build_event_batch(batch.metadata, batch.data, now_ms=now_ms, producer=identity)
        where = f"push to {self.topic.name}-{line.partition}"
        in_doubt = False  # an attempt may have stored it; no later refusal takes that back

        async def attempt() -> int:
            nonlocal in_doubt
            link, _ = await self._cluster.leader(self.topic.name, line.partition)
            timeout_s = self._cluster.timeout_s
            request = PushEventsRequest(self.topic.id, line.partition, int(timeout_s * 1000), pieces)
            version = link.version_of(request.API_KEY)
            try:
                answer = await link.call(request, PushEventsResponse, version, timeout_s)
            except Unavailable as error:
                in_doubt = True
                if strict:
                    raise
                raise OutcomeUnknown(f"{where}: {error.message}") from error
            if answer.error_code in _MAY_BE_STORED:
                in_doubt = True
                if not strict and answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    raise OutcomeUnknown(f"{where}: {ErrorCode(answer.error_code).name}")
            check(answer.error_code, where, answer.error_message)
            return answer.first_event_id

        try:
            first = await self._cluster.insist(where, attempt, self.topic.name)
        except MillstreamError as error:
            if not in_doubt or isinstance(error, OutcomeUnknown):
                raise
            if self._identity is own:
                self._identity = None  # the sequence of the batch may be taken: another one would count as a repetition
            raise OutcomeUnknown(f"{where}: {error.message}") from error
        if self._identity is own:
            line.sequence = line.sequence + len(batch.metadata) & _SEQUENCE_MASK
        return first

    async def _producer_identity(self) -> ProducerIdentity:
        if self._identity is None:

            async def ask() -> ProducerIdentity:
                link, _ = await self._cluster.leader(self.topic.name, self._lines[0].partition)
                request = InitProducerIdRequest(transactional_id=None)
                version = link.version_of(_INIT_PRODUCER_ID)
                answer = await link.call(request, InitProducerIdResponse, version, self._cluster.timeout_s)
                check(answer.error_code, "producer id", None)
                return ProducerIdentity(answer.producer_id, answer.producer_epoch, 0)

            made = await self._cluster.insist("producer id", ask, self.topic.name)
            if self._identity is None:
                self._identity = made
                for line in self._lines:
                    line.sequence = 0
        return self._identity


def _json_value(metadata: str) -> Any:
    try:
        return msgspec.json.decode(metadata)
    except msgspec.MsgspecError as error:
        raise Rejected(f"metadata given as text are JSON text: {error}") from error


def _pieces(data: Any) -> list[Buffer]:
    """Data as buffers of single bytes."""
    if isinstance(data, list | tuple):
        return [piece for one in data for piece in _pieces(one)]
    if isinstance(data, bytes):
        return [data] if data else []
    try:
        view = memoryview(data)
        return [view.cast("B")] if view.nbytes else []
    except (TypeError, ValueError) as error:
        raise Rejected(f"data are contiguous buffers, not {type(data).__name__}: {error}") from error
