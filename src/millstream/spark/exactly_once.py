"""Writes the rows of a Spark job to topics exactly once, in one transaction for each task.

::

    task i                                                   driver, when all tasks are done
    start: fences and aborts an earlier attempt              compare with the plan of an earlier attempt, if any
    marker of task i ≥ this write? ──► nothing to write      store the plan: tasks, rows, a hash of their content
    write rows, marker := this write, both in the            commit the transactions ──► rows and markers appear
    transaction; leave it open

A write has a name (a query's id, or ``write.id``) and a number (the micro-batch). Task i uses the transactional id
``<name>-<i>``, and a consumer group of that name holds its marker: the number of the last committed write, plus one.
Spark hands the driver the message of one attempt of each task, and only the driver commits. So:

- *A task fails, or its worker is killed.* Its transaction is aborted by the next attempt, or after its time-out.
- *The driver dies before a commit.* The next driver repeats the batch; its tasks abort what is open, and write again.
- *The driver dies between two commits, or a commit raises after it took effect.* Tasks whose marker is there write
  nothing when the batch is repeated, and the others write again. That is right if task i has the same rows as before.
  The driver checks it: the plan, an offset of the group ``<name>`` with a hash as its metadata, was stored before the
  first commit. Other rows are refused before anything more is committed.
- *An attempt that was given up still runs.* The newer attempt has fenced it, and its next request fails.
- *A broker dies, a coordinator moves.* Requests are repeated; the coordinator's answer tells what took effect.
- *A batch takes longer than the transaction's time-out.* The coordinator aborts; the commit fails and says so.

Each row has one batch in which it becomes visible to read_committed readers, and rows of one task keep their order. The
tasks of a batch become visible one after the other. What this needs: no speculation, a marker that outlives a pause
of the query (``offsets.retention.minutes``), and a checkpoint that is not set back, which is refused.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from millstream.client import Cluster
from millstream.client.cluster import TopicPartition
from millstream.client.coordinators import Coordinators
from millstream.client.security import PLAIN, Security
from millstream.client.transactional import (
    FENCED,
    MarkedOffset,
    OpenTransaction,
    Transaction,
    end_transactions,
    mark_offset,
    marked_offset,
)
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.model.marks import WRITE_MARK
from millstream.spark.storing import PartitionCounts, Pending

_ABORT_S: Final = 5.0
"""Time limit of an abort. It spares readers a wait; correctness does not need it."""

_BEGUN: Final = "begun"
_DONE: Final = "done"


class WriteSettings(msgspec.Struct, frozen=True):
    """The settings that all tasks of a query share."""

    bootstrap: str
    client_id: str
    timeout_s: float
    topic: str | None
    codec: str
    batch_bytes: int
    transaction_timeout_ms: int = 900_000
    security: Security = PLAIN

    def cluster(self) -> Cluster:
        return Cluster(self.bootstrap, client_id=self.client_id, timeout_s=self.timeout_s, security=self.security)


class Write(msgspec.Struct, frozen=True):
    """One write of a job. ``number`` rises from one write of that name to the next.

    ``repeatable``: the same name and number may come again after a crash, so that markers and a plan are stored.
    """

    name: str
    number: int
    repeatable: bool = True

    @property
    def mark(self) -> int:
        """Offset that marks this write as done."""
        return self.number + 1

    def task_id(self, task: int) -> str:
        """Transactional id, and group, of a task."""
        return f"{self.name}-{task}"


class TaskDone(msgspec.Struct, frozen=True):
    """What a task has written. ``open`` is its transaction; None if it had no rows, or they were committed before.

    ``place`` names a partition for markers, None without rows. ``content`` is the sum of the rows' hashes.
    """

    task: int
    rows: int = 0
    written_bytes: int = 0
    content: int = 0
    open: OpenTransaction | None = None
    place: TopicPartition | None = None
    opened_at: float = 0.0


def write_task(settings: WriteSettings, write: Write, task: int, batches: Iterator[Any]) -> TaskDone:
    """Write the rows of a task, and leave its transaction open for the driver.

    Raises:
        Rejected: a broker refuses rows or transactions, or another attempt has fenced this one.
        Unavailable: not all rows were stored in time.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return TaskDone(task)
    with settings.cluster() as cluster:
        return _TaskWriter(settings, write, task, cluster).write(first, filled)


