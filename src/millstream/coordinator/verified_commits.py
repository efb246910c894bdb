"""Commits of offsets in transactions: the coordinator of the transaction is asked before the group's.

::

    TxnOffsetCommit ─► open in this partition? ─► yes ───────────────────────────► the group's coordinator
                                              └► no: ask the transaction's ─► yes ──┘
                                                                           └► no: refused

A commit of a transaction that has ended must not open it again in this partition: no coordinator would end it, and it
would hold back every later commit of the group. So the question is put here, on the partition's home shard, where the
partition sees every marker, as ``partition.append.verification`` does for batches: an answer that a marker overtook is
void (INVALID_TXN_STATE), and so is a verified commit that a marker overtakes before it is appended.

While a question is open, further commits of the same producer wait behind it, in order. They are what the client has in
flight, so the limits on connections bound them. If the partition closes, all are refused with NOT_COORDINATOR. A crash
loses what waits, of which nothing was acknowledged.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId
from millstream.partition.append.verification import Ask, Question, no_coordinator
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

Verified = Callable[[ErrorCode], None]
"""NONE: the commit may be stored now."""


class VerifyingLog(Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    @property
    def index(self) -> int: ...

    def accepts(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool: ...

    def ask_verification(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> object: ...

    def verified(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, question: object) -> bool: ...


class _Waiting(NamedTuple):
    request: TxnOffsetCommitRequest
    adds: bool
    done: Verified


class VerifiedCommits:
    """The commits that wait in one partition.

    Lifecycle: with the partition's groups; ``close`` refuses what waits. Invariant: a row that exists is not empty, and
    the coordinator was asked about its first commit.
    """

    def __init__(self, partition: VerifyingLog) -> None:
        self._partition = partition
        self._rows: dict[ProducerId, deque[_Waiting]] = {}
        self.ask: Ask = no_coordinator
        """Asks the transaction's coordinator, wherever it is. Set when there is one."""

    def verify(self, request: TxnOffsetCommitRequest, done: Verified, *, adds: bool) -> None:
        """Call ``done`` when this partition is part of the producer's transaction, or with the reason why it is not.
        ``adds``: the client leaves adding the partition to the broker.
        """
        waiting = _Waiting(request, adds, done)
        row = self._rows.get(request.producer_id)
        if row is not None:
            row.append(waiting)
        elif self._partition.accepts(request.producer_id, request.producer_epoch):
            done(ErrorCode.NONE)
        else:
            self._rows[request.producer_id] = deque((waiting,))
            self._ask(waiting)

    def _ask(self, waiting: _Waiting) -> None:
        request, adds, _ = waiting
        producer_id, epoch = request.producer_id, request.producer_epoch
        question = self._partition.ask_verification(producer_id, epoch)

        def answered(codes: Sequence[int]) -> None:
            row = self._rows.get(producer_id)
            if row is None or row[0] is not waiting:
                return  # closed since
            error = ErrorCode(codes[0])
            if error is ErrorCode.NONE and not self._partition.verified(producer_id, epoch, question):
                error = ErrorCode.INVALID_TXN_STATE
            self._settle(row, error)

        place = (OFFSETS_TOPIC, self._partition.index)
        self.ask(Question(request.transactional_id, producer_id, epoch, adds, (place,)), answered)

    def _settle(self, row: deque[_Waiting], error: ErrorCode) -> None:
        """The answer for the first commit of a row counts for those after it that ask the same."""
        first = row[0]
        while row and _same(row[0], first):
            row.popleft().done(error)
        if row:
            self._ask(row[0])
        else:
            self._rows.pop(first.request.producer_id, None)

    def close(self) -> None:
        """Refuse what waits: this shard coordinates the groups no longer."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            for waiting in row:
                waiting.done(ErrorCode.NOT_COORDINATOR)


def _same(one: _Waiting, other: _Waiting) -> bool:
    epochs_agree = one.request.producer_epoch == other.request.producer_epoch
    return epochs_agree and one.adds == other.adds and one.request.transactional_id == other.request.transactional_id
