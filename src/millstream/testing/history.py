"""The history of a client workload: the evidence that ``millstream.testing.history_check`` checks.

A workload records in a ``History`` every send, poll, assignment, commit and committed-offset query, every topic that it
creates, deletes and lists, every deletion of records and every log start offset. Each operation has the time when it
began and the time when its outcome was known. The outcome is one of three:

- ``OK``: the broker acknowledged it;
- ``FAIL``: it certainly did not happen;
- ``INFO``: unknown (a timeout, a lost connection, a crash before the response). An operation without an outcome at the
  check is of this kind. It is never counted as failure: it may have happened once, or not at all.

Values must be unique in the whole history, so that a record that was read identifies its send. The name of a topic is
used for one topic only. A producer or consumer is identified by its *process* name, and a restarted one gets a new
name. A send with a key means that its partition is compacted: all others there have a key, too.

Recording is an append under a lock, so delivery callbacks of any thread may call it. ``History.save`` writes JSON lines
and ``History.load`` reads them: a failed run keeps its history.
"""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


class Outcome(StrEnum):
    """Known outcome of an operation."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Send(msgspec.Struct, tag="send"):
    """One record given to a producer. ``offset`` is the acknowledged offset; ``ended_ns`` is 0 while the outcome is
    unknown.
    """

    process: str
    place: TopicPartition
    value: str
    idempotent: bool
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO
    offset: int = -1
    key: str = ""
    transaction: str = ""
    """Name of the transaction that it is part of, which occurs once in the history."""


class Poll(msgspec.Struct, tag="poll"):
    """Records that one poll returned from one partition, in order."""

    process: str
    group: str
    place: TopicPartition
    records: list[tuple[int, str]]
    at_ns: int
    read_committed: bool = False


class Reset(msgspec.Struct, tag="reset"):
    """The position of a consumer on these partitions was set: assigned, sought, or resumed from a commit."""

    process: str
    topic_partitions: list[TopicPartition]
    at_ns: int


class Commit(msgspec.Struct, tag="commit"):
    """A commit of a group's next offset."""

    process: str
    group: str
    place: TopicPartition
    next_offset: int
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO
    transaction: str = ""


class EndTransaction(msgspec.Struct, tag="end"):
    """A request to commit or abort a transaction. A transaction may be asked to end several times."""

    process: str
    transaction: str
    commits: bool
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class Committed(msgspec.Struct, tag="committed"):
    """A group's committed offset in the broker's response; -1 is none."""

    group: str
    place: TopicPartition
    next_offset: int
    began_ns: int
    ended_ns: int


class TopicChange(msgspec.Struct, tag="topic"):
    """A request to create (``exists``) or delete a topic."""

    topic: str
    exists: bool
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class TopicsSeen(msgspec.Struct, tag="topics"):
    """A listing of all topics."""

    names: list[str]
    began_ns: int
    ended_ns: int


class Trim(msgspec.Struct, tag="trim"):
    """A request to delete the records of a partition before an offset."""

    place: TopicPartition
    before: int
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class LogStart(msgspec.Struct, tag="start"):
    """The log start offset of a partition in the broker's response."""

    place: TopicPartition
    offset: int
    began_ns: int
    ended_ns: int


OutsideTransactions = Send | Poll | Reset | Commit | Committed | TopicChange | TopicsSeen | Trim | LogStart
Operation = OutsideTransactions | EndTransaction