class _TaskWriter:
    """One attempt of a task that has rows."""

    def __init__(self, settings: WriteSettings, write: Write, task: int, cluster: Cluster) -> None:
        self._settings = settings
        self._write = write
        self._task = task
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._rows = self._content = 0
        self._place: TopicPartition | None = None

    def write(self, first: Any, rest: Iterator[Any]) -> TaskDone:
        group = self._write.task_id(self._task)
        opened_at = time.monotonic()
        transaction = self._begin(group)
        try:
            marker = marked_offset(self._coordinators, group).offset if self._write.repeatable else -1
            if marker > self._write.mark:
                raise Rejected(
                    f"{group} has already written number {marker - 1}, and now comes {self._write.number}: the "
                    "checkpoint was set back; restore the newer one, or start with a new one"
                )
            if marker == self._write.mark:
                return self._skip(first, rest)
            written_bytes = self._store(transaction, first, rest)
            assert self._place is not None, "rows were stored somewhere"
            if self._write.repeatable:
                transaction.add_offset(group, self._place, MarkedOffset(self._write.mark, WRITE_MARK))
        except MillstreamError as error:
            if error.code in FENCED:
                raise Rejected(self._fenced(opened_at, error), error.code) from error
            self._abort(transaction)
            raise
        except BaseException:
            self._abort(transaction)
            raise
        return TaskDone(self._task, self._rows, written_bytes, self._content, transaction.open, self._place, opened_at)

    def _begin(self, transactional_id: str) -> Transaction:
        try:
            return Transaction.begin(self._coordinators, transactional_id, self._settings.transaction_timeout_ms)
        except Rejected as error:
            if error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise Rejected(
                    f"the broker does not allow kafka.transaction.timeout.ms={self._settings.transaction_timeout_ms}: "
                    "set a lower one, at most the broker's transaction.max.timeout.ms",
                    error.code,
                ) from error
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                raise Rejected(
                    "the broker serves no transactions, which delivery=exactly-once needs: set delivery=at-least-once, "
                    "and readers must tolerate duplicate rows",
                    error.code,
                ) from error
            raise

    def _store(self, transaction: Transaction, first: Any, rest: Iterator[Any]) -> int:
        from millstream.spark.encode import RowEncoder

        settings, who = self._settings, transaction.open

        def produce(wanted: Any) -> Any:
            transaction.add(wanted)
            return self._cluster.produce_all(wanted, transactional_id=who.transactional_id)

        encoder = RowEncoder(
            settings.topic,
            PartitionCounts(self._cluster),
            codec=settings.codec,
            batch_bytes=settings.batch_bytes,
            producer=(who.producer_id, who.producer_epoch),
        )
        pending = Pending(produce, settings.timeout_s)
        for batch in _chain(first, rest):
            self._count(batch)
            for encoded in encoder.encode(batch):
                if self._place is None:
                    self._place = (encoded.topic, 0)
                pending.add((encoded.topic, encoded.partition), encoded.batch)
        pending.flush()
        return pending.written_bytes

    def _skip(self, first: Any, rest: Iterator[Any]) -> TaskDone:
        for batch in _chain(first, rest):
            self._count(batch)
        return TaskDone(self._task, self._rows, 0, self._content)

    def _count(self, batch: Any) -> None:
        from millstream.spark.encode import content_hash

        self._rows += batch.num_rows
        self._content = (self._content + content_hash(batch)) & (1 << 64) - 1

    def _abort(self, transaction: Transaction) -> None:
        end_transactions(self._coordinators, [transaction.open], commit=False, timeout_s=_ABORT_S)

    def _fenced(self, opened_at: float, error: MillstreamError) -> str:
        return _why_over(self._settings, self._write, self._task, opened_at, error)


def commit_tasks(settings: WriteSettings, write: Write, tasks: Sequence[TaskDone], *, mark_done: bool = False) -> None:
    """Commit what the tasks of a write have written.

    Args:
        settings: those of the tasks.
        write: the write.
        tasks: one for each task of the job; ``open`` transactions are committed.
        mark_done: store that all is committed, for ``is_done``.

    Raises:
        Rejected: a transaction is over, or a repeated write has other rows than the one that was committed in part.
        Unavailable: a coordinator does not answer; some transactions may be committed, and the write can be repeated.
    """
    filled = [task for task in tasks if task.rows]
    place = next((task.place for task in filled if task.place is not None), None)
    if place is None and settings.topic is not None:
        place = (settings.topic, 0)
    if not filled and not mark_done:
        return
    with settings.cluster() as cluster:
        coordinators = Coordinators(cluster)
        plan = _plan_of(tasks)
        if filled and write.repeatable:
            _agree_on_plan(coordinators, write, plan, place)
        _end(settings, coordinators, write, [task for task in filled if task.open is not None])
        if mark_done and place is not None:
            mark_offset(coordinators, write.name, place, MarkedOffset(write.mark, f"{plan} {WRITE_MARK} {_DONE}"))


