"""The transactional ids of one partition of ``__transaction_state``, run on the partition's home shard.

::

    open ──► loading: read the log, keep the last record of each id, replay those ──► active ──► closed
                  └── a record does not decode ──► failed

It is to ``core.txn`` what ``groups_partition`` is to ``core.group``: while the partition loads, requests are refused
with COORDINATOR_LOAD_IN_PROGRESS; all records of one turn leave as one batch and share a group commit; requests are
answered when their record is durable; a batch that cannot be appended fails exactly the requests that wrote it. What a
crash left decided and not complete is completed after the loading: the markers are written again.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millstream.coordinator.groups_partition import State, client_code
from millstream.coordinator.log_replay import LogReplay, ReadableLog
from millstream.coordinator.marker_sender import MarkerSender, WriteMarker
from millstream.coordinator.transaction_records import decode_transaction, encode_transaction
from millstream.core.txn.coordinator import TransactionCoordinator
from millstream.core.txn.messages import (
    Answer,
    End,
    Expire,
    InitProducer,
    Input,
    MarkersWritten,
    Outputs,
    Persisted,
    Request,
    SendMarkers,
    Tick,
    TransactionSettings,
    Write,
)
from millstream.core.txn.transaction import Image
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import RateLimit, log
from millstream.wire.records import BatchHeader, build_batch, iter_records

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor, Timer

Done = Callable[[Answer | ErrorCode], None]
"""Callback for the answer to a request, or for the code that refuses it as a whole."""

NextId = Callable[[Callable[[int | MillstreamError], None]], None]
"""Gives an unused producer id (``cluster.producer_ids``)."""

_BATCH_BYTES: Final = 256 << 10
_LOAD_SLICE_RECORDS: Final = 16
_EXPIRY_SLICE: Final = 64
_LINES_A_MINUTE: Final = 60
_FAILURES_A_MINUTE: Final = 6


class StatePartition(ReadableLog, Protocol):
    """The part of ``partition.internal.InternalLog`` that is used here."""

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def append(self, batch: bytes, done: Callable[[int | MillstreamError], None]) -> None: ...


class _Batch:
    """Writes that left together. ``fate`` is their outcome, once it is known."""

    __slots__ = ("fate", "receipts")

    def __init__(self, receipts: list[int]) -> None:
        self.receipts = receipts
        self.fate: int | MillstreamError | None = None


class TransactionsPartition:
    """The transactional ids of one partition.

    Lifecycle: built when the partition opens, ``close``d when it closes. Shard: the partition's home.
    """

    def __init__(
        self,
        partition: StatePartition,
        reactor: "Reactor",
        settings: TransactionSettings,
        write_marker: WriteMarker,
        next_id: NextId,
        on_loaded: Callable[[], None],
    ) -> None:
        """``on_loaded`` is called once, when the state is no longer LOADING, possibly before this returns."""
        self.partition = partition
        self.state = State.LOADING
        self.core = TransactionCoordinator(settings)
        self._reactor = reactor
        self._next_id = next_id
        self._on_loaded = on_loaded
        self._sender = MarkerSender(reactor, write_marker)
        self._log = log.at(f"__transaction_state/{partition.index}")
        self._lines = RateLimit(_LINES_A_MINUTE)
        self._failures = RateLimit(_FAILURES_A_MINUTE)
        self._timer: Timer | None = None
        self._writes: list[Write] = []
        self._under_way: deque[_Batch] = deque()
        self._latest: dict[str, Image] = {}
        self._loading = LogReplay(partition, reactor, self._collect, self._replay, self._loaded, self._fail)
        self._loading.start()

    @property
    def refusal(self) -> ErrorCode:
        """Error code for requests while the state is not ACTIVE."""
        if self.state is State.LOADING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    # Loading

    def _collect(self, header: BatchHeader, batch: memoryview) -> Generator[None, None, None]:
        if header.is_control:
            return
        for count, record in enumerate(iter_records(batch)):
            decoded = decode_transaction(record)
            if decoded is not None:
                transactional_id, image = decoded
                if image is None:
                    self._latest.pop(transactional_id, None)
                else:
                    self._latest[transactional_id] = image
            if count % _LOAD_SLICE_RECORDS == 0:
                yield

    def _replay(self) -> Generator[None, None, None]:
        latest, self._latest = self._latest, {}
        for count, (transactional_id, image) in enumerate(latest.items()):
            self.core.replay(transactional_id, image)
            if count % _LOAD_SLICE_RECORDS == 0:
                yield

    def _loaded(self) -> None:
        self.state = State.ACTIVE
        if self.core.transactions:
            self._log.info("%d transactional ids loaded", len(self.core.transactions))
        self._carry_out(self.core.loaded(self._reactor.now_us(), self._reactor.wall_ms()))
        self._on_loaded()

    def _fail(self, offset: int, error: MillstreamError) -> None:
        self.state = State.FAILED
        self._latest = {}
        self.core.unload()
        self._log.error(
            "the transactional ids of this partition are not served: reading its log from offset %d: %s",
            offset,
            error.message,
        )
        self._on_loaded()

    # Running

    def ask(self, given: Request) -> None:
        """Process a request. Only while ACTIVE."""
        self._step(given)

    def _step(self, given: Input) -> None:
        reactor = self._reactor
        self._carry_out(self.core.step(given, reactor.now_us(), reactor.wall_ms()))

    def _carry_out(self, out: Outputs) -> None:
        if out.writes:
            if not self._writes:
                self._reactor.end_of_turn(self._flush)
            self._writes += out.writes
        for line in out.log_lines:
            if self._lines.allows():
                self._log.info("%s%s", line, self._lines.left_out())
        for token, answer in out.answers:
            _tell(token, answer)
        for wanted in out.markers:
            self._send(wanted)
        for request in out.wants_id:
            self._get_id(request)
        self._arm()

    def _send(self, wanted: SendMarkers) -> None:
        written = MarkersWritten(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch)

        def done() -> None:
            if self.state in (State.ACTIVE, State.STOPPING):
                self._step(written)

        self._sender.send(wanted, self.partition.leader_epoch, done)

    def _get_id(self, request: InitProducer | End) -> None:
        def answered(producer_id: int | MillstreamError) -> None:
            if self.state is not State.ACTIVE:
                _tell(request.token, ErrorCode.NOT_COORDINATOR)
            elif isinstance(producer_id, MillstreamError):
                _tell(request.token, producer_id.code)
            else:
                self._step(msgspec.structs.replace(request, spare_id=producer_id))

        self._next_id(answered)

    def _arm(self) -> None:
        """Set the one timer for all transactions."""
        deadline_us = self.core.deadline_us
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
            self._step(Tick())

    def expire(self) -> Generator[None, None, None]:
        """Search for transactional ids that have not been used for long, in slices."""
        ids = list(self.core.transactions)
        for start in range(0, len(ids), _EXPIRY_SLICE):
            if self.state is not State.ACTIVE:
                return
            self._step(Expire(tuple(ids[start : start + _EXPIRY_SLICE])))
            yield

    def stop(self) -> None:
        """Accept no more requests. Requests with a record in flight are answered, then all others are refused."""
        if self.state is State.ACTIVE and (self._under_way or self._writes):
            self.state = State.STOPPING
        elif self.state is not State.STOPPING:
            self.close()

    def close(self) -> None:
        """Refuse all waiting requests, because this shard no longer coordinates these transactional ids."""
        if self.state is State.CLOSED:
            return
        was_loading = self.state is State.LOADING
        self.state = State.CLOSED
        self._loading.stop()
        self._sender.stop()
        self._latest = {}
        if self._timer is not None:
            self._timer.cancel()
        self._writes.clear()
        for token in self.core.unload():
            _tell(token, ErrorCode.NOT_COORDINATOR)
        if was_loading:
            self._on_loaded()

    # Writing

    def _flush(self) -> None:
        """Append the records of this turn."""
        writes, self._writes = self._writes, []
        timestamp = self._reactor.wall_ms()
        records: list[tuple[bytes, bytes | None, tuple[()], int]] = []
        receipts: list[int] = []
        size = 0
        for write in writes:
            key, value = encode_transaction(write.transactional_id, write.image)
            records.append((key, value, (), timestamp))
            receipts.append(write.receipt)
            size += len(key) + len(value or b"")
            if size >= _BATCH_BYTES:
                self._append(records, receipts)
                records, receipts, size = [], [], 0
        if receipts:
            self._append(records, receipts)

    def _append(self, records: list[tuple[bytes, bytes | None, tuple[()], int]], receipts: list[int]) -> None:
        batch = _Batch(receipts)

        def appended(result: int | MillstreamError) -> None:
            batch.fate = result
            self._settle()

        self._under_way.append(batch)
        self.partition.append(build_batch(records), appended)

    def _settle(self) -> None:
        """Report writes with a known outcome to the core, in order."""
        while self._under_way and (fate := self._under_way[0].fate) is not None:
            receipts = self._under_way.popleft().receipts
            if self.state not in (State.ACTIVE, State.STOPPING):
                continue  # requests that waited were refused when it closed
            error = client_code(fate) if isinstance(fate, MillstreamError) else ErrorCode.NONE
            if error is not ErrorCode.NONE and self._failures.allows():
                more = self._failures.left_out()
                self._log.warning("%d writes of transactional ids failed: %s%s", len(receipts), fate, more)
            for receipt in receipts:
                self._step(Persisted(receipt, error))
        if self.state is State.STOPPING and not self._under_way and not self._writes:
            self.close()


def _tell(token: object, answer: Answer | ErrorCode) -> None:
    """Call a token: this shell gives ``Done`` functions to the core as tokens."""
    assert callable(token)
    token(answer)