class History:
    """All operations of one run, in the order in which they started."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    def _append(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)

    def send(
        self,
        process: str,
        topic: str,
        partition: int,
        value: str,
        *,
        key: str = "",
        idempotent: bool = True,
        transaction: str = "",
    ) -> Send:
        """Record the start of a send. Pass the result to ``sent`` when its outcome is known."""
        place, began_ns = TopicPartition(topic, partition), time.monotonic_ns()
        operation = Send(process, place, value, idempotent, began_ns, key=key, transaction=transaction)
        self._append(operation)
        return operation

    def sent(self, operation: Send, outcome: Outcome, offset: int = -1) -> None:
        """Record the outcome of a send. ``offset`` with OK; -1 if the client does not know it (acks=0)."""
        operation.ended_ns = time.monotonic_ns()
        operation.offset = offset
        operation.outcome = outcome

    def polled(
        self,
        process: str,
        topic: str,
        partition: int,
        records: Iterable[tuple[int, str]],
        *,
        group: str = "",
        read_committed: bool = False,
    ) -> None:
        """Record records that a consumer received: (offset, value) in order."""
        place, at_ns = TopicPartition(topic, partition), time.monotonic_ns()
        self._append(Poll(process, group, place, list(records), at_ns, read_committed))

    def reset(self, process: str, topic_partitions: Iterable[tuple[str, int]]) -> None:
        """Record that a consumer's position on these partitions was set."""
        self._append(
            Reset(
                process,
                [TopicPartition(topic, partition) for topic, partition in topic_partitions],
                time.monotonic_ns(),
            )
        )

    def commit(
        self, process: str, group: str, topic: str, partition: int, next_offset: int, *, transaction: str = ""
    ) -> Commit:
        """Record the start of a commit. Pass the result to ``done``."""
        place, began_ns = TopicPartition(topic, partition), time.monotonic_ns()
        operation = Commit(process, group, place, next_offset, began_ns, transaction=transaction)
        self._append(operation)
        return operation

    def end_transaction(self, process: str, transaction: str, *, commits: bool) -> EndTransaction:
        """Record the start of a request to end a transaction. Pass the result to ``done``."""
        operation = EndTransaction(process, transaction, commits, time.monotonic_ns())
        self._append(operation)
        return operation

    def change_topic(self, topic: str, *, exists: bool) -> TopicChange:
        """Record the start of a creation or deletion of a topic. Pass the result to ``done``."""
        operation = TopicChange(topic, exists, time.monotonic_ns())
        self._append(operation)
        return operation

    def trim(self, topic: str, partition: int, before: int) -> Trim:
        """Record the start of a deletion of records. Pass the result to ``done``."""
        operation = Trim(TopicPartition(topic, partition), before, time.monotonic_ns())
        self._append(operation)
        return operation

    def done(self, operation: Commit | EndTransaction | TopicChange | Trim, outcome: Outcome) -> None:
        """Record the outcome of any operation but a send."""
        operation.ended_ns = time.monotonic_ns()
        operation.outcome = outcome

    def topics_seen(self, names: Iterable[str], *, began_ns: int) -> None:
        """Record a listing of all topics that was requested at ``began_ns`` and answered now."""
        self._append(TopicsSeen(sorted(names), began_ns, time.monotonic_ns()))

    def log_start(self, topic: str, partition: int, offset: int, *, began_ns: int) -> None:
        """Record a log start offset that was requested at ``began_ns`` and answered now."""
        self._append(LogStart(TopicPartition(topic, partition), offset, began_ns, time.monotonic_ns()))

    def committed(self, group: str, topic: str, partition: int, next_offset: int, *, began_ns: int) -> None:
        """Record a committed offset that was requested at ``began_ns`` and answered now."""
        self._append(Committed(group, TopicPartition(topic, partition), next_offset, began_ns, time.monotonic_ns()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON document per line."""
        encode = msgspec.json.encode
        Path(path).write_bytes(b"".join(encode(operation) + b"\n" for operation in self.operations))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what ``save`` wrote."""
        decoder = msgspec.json.Decoder(Operation)
        history = cls()
        history.operations = [decoder.decode(line) for line in Path(path).read_bytes().splitlines()]
        return history

    @classmethod
    def of_operations(cls, operations: Sequence[Operation]) -> History:
        """A history from a list, for tests of the checker."""
        history = cls()
        history.operations = list(operations)
        return history
