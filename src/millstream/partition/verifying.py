"""Transactional batches that wait for the transaction's coordinator, in the order in which they came.

A partition takes a transactional batch only if it knows that it is part of its producer's transaction: the coordinator
has said so for this epoch, and no marker came since (KIP-890). Otherwise a late batch could open a transaction that
nobody ends, and hold back every read_committed consumer for ever. The first batch of a transaction therefore waits here
while the coordinator is asked: to add the partition (a client of Produce 12 and later leaves that to the broker), or
whether the client has added it. Later batches of the same producer join its row, so none overtakes another.

All questions of one loop turn about one transaction travel as one. A refusal of the coordinator is the batch's answer,
as Apache Kafka words it for the request's version. An answer that a marker overtook is void: INVALID_TXN_STATE. An
answer that a change of the leader overtook is void, too: NOT_LEADER_OR_FOLLOWER.

Overload: ``BYTES_MAX`` of batches wait at most; more are refused retriably. A coordinator that does not answer in time
is an error of its own, retriable. A crash loses what waits here, which was acknowledged to nobody.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId
from millstream.partition.append import BUSY, LOOK, VERIFY, Outcome, append
from millstream.partition.partition import Partition
from millstream.shard.reactor import Reactor
from millstream.storage.shard_storage import ShardStorage
from millstream.wire.batch import unpack_header

if TYPE_CHECKING:
    from millstream.partition.delayed import DelayedAppends
    from millstream.partition.inspecting import Done

BYTES_MAX: Final = 64 << 20

ADDS_FROM: Final = 12
"""First version of Produce whose client leaves adding partitions to the broker."""
ABORTABLE_FROM: Final = 11
"""First version of Produce whose client knows TRANSACTION_ABORTABLE."""


class ProducerTransaction(NamedTuple):
    """What a Produce request says of its transaction."""

    transactional_id: str
    version: int
    """Of the request."""

    @property
    def adds(self) -> bool:
        """Whether the broker adds the partition to the transaction."""
        return self.version >= ADDS_FROM


class Question(NamedTuple):
    """What the coordinator is asked: whether, or that, partitions are part of a producer's transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    adds: bool
    partitions: tuple[tuple[str, int], ...]
    """(topic, partition), without repetitions."""


Answer = Callable[[Sequence[int]], None]
"""Gets one error code for each partition of the question."""

Ask = Callable[[Question, Answer], None]


class _Entry(NamedTuple):
    batch: bytes
    epoch: int
    transaction: ProducerTransaction
    done: "Done"


_Asked = tuple[Partition, object, int]
"""(partition, question, term in which it was asked)"""

_Row = tuple[Partition, int]
"""(partition, producer id)"""