def abort_tasks(settings: WriteSettings, tasks: Sequence[TaskDone]) -> None:
    """Abort what tasks have left open, so that readers need not wait. Errors are ignored: a repetition aborts, too."""
    opened = [task.open for task in tasks if task.open is not None]
    if opened:
        with settings.cluster() as cluster:
            end_transactions(Coordinators(cluster), opened, commit=False, timeout_s=_ABORT_S)


def last_write(cluster: Cluster, write_id: str) -> int | None:
    """The number of the last write of a ``write.id`` that was started; None without one."""
    found = marked_offset(Coordinators(cluster), named(write_id))
    return found.offset - 1 if found.offset > 0 else None


def named(write_id: str) -> str:
    """The name of the writes of a ``write.id``."""
    return f"millstream-write-{write_id}"


def is_done(settings: WriteSettings, write: Write) -> bool:
    """Whether ``commit_tasks`` has marked this write as done.

    Raises:
        Rejected: a later write of that name is done.
    """
    with settings.cluster() as cluster:
        found = marked_offset(Coordinators(cluster), write.name)
    if found.offset > write.mark:
        raise Rejected(
            f"write number {found.offset - 1} of {write.name} is done, and now comes {write.number}: numbers of a "
            "write.id rise; take another write.id for another job"
        )
    return found.offset == write.mark and found.metadata.endswith(_DONE)


def _end(settings: WriteSettings, coordinators: Coordinators, write: Write, tasks: Sequence[TaskDone]) -> None:
    by_transaction = {task.open: task for task in tasks if task.open is not None}
    failed = end_transactions(coordinators, list(by_transaction), commit=True, timeout_s=settings.timeout_s)
    for who, error in failed.items():
        task = by_transaction[who]
        if error.code in FENCED:
            raise Rejected(_why_over(settings, write, task.task, task.opened_at, error), error.code) from error
        if isinstance(error, Unavailable):
            raise Unavailable(f"task {task.task} of write {write.number} may not be committed: {error.message}")
        raise error


def _plan_of(tasks: Sequence[TaskDone]) -> str:
    """Number of tasks and a digest of what each has: equal for a repetition with the same rows."""
    filled = sorted((task.task, task.rows, task.content) for task in tasks if task.rows)
    digest = hashlib.sha256(repr(filled).encode()).hexdigest()[:32]
    return f"{max((task.task for task in tasks), default=-1) + 1} {digest}"


def _agree_on_plan(coordinators: Coordinators, write: Write, plan: str, place: TopicPartition | None) -> None:
    """Store what this write is going to commit, unless an attempt before has.

    Raises:
        Rejected: a part of a different plan is committed.
    """
    found = marked_offset(coordinators, write.name)
    if found.offset == write.mark and found.metadata.startswith(plan):
        return
    if found.offset == write.mark:
        before = int(found.metadata.split()[0])
        if any(marked_offset(coordinators, write.task_id(i)).offset == write.mark for i in range(before)):
            raise Rejected(
                f"write {write.number} of {write.name} was committed in part before it was repeated, and now has other "
                "rows: the query is not deterministic (rand(), uuid(), a sum of doubles after a shuffle, other "
                "partitions?). Make it deterministic and start with a new checkpoint, or let "
                "delivery=at-least-once write this batch once more"
            )
    if place is not None:
        mark_offset(coordinators, write.name, place, MarkedOffset(write.mark, f"{plan} {WRITE_MARK} {_BEGUN}"))


def _why_over(settings: WriteSettings, write: Write, task: int, opened_at: float, error: MillstreamError) -> str:
    open_ms = int((time.monotonic() - opened_at) * 1000)
    what = f"the transaction of task {task} of write {write.number} is over ({error.code.name})"
    if open_ms >= settings.transaction_timeout_ms:
        return (
            f"{what}: it was open for {open_ms} ms, longer than "
            f"kafka.transaction.timeout.ms={settings.transaction_timeout_ms}; raise that, or bound a batch "
            "(maxOffsetsPerTrigger)"
        )
    return (
        f"{what}: another attempt of this task has started; spark.speculation must be false, and a checkpoint or "
        "write.id belongs to one running query"
    )


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
