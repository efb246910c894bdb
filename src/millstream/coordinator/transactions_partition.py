"""The transactional ids of one partition of ``__transaction_state``, run on the partition's home shard.

`state_partition` has the states of the partition and the order of its writes. While it loads, requests are refused with
COORDINATOR_LOAD_IN_PROGRESS. All records of one turn leave as one batch and share a group commit. Requests are answered
when their record is durable; a batch that cannot be appended fails exactly the requests that wrote it. What a crash
left decided and not complete is completed after the loading: the markers are written again.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millstream.coordinator.marker_sender import MarkerSender, WriteMarker
from millstream.coordinator.state_partition import KeptLog, State, StatePartition, answer
from millstream.coordinator.transaction_records import decode_transaction, encode_transaction
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.txn.coordinator import TransactionCoordinator
from millstream.core.txn.image import Image
from millstream.core.txn.messages import (
    AbortOverdue,
    Answer,
    DeadlinePassed,
    Expire,
    Input,
    MarkersWritten,
    NeedsId,
    Outputs,
    Persisted,
    Request,
    SendMarkers,
    TransactionSettings,
)
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.wire.records import BatchHeader, iter_records

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor

Done = Callable[[Answer | ErrorCode], None]
"""Callback for the answer to a request, or for the code that refuses it as a whole."""

NextId = Callable[[Callable[[int | MillstreamError], None]], None]
"""Gives an unused producer id (``cluster.producer_ids``)."""

_LOAD_SLICE_RECORDS: Final = 16
_EXPIRY_SLICE: Final = 64


class TransactionLog(KeptLog, Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    @property
    def leader_epoch(self) -> int: ...


class TransactionsPartition(StatePartition):
    """The transactional ids of one partition.

    Lifecycle: built when the partition opens, ``close``d when it closes. Shard: the partition's home.
    """

    kept = "transactional ids"

    def __init__(
        self,
        partition: TransactionLog,
        reactor: "Reactor",
        settings: TransactionSettings,
        write_marker: WriteMarker,
        next_id: NextId,
        on_loaded: Callable[[], None],
    ) -> None:
        """``on_loaded`` is called once, when the state is no longer LOADING, possibly before this returns."""
        self.partition = partition
        self.core = TransactionCoordinator(settings)
        super().__init__(partition, TRANSACTION_STATE, reactor, self.core, on_loaded)
        self._next_id = next_id
        self._sender = MarkerSender(reactor, write_marker)
        self._latest: dict[str, Image] = {}
        self._loading.start()

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
            self._lines.place.info("%d transactional ids loaded", len(self.core.transactions))
        self._carry_out(self.core.loaded(self._reactor.now_us(), self._reactor.wall_ms()))
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
        self._say(out.log_lines)
        for token, result in out.answers:
            answer(token, result)
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

    def _get_id(self, needing: NeedsId) -> None:
        def answered(producer_id: int | MillstreamError) -> None:
            if self.state is State.ACTIVE and not isinstance(producer_id, MillstreamError):
                self._step(msgspec.structs.replace(needing, spare_id=producer_id))
            elif not isinstance(needing, AbortOverdue):  # which is asked for again after a while
                refused = producer_id.code if isinstance(producer_id, MillstreamError) else ErrorCode.NOT_COORDINATOR
                answer(needing.token, refused)

        self._next_id(answered)

    def expire(self) -> Generator[None, None, None]:
        """Search for transactional ids that have not been used for long, in slices."""
        ids = list(self.core.transactions)
        for start in range(0, len(ids), _EXPIRY_SLICE):
            if self.state is not State.ACTIVE:
                return
            self._step(Expire(tuple(ids[start : start + _EXPIRY_SLICE])))
            yield

    def _time_passed(self) -> None:
        self._step(DeadlinePassed())

    def _persisted(self, receipt: int, error: ErrorCode) -> None:
        self._step(Persisted(receipt, error))

    def _forget(self) -> None:
        self._sender.stop()
        self._latest = {}

    # Writing

    def _flush(self) -> None:
        """Append the records of this turn."""
        writes, self._writes = self._writes, []
        self._append_records((one.receipt, encode_transaction(one.transactional_id, one.image)) for one in writes)