class VerifyingAppends:
    """The rows of one shard.

    Invariant: a row that exists is not empty, and the coordinator was asked about its first batch.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage, delayed: "DelayedAppends") -> None:
        self._reactor = reactor
        self._storage = storage
        self._delayed = delayed
        self._rows: dict[_Row, deque[_Entry]] = {}
        self._wanted: dict[tuple[ProducerTransaction, int, int], list[_Asked]] = {}
        self._bytes = 0
        self.ask: Ask = nobody
        """Asks the coordinator, wherever it is. Set when there is one."""

    def add(
        self,
        partition: Partition,
        views: Sequence[memoryview],
        size: int,
        transaction: ProducerTransaction | None,
        done: "Done",
    ) -> bool:
        """Append once the coordinator agrees; ``views`` are copied before this returns. False: no room now."""
        assert transaction is not None, "a transactional batch without a transactional id was let through"
        if self._bytes + size > BYTES_MAX:
            return False
        self._bytes += size
        batch = b"".join(views)
        header = unpack_header(batch)
        row = (partition, header[9])
        entry = _Entry(batch, header[10], transaction, done)
        waiting = self._rows.get(row)
        if waiting is not None:
            waiting.append(entry)
        else:
            self._rows[row] = deque((entry,))
            self._want(row, entry)
        return True

    def _want(self, row: _Row, entry: _Entry) -> None:
        partition, producer_id = row
        if not self._wanted:
            self._reactor.end_of_turn(self._ask_all)
        question: object = None
        try:
            question = partition.transactions.ask_verification(producer_id, entry.epoch)
        except Exception as error:  # noqa: BLE001 - the boundary
            partition.failed("verification", error)
        self._wanted.setdefault((entry.transaction, producer_id, entry.epoch), []).append(
            (partition, question, partition.leader_epoch)
        )

    def _ask_all(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for (transaction, producer_id, epoch), asked in wanted.items():

            def answered(
                codes: Sequence[int],
                transaction: ProducerTransaction = transaction,
                producer_id: ProducerId = producer_id,
                epoch: int = epoch,
                asked: list[_Asked] = asked,
            ) -> None:
                for (partition, question, term), code in zip(asked, codes, strict=True):
                    error = _as_produce_says(code, transaction.version)
                    if not error and partition.leader_epoch != term:
                        error = int(partition.refusal or ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    elif not error:
                        error = _noted(partition, producer_id, ProducerEpoch(epoch), question)
                    self._settle((partition, producer_id), epoch, error)

            topic_partitions = tuple((partition.name, partition.index) for partition, _, _ in asked)
            self.ask(
                Question(transaction.transactional_id, producer_id, epoch, transaction.adds, topic_partitions), answered
            )

    def _settle(self, row: _Row, epoch: int, error: int) -> None:
        """The coordinator has answered for the batches of ``epoch`` in a row."""
        waiting = self._rows[row]
        while waiting:
            entry = waiting[0]
            if entry.epoch != epoch:
                self._want(row, entry)  # of another transaction of the same producer
                return
            waiting.popleft()
            self._bytes -= len(entry.batch)
            if error:
                entry.done(Outcome(error), None)
            else:
                self._append(row[0], entry)
        del self._rows[row]

    def _append(self, partition: Partition, entry: _Entry) -> None:
        views, size = (memoryview(entry.batch),), len(entry.batch)
        outcome: Outcome = BUSY
        if not self._delayed.active:
            accepts = self._storage.accepts_writes and not self._storage.stopping
            now_ms = self._reactor.wall_ms()
            outcome = append(partition, views, size, now_ms, accepts_writes=accepts, transactional=True)
        if outcome is LOOK and self._delayed.take(outcome, partition, views, size, None, entry.done):
            return
        if outcome is VERIFY:
            outcome = Outcome(int(ErrorCode.INVALID_TXN_STATE))
        if outcome is BUSY or outcome is LOOK:
            self._delayed.add(partition, views, size, entry.done, entry.transaction)
        else:
            entry.done(outcome, None)


def _noted(partition: Partition, producer_id: ProducerId, epoch: ProducerEpoch, question: object) -> int:
    """Note that a partition is part of a transaction; an error code if a marker came since the question."""
    try:
        verified = partition.transactions.verified(producer_id, epoch, question)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("verification", error)
        return int(ErrorCode.KAFKA_STORAGE_ERROR)
    return 0 if verified else int(ErrorCode.INVALID_TXN_STATE)


_RETRIABLE: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""Kafka answers NOT_ENOUGH_REPLICAS in the place of these: all clients try that again, without new metadata."""


def _as_produce_says(code: int, version: int) -> int:
    """The coordinator's answer in the words of Produce."""
    if code in _RETRIABLE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_FROM):
        return int(ErrorCode.NOT_ENOUGH_REPLICAS)
    if code == ErrorCode.PRODUCER_FENCED:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return int(ErrorCode.INVALID_TXN_STATE)
    return code


def nobody(question: Question, answer: Answer) -> None:
    """``Ask`` while there is no coordinator."""
    answer([int(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(question.partitions))
