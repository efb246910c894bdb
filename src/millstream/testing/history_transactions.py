"""The part of the history checker that is about transactions.

A transaction is committed if a commit of it was acknowledged. It is aborted if an abort was acknowledged, or nobody
ever asked to commit it. Else its outcome is unknown: it may be either, but not both. The anomalies are:

- ``aborted-read``: a read_committed consumer was given a record of an aborted transaction;
- ``precommitted-read``: it was given a record before anybody asked to commit its transaction;
- ``torn``: read_committed consumers were given acknowledged records of a transaction, and others of them never, though
  they came further than those stand;
- ``offset-lost``: a group does not have the offset that a committed transaction committed, or a later one.

For all other checks a send or a commit of offsets counts as certain only if its transaction is committed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from millstream.testing.history import Commit, Committed, EndTransaction, Outcome, Poll, Send, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.testing.history import Operation, OutsideTransactions

_Anomaly = tuple[str, TopicPartition, str]
"""(kind, place, evidence)"""


class _Transaction:
    """What a history says of one transaction."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.commits: list[Commit] = []
        self.commit_began_ns: int | None = None
        self.ended_ns = 0
        self.outcome: bool | None = False
        """Whether it is committed; None if that is unknown."""

    def ends(self, end: EndTransaction) -> None:
        if end.outcome is Outcome.FAIL:
            return
        if end.commits and (self.commit_began_ns is None or end.began_ns < self.commit_began_ns):
            self.commit_began_ns = end.began_ns
        if end.outcome is Outcome.OK:
            self.outcome = end.commits
            self.ended_ns = end.ended_ns
        elif end.commits and not self.ended_ns:
            self.outcome = None


def _transactions(operations: Sequence[Operation]) -> dict[str, _Transaction]:
    found: dict[str, _Transaction] = defaultdict(_Transaction)
    for operation in operations:
        if isinstance(operation, Send) and operation.transaction:
            found[operation.transaction].sends.append(operation)
        elif isinstance(operation, Commit) and operation.transaction:
            found[operation.transaction].commits.append(operation)
        elif isinstance(operation, EndTransaction):
            found[operation.transaction].ends(operation)
    return found


def settled(operations: Sequence[Operation]) -> list[OutsideTransactions]:
    """The operations, each with its outcome as that of its transaction makes it."""
    fates = _transactions(operations)
    result: list[OutsideTransactions] = []
    for operation in operations:
        if isinstance(operation, EndTransaction):
            continue
        if isinstance(operation, Send | Commit) and operation.transaction:
            fate = fates[operation.transaction].outcome
            outcome = operation.outcome
            if not fate and outcome is Outcome.OK:
                outcome = Outcome.FAIL if fate is False and isinstance(operation, Commit) else Outcome.INFO
            operation = msgspec.structs.replace(operation, outcome=outcome)
        result.append(operation)
    return result


def transaction_anomalies(operations: Sequence[Operation]) -> Iterator[_Anomaly]:
    """What a read_committed consumer, or a group, must not see."""
    transactions = _transactions(operations)
    polls = [one for one in operations if isinstance(one, Poll) and one.read_committed]
    first_read: dict[tuple[TopicPartition, str], int] = {}
    reached: dict[TopicPartition, int] = {}
    for poll in polls:
        for offset, value in poll.records:
            first_read[poll.place, value] = min(poll.at_ns, first_read.get((poll.place, value), poll.at_ns))
            reached[poll.place] = max(offset, reached.get(poll.place, -1))
    answers: dict[tuple[str, TopicPartition], list[Committed]] = defaultdict(list)
    for operation in operations:
        if isinstance(operation, Committed):
            answers[operation.group, operation.place].append(operation)
    for name, transaction in sorted(transactions.items()):
        yield from _reads(name, transaction, first_read, reached)
        if transaction.outcome:
            yield from _offsets(name, transaction, answers)


def _reads(
    name: str,
    transaction: _Transaction,
    first_read: dict[tuple[TopicPartition, str], int],
    reached: dict[TopicPartition, int],
) -> Iterator[_Anomaly]:
    read = [send for send in transaction.sends if (send.place, send.value) in first_read]
    for send in read:
        at_ns = first_read[send.place, send.value]
        if transaction.outcome is False:
            yield "aborted-read", send.place, f"{send.value} of transaction {name}, which was aborted"
        elif transaction.commit_began_ns is None or at_ns < transaction.commit_began_ns:
            yield (
                "precommitted-read",
                send.place,
                f"{send.value} of transaction {name}, before its commit was asked for",
            )
    missing = [
        send
        for send in transaction.sends
        if send.outcome is Outcome.OK and send not in read and 0 <= send.offset <= reached.get(send.place, -1)
    ]
    if read and missing and transaction.outcome is not False:
        one = missing[0]
        yield "torn", one.place, f"{one.value} of transaction {name} is missing, {read[0].value} was read"


def _offsets(
    name: str, transaction: _Transaction, answers: dict[tuple[str, TopicPartition], list[Committed]]
) -> Iterator[_Anomaly]:
    for commit in transaction.commits:
        for answer in answers[commit.group, commit.place]:
            if answer.began_ns > transaction.ended_ns and answer.next_offset < commit.next_offset:
                why = f"{commit.group} has {answer.next_offset}, transaction {name} had committed {commit.next_offset}"
                yield "offset-lost", commit.place, why
                break
