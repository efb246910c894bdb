"""What the shells of groups and of transactional ids have in common: one partition whose records are a core's state.

::

    open ──► loading: read the log, keep the last record of each key, replay those ──► active ──► closed
                  │                                    (stopping: what is being written is still answered)
                  └── a record does not decode ──► failed

A shell carries out what its core decides. It gives each batch of records to `StatePartition.append`, and the core
learns the fate of each write in the order of the writes. A batch that cannot be appended fails exactly the requests
that wrote it. The core has one timer.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.coordinator.log_replay import LogReplay, ReadableLog
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import Log, RateLimit, log
from millstream.wire.records import build_batch

if TYPE_CHECKING:
    from millstream.coordinator.log_replay import Steps
    from millstream.shard.reactor import Reactor, Timer
    from millstream.wire.records import BatchHeader

BATCH_BYTES: Final = 256 << 10
"""Approximate maximum size of one batch."""

_FAILURES_A_MINUTE: Final = 6
_LINES_A_MINUTE: Final = 60


class State(Enum):
    """State of a partition's groups or transactional ids."""

    LOADING = "loading"
    ACTIVE = "active"
    STOPPING = "stopping"
    FAILED = "failed"
    CLOSED = "closed"


class KeptLog(ReadableLog, Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    @property
    def name(self) -> str: ...

    @property
    def index(self) -> int: ...

    def append(self, batch: bytes, done: Callable[[int | MillstreamError], None]) -> None: ...


class Core(Protocol):
    """The part of a core that is used here."""

    @property
    def deadline_us(self) -> int | None: ...

    def unload(self) -> Iterable[object]: ...


class _Batch:
    """Writes that left together. ``fate`` is their outcome, once it is known."""

    __slots__ = ("fate", "receipts")

    def __init__(self, receipts: list[int], fate: int | MillstreamError | None = None) -> None:
        self.receipts = receipts
        self.fate = fate


class _Lines:
    """Lines of the log about one partition, a bounded number a minute."""

    __slots__ = ("_failures", "_others", "place")

    def __init__(self, place: Log) -> None:
        self.place = place
        self._others = RateLimit(_LINES_A_MINUTE)
        self._failures = RateLimit(_FAILURES_A_MINUTE)

    def say(self, line: str) -> None:
        """What the core has to say."""
        if self._others.allows():
            self.place.info("%s%s", line, self._others.left_out())

    def failed(self, count: int, kept: str, why: object) -> None:
        """Writes could not be made."""
        if self._failures.allows():
            self.place.warning("%d writes of %s failed: %s%s", count, kept, why, self._failures.left_out())


class StatePartition(ABC):
    """The shell of one partition.

    Lifecycle: built when the partition opens; its own constructor starts ``_loading`` last; ``close``d when the
    partition closes. Shard: the partition's home.
    """

    kept: str
    """What the partition keeps, in the words of the log: groups, transactional ids."""

    def __init__(
        self, partition: KeptLog, topic: str, reactor: "Reactor", core: Core, on_loaded: Callable[[], None]
    ) -> None:
        """``on_loaded`` is called once, when the state is no longer LOADING."""
        self.state = State.LOADING
        self._partition = partition
        self._reactor = reactor
        self._core = core
        self._on_loaded = on_loaded
        self._lines = _Lines(log.at(f"{topic}/{partition.index}"))
        self._timer: Timer | None = None
        self._writes: list[Any] = []
        """Writes of the core that were not appended yet."""
        self._under_way: deque[_Batch] = deque()
        self._loading = LogReplay(partition, reactor, self._collect, self._replay, self._loaded, self._fail)

    @property
    def refusal(self) -> ErrorCode:
        """Error code for requests while the state is not ACTIVE."""
        if self.state is State.LOADING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    # What a shell does in its own way

    @abstractmethod
    def _collect(self, header: "BatchHeader", batch: memoryview) -> "Steps":
        """While loading: take one batch, in slices."""

    @abstractmethod
    def _replay(self) -> "Steps":
        """After the last batch: give the core what was collected, in slices."""

    @abstractmethod
    def _loaded(self) -> None:
        """The core has everything."""

    @abstractmethod
    def _time_passed(self) -> None:
        """Tell the core that its deadline has passed."""

    @abstractmethod
    def _persisted(self, receipt: int, error: ErrorCode) -> None:
        """Tell the core the fate of a write."""

    @abstractmethod
    def _forget(self) -> None:
        """The partition closes or cannot be read: drop what the shell itself holds."""

    # Loading

    def _fail(self, offset: int, error: MillstreamError) -> None:
        self.state = State.FAILED
        self._forget()
        self._core.unload()
        self._lines.place.error(
            "the %s of this partition are not served: reading its log from offset %d: %s",
            self.kept,
            offset,
            error.message,
        )
        self._on_loaded()

    # Running

    def _say(self, lines: Iterable[str]) -> None:
        """Log what the core has to say, a bounded number of lines a minute."""
        for line in lines:
            self._lines.say(line)

    def _arm(self) -> None:
        """Set the one timer. It may fire early (``core.group.deadlines``), and is then set again."""
        deadline_us = self._core.deadline_us
        if deadline_us is None:
            return
        if self._timer is not None:
            if self._timer.deadline_us <= deadline_us:
                return
            self._timer.cancel()
        self._timer = self._reactor.call_at(deadline_us, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.state is State.ACTIVE:
            self._time_passed()

    def stop(self) -> None:
        """Accept no more requests. Requests with a pending write are answered, then all others are refused."""
        if self.state is State.ACTIVE and (self._under_way or self._writes):
            self.state = State.STOPPING
        elif self.state is not State.STOPPING:
            self.close()

    def close(self) -> None:
        """Refuse all waiting requests, because this shard coordinates them no longer."""
        if self.state is State.CLOSED:
            return
        was_loading = self.state is State.LOADING
        self.state = State.CLOSED
        self._loading.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._writes.clear()
        self._forget()
        for token in self._core.unload():
            answer(token, ErrorCode.NOT_COORDINATOR)
        if was_loading:
            self._on_loaded()

    # Writing

    def _append_records(self, records: Iterable[tuple[int, tuple[bytes, bytes | None]]]) -> None:
        """Append (receipt, (key, value)) in order, in batches of about ``BATCH_BYTES``."""
        timestamp = self._reactor.wall_ms()
        batch: list[tuple[bytes, bytes | None, tuple[()], int]] = []
        receipts: list[int] = []
        size = 0
        for receipt, (key, value) in records:
            batch.append((key, value, (), timestamp))
            receipts.append(receipt)
            size += len(key) + len(value or b"")
            if size >= BATCH_BYTES:
                self._append(build_batch(batch), receipts)
                batch, receipts, size = [], [], 0
        if receipts:
            self._append(build_batch(batch), receipts)

    def _append(self, content: bytes, receipts: list[int]) -> None:
        """Append a batch of ``wire.records``, which holds the writes with these receipts."""
        batch = _Batch(receipts)

        def appended(result: int | MillstreamError) -> None:
            batch.fate = result
            self._settle()

        self._under_way.append(batch)
        self._partition.append(content, appended)

    def _refuse(self, receipt: int, error: MillstreamError) -> None:
        """A write that is not appended; the core learns it with the next `_settle`, in its turn."""
        self._under_way.append(_Batch([receipt], error))

    def _settle(self) -> None:
        """Report writes with a known outcome to the core, in order."""
        while self._under_way and (fate := self._under_way[0].fate) is not None:
            receipts = self._under_way.popleft().receipts
            if self.state not in (State.ACTIVE, State.STOPPING):
                continue  # requests that waited were refused when it closed
            error = client_code(fate) if isinstance(fate, MillstreamError) else ErrorCode.NONE
            if error is not ErrorCode.NONE:
                self._lines.failed(len(receipts), self.kept, fate)
            for receipt in receipts:
                self._persisted(receipt, error)
        if self.state is State.STOPPING and not self._under_way and not self._writes:
            self.close()


def answer(token: object, what: object) -> None:
    """Call a token: a shell gives its ``Done`` functions to the core as tokens."""
    assert callable(token)
    token(what)


def client_code(error: MillstreamError) -> ErrorCode:
    """Error code for a client of the coordinator after a failed write, by Kafka's table."""
    match error.code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.INVALID_TXN_STATE:
            return error.code
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR
