"""Transactional batches that wait for the verdict of their coordinator, in the order in which they came.

A partition takes a transactional batch only if it knows that it is part of its producer's transaction: the coordinator
has said so for this epoch, and no marker came since (KIP-890). Otherwise a late batch could open a transaction that is
never ended, and hold back every read_committed consumer for ever. The first batch of a transaction therefore waits here
while the coordinator is asked: to add the partition (a client of Produce 12 and later leaves that to the broker), or
whether the client has added it. Later batches of the same producer join its row, so none overtakes another.

All questions of one loop turn about one transaction travel as one. A refusal of the coordinator is the batch's answer,
as Apache Kafka words it for the request's version. An answer that a marker overtook is void: INVALID_TXN_STATE. An
answer that a change of the leader overtook is void, too: NOT_LEADER_OR_FOLLOWER.

Overload: ``BYTES_MAX`` of batches wait at most; more join the queue of ``append.admission``. A coordinator that does
not answer in time is a retriable error. A crash loses what waits here, of which no client has an acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId
from millstream.partition.append.batch import ADDS_FROM, Outcome
from millstream.wire.batch import unpack_header

if TYPE_CHECKING:
    from millstream.partition.append.batch import Batch, Done, ProducerTransaction
    from millstream.partition.partition import Partition
    from millstream.shard.reactor import Reactor

BYTES_MAX: Final = 64 << 20

ABORTABLE_FROM: Final = 11
"""First version of Produce whose client knows TRANSACTION_ABORTABLE."""


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
    """A batch in its row."""

    batch: Batch
    epoch: ProducerEpoch
    done: Done


class _Asked(NamedTuple):
    """A partition of a question."""

    partition: Partition
    question: object
    term: int
    """The group's term when the question was asked."""


class Verification:
    """The rows of one shard, by partition and producer.

    Invariant: a row that exists is not empty, and the coordinator was asked about its first batch.
    """

    def __init__(self, reactor: Reactor, append: Callable[[Batch, Done], None]) -> None:
        """``append`` appends a batch that may enter its partition."""
        self._reactor = reactor
        self._append = append
        self._rows: dict[tuple[Partition, ProducerId], deque[_Entry]] = {}
        self._questions: dict[tuple[ProducerTransaction, ProducerId, ProducerEpoch], list[_Asked]] = {}
        self._bytes = 0
        self.ask: Ask = no_coordinator
        """Asks the coordinator, wherever it is. Set when there is one."""

    @property
    def waits(self) -> bool:
        """Whether a batch waits for its coordinator."""
        return bool(self._rows)

    def add(self, batch: Batch, done: Done) -> bool:
        """Append once the coordinator agrees; the batch's views are copied before this returns. False: no room now."""
        assert batch.transaction is not None, "a transactional batch without a transactional id was let through"
        if self._bytes + batch.size > BYTES_MAX:
            return False
        self._bytes += batch.size
        batch.keep()
        header = unpack_header(batch.views[0])
        row = (batch.partition, header[9])
        entry = _Entry(batch, header[10], done)
        waiting = self._rows.get(row)
        if waiting is not None:
            waiting.append(entry)
        else:
            self._rows[row] = deque((entry,))
            self._plan(row[1], entry)
        return True

    def _plan(self, producer_id: ProducerId, entry: _Entry) -> None:
        """Ask about the first batch of a row at the end of this turn."""
        partition, transaction = entry.batch.partition, entry.batch.transaction
        assert transaction is not None
        if not self._questions:
            self._reactor.end_of_turn(self._ask_all)
        question: object = None
        try:
            question = partition.transactions.ask_verification(producer_id, entry.epoch)
        except Exception as error:  # noqa: BLE001 - the boundary
            partition.failed("verification", error)
        asked = self._questions.setdefault((transaction, producer_id, entry.epoch), [])
        asked.append(_Asked(partition, question, partition.leader_epoch))

    def _ask_all(self) -> None:
        questions, self._questions = self._questions, {}
        for (transaction, producer_id, epoch), asked in questions.items():

            def answered(
                codes: Sequence[int],
                version: int = transaction.version,
                producer_id: ProducerId = producer_id,
                epoch: ProducerEpoch = epoch,
                asked: list[_Asked] = asked,
            ) -> None:
                for one, code in zip(asked, codes, strict=True):
                    error = _as_produce_says(code, version) or _overtaken(one, producer_id, epoch)
                    self._settle((one.partition, producer_id), epoch, error)

            partitions = tuple((one.partition.name, one.partition.index) for one in asked)
            self.ask(Question(transaction.transactional_id, producer_id, epoch, transaction.adds, partitions), answered)

    def _settle(self, row: tuple[Partition, ProducerId], epoch: ProducerEpoch, error: int) -> None:
        """The coordinator has answered for the batches of ``epoch`` in a row."""
        waiting = self._rows[row]
        while waiting:
            batch, batch_epoch, done = waiting[0]
            if batch_epoch != epoch:
                self._plan(row[1], waiting[0])  # of another transaction of the same producer
                return
            waiting.popleft()
            self._bytes -= batch.size
            if error:
                done(Outcome(error), None)
            else:
                self._append(batch, done)
        del self._rows[row]


def _overtaken(asked: _Asked, producer_id: ProducerId, epoch: ProducerEpoch) -> int:
    """Note that a partition is part of a transaction; an error code if a marker or a change of the leader came since
    the question.
    """
    partition = asked.partition
    if partition.leader_epoch != asked.term:
        return int(partition.refusal or ErrorCode.NOT_LEADER_OR_FOLLOWER)
    try:
        verified = partition.transactions.verified(producer_id, epoch, asked.question)
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
    """The coordinator's answer as Produce words it."""
    if code in _RETRIABLE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_FROM):
        return int(ErrorCode.NOT_ENOUGH_REPLICAS)
    if code == ErrorCode.PRODUCER_FENCED:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return int(ErrorCode.INVALID_TXN_STATE)
    return code


def no_coordinator(question: Question, answer: Answer) -> None:
    """``Ask`` while there is no coordinator."""
    answer([int(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(question.partitions))
