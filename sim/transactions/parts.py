"""Coordinators, one after the other over one log, and the partitions that producers write to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.coordinator.marker_sender import MarkerSender
from millstream.core.producer_state import Append, Duplicate, ProducerBudget, ProducerState
from millstream.core.txn.coordinator import TransactionCoordinator
from millstream.core.txn.image import EPOCH_PER_TRANSACTION, NO_EPOCH, Image, TopicPartition
from millstream.core.txn.messages import (
    AddPartitions,
    DeadlinePassed,
    End,
    InitProducer,
    Input,
    MarkersWritten,
    Outputs,
    Persisted,
    SendMarkers,
    TransactionSettings,
)
from millstream.core.txn.state import TransactionState
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.append.markers import Marker
    from sim.transactions.world import World

_FOREVER_MS: Final = 1 << 50
_NONE: Final = ErrorCode.NONE


class Leader:
    """The coordinator of one term. Lifecycle: it loads the log when it is made; ``depose``d once."""

    def __init__(self, world: World, term: int) -> None:
        self._world = world
        self.term = term
        self.serves = True
        self.unsettled: list[tuple[int, str, Image | None]] = []
        """Writes on their way to the log: (receipt, transactional id, image)."""
        self._core = TransactionCoordinator(TransactionSettings())
        reactor: Any = world
        self._sender = MarkerSender(reactor, world.write_marker)
        for name, image in world.stored.items():
            self._core.replay(name, msgspec.structs.replace(image, last_epoch=NO_EPOCH))
        self._take(self._core.loaded(world.now_us, world.now_us // 1000))

    def depose(self, learns_after_us: int) -> None:
        """Another one leads. This one still sends markers until it learns of that."""
        self.serves = False
        self._world.call_later(learns_after_us, self._sender.stop)

    def step(self, given: Input) -> None:
        """Process an input, if it still leads."""
        if self.serves:
            self._take(self._core.step(given, self._world.now_us, self._world.now_us // 1000))

    def _take(self, out: Outputs) -> None:
        world = self._world
        for write in out.writes:
            self.unsettled.append((write.receipt, write.transactional_id, write.image))
            world.call_later(world.chance.randrange(200, 4_000), self._settle_first)
        for token, answer in out.answers:
            assert callable(token)
            token(answer)
        for wanted in out.markers:
            self._send(wanted)
        for request in out.wants_id:
            world.next_id += 1
            self.step(msgspec.structs.replace(request, spare_id=world.next_id))
        if self._core.deadline_us is not None:
            world.call_later(max(self._core.deadline_us - world.now_us, 0) + 1, lambda: self.step(DeadlinePassed()))

    def _send(self, wanted: SendMarkers) -> None:
        written = MarkersWritten(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch)
        self._sender.send(wanted, self.term, lambda: self.step(written))

    def _settle_first(self) -> None:
        if self.serves and self.unsettled:
            receipt, name, image = self.unsettled.pop(0)
            self._world.store(name, image)
            self.step(Persisted(receipt))


class Entry(NamedTuple):
    """A batch of one record, or (``value`` < 0) a marker."""

    producer_id: int
    epoch: int
    sequence: int
    value: int
    commits: bool = False
    coordinator_epoch: int = -1


class Write(NamedTuple):
    """A Produce of one record. ``adds``: the broker adds the partition to the transaction."""

    name: str
    producer_id: int
    epoch: int
    sequence: int
    value: int
    adds: bool


class Data:
    """One partition: its log, and the state that the production code makes of it."""

    def __init__(self, world: World, place: TopicPartition) -> None:
        self._world = world
        self.place = place
        self.log: list[Entry] = []
        self.producers = self._fresh()
        self._rows: dict[int, deque[tuple[Write, Callable[[Any], None]]]] = {}
        self._snapshot: tuple[int, bytes] = (0, b"")

    @staticmethod
    def _fresh() -> ProducerState:
        return ProducerState(_FOREVER_MS, ProducerBudget(1 << 20))

    def rebuild(self) -> None:
        """A crash: pending requests are lost, and the state comes from the last snapshot and the log after it."""
        self._rows = {}
        start, data = self._snapshot
        self.producers = self._fresh()
        if data:
            self.producers.load(data)
        for offset in range(start, len(self.log)):
            self._enter(Offset(offset), self.log[offset])

    def save(self) -> None:
        """Take a snapshot."""
        self._snapshot = (len(self.log), self.producers.snapshot())

    def _enter(self, offset: Offset, entry: Entry, *, with_epoch: bool = False) -> None:
        producers, now_ms = self.producers, self._world.now_us // 1000
        if entry.value < 0:
            producers.end_transaction(
                entry.producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                offset,
                now_ms,
                committed=entry.commits,
                with_epoch=with_epoch,
            )
        else:
            producers.record(entry.producer_id, entry.epoch, entry.sequence, 1, offset, now_ms, now_ms)
            producers.transactions.began(entry.producer_id, offset)
        producers.transactions.committed(Offset(offset + 1))

    # Produce, as ``partition.append.checks`` and ``partition.append.verification`` have it

    def produce(self, write: Write, done: Callable[[Any], None]) -> None:
        """Append a record once the coordinator agrees; ``done`` gets an error code."""
        row = self._rows.get(write.producer_id)
        if row is not None:
            row.append((write, done))
        elif self.producers.transactions.accepts(write.producer_id, write.epoch):
            done(self._append(write))
        else:
            self._rows[write.producer_id] = deque([(write, done)])
            self._ask(write)

    def _ask(self, write: Write) -> None:
        rows = self._rows
        question = self.producers.transactions.ask_verification(write.producer_id, write.epoch)

        def answered(answer: Any) -> None:
            if rows is not self._rows:
                return  # a crash
            error = answer[0] if isinstance(answer, tuple) else ErrorCode.COORDINATOR_NOT_AVAILABLE
            verified = self.producers.transactions.verified
            if error is _NONE and not verified(write.producer_id, write.epoch, question):
                error = ErrorCode.INVALID_TXN_STATE
            self._settle(write.producer_id, write.epoch, error)

        version = EPOCH_PER_TRANSACTION if write.adds else 0
        places = (self.place,)
        self._world.ask_coordinator(
            lambda token: AddPartitions(
                token, write.name, write.producer_id, write.epoch, places, not write.adds, version
            ),
            answered,
        )

    def _settle(self, producer_id: int, epoch: int, error: ErrorCode) -> None:
        row = self._rows[producer_id]
        while row:
            if row[0][0].epoch != epoch:
                self._ask(row[0][0])
                return
            write, done = row.popleft()
            done(error if error is not _NONE else self._append(write))
        del self._rows[producer_id]

    def _append(self, write: Write) -> ErrorCode:
        if not self.producers.transactions.accepts(write.producer_id, write.epoch):
            return ErrorCode.INVALID_TXN_STATE
        verdict = self.producers.check(write.producer_id, write.epoch, write.sequence, 1)
        if isinstance(verdict, Duplicate):
            return _NONE
        if verdict is not Append:
            assert isinstance(verdict, ErrorCode)
            return verdict
        self._world.judge.appended(write.name, write.producer_id, write.epoch)
        self._put(Entry(write.producer_id, write.epoch, write.sequence, write.value))
        return _NONE

    def _put(self, entry: Entry, *, with_epoch: bool = False) -> None:
        self.log.append(entry)
        self._enter(Offset(len(self.log) - 1), entry, with_epoch=with_epoch)

    # Markers, as ``partition.append.markers`` has them

    def mark(self, marker: Marker) -> ErrorCode:
        """Append a marker, or say why not."""
        who = (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        error = self.producers.check_marker(*who)
        if error is not _NONE:
            return error
        with_epoch = marker.transaction_version >= EPOCH_PER_TRANSACTION
        if not self.producers.takes_marker(*who, with_epoch=with_epoch):
            return _NONE
        self._world.judge.marked(marker.producer_id, marker.producer_epoch, marker.commits)
        self._put(
            Entry(marker.producer_id, marker.producer_epoch, -1, -1, marker.commits, marker.coordinator_epoch),
            with_epoch=with_epoch,
        )
        return _NONE

    # Reading, as a consumer does it

    def committed_values(self) -> list[int]:
        """What a read_committed consumer sees from the start on."""
        transactions = self.producers.transactions
        end = Offset(len(self.log))
        stable = transactions.first_unstable(end)
        stop = Offset(end if stable < 0 else stable)
        coming = deque(transactions.aborted_between(Offset(0), stop))
        aborted: set[int] = set()
        values: list[int] = []
        for offset, entry in enumerate(self.log[:stop]):
            while coming and coming[0][1] <= offset:
                aborted.add(coming.popleft()[0])
            if entry.value < 0:
                if not entry.commits:
                    aborted.discard(entry.producer_id)
            elif entry.producer_id not in aborted:
                values.append(entry.value)
        return values


UNFINISHED: Final = frozenset(
    {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
)

Request = InitProducer | AddPartitions | End
