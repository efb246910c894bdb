"""Writes rows to topics: exactly once in transactions, or at least once on request.

``exactly-once`` is described in ``exactly_once``. ``at-least-once`` uses ``acks=all`` and holds nothing back: when a
task ends, its rows are stored. Rows of a task or micro-batch that Spark repeats are then there again. A broker without
transactions is never written to with less than what was asked for: the query fails, and names the option.

Names and signatures of the writers are Spark's. It makes a new writer for each micro-batch, and another one, in
another process, for its commit. So they hold settings and no connections.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.errors import Rejected
from millstream.spark.exactly_once import (
    TaskDone,
    Write,
    WriteSettings,
    abort_tasks,
    commit_tasks,
    is_done,
    named,
    write_task,
)
from millstream.spark.options import WRITE, Options, parse_options, tell_ignored
from millstream.spark.plain_errors import plainly
from millstream.spark.schema import check_written
from millstream.spark.storing import PartitionCounts, Pending
from millstream.spark.topic_error import topic_error

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_SPECULATION = "spark.speculation"


class Written(WriterCommitMessage):
    """Result of a task: what it stored; ``write`` and ``done`` if it did so in a transaction."""

    def __init__(self, rows: int, written_bytes: int, write: Write | None = None, done: TaskDone | None = None) -> None:
        self.rows = rows
        self.written_bytes = written_bytes
        self.write = write
        self.done = done


def checked_options(raw: Mapping[str, str], schema: StructType) -> Options:
    """The options of a write, checked together with the columns before anything is written.

    Raises:
        Rejected: an option or a column is wrong or missing.
    """
    from millstream.spark.encode import check_columns

    options = parse_options(raw, WRITE)
    options.require("kafka.bootstrap.servers")
    check_columns(schema.fieldNames())
    check_written(schema)
    if options["topic"] is None and "topic" not in schema.fieldNames():
        raise Rejected("no topic is named: set the option topic, or add a column topic")
    return options


def write_settings(options: Options) -> WriteSettings:
    """The settings that all tasks of a query share."""
    return WriteSettings(
        options["kafka.bootstrap.servers"],
        options["kafka.client.id"],
        options["kafka.request.timeout.ms"] / 1000,
        options["topic"],
        options["kafka.compression.type"],
        options["kafka.batch.size"],
        options["kafka.transaction.timeout.ms"],
        options.security,
    )


def batch_writer(raw: Mapping[str, str], schema: StructType) -> DataSourceArrowWriter:
    """The writer of a batch query.

    Raises:
        Rejected: an option or a column is wrong or missing.
    """
    options = checked_options(raw, schema)
    settings = write_settings(options)
    if options["delivery"] == "at-least-once":
        if "write.id" in options.given:
            raise Rejected("write.id is for delivery=exactly-once: leave one of them out")
        return TopicWriter(settings)
    if "write.number" in options.given and "write.id" not in options.given:
        raise Rejected("write.number counts the writes of a write.id: set that, too")
    write_id = options["write.id"]
    if write_id is None:
        return OnceWriter(settings, Write(f"millstream-write-{uuid.uuid4().hex}", 0, repeatable=False))
    write = Write(named(write_id), options["write.number"])
    return OnceWriter(settings, write, done=is_done(settings, write))


def stream_writer(raw: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """The writer of a streaming query.

    Raises:
        Rejected: an option or a column is wrong or missing.
    """
    options = checked_options(raw, schema)
    for name in ("write.id", "write.number"):
        if name in options.given:
            raise Rejected(f"{name} is for batch writes: a stream is named by its checkpoint")
    kind = TopicStreamWriter if options["delivery"] == "at-least-once" else OnceStreamWriter
    return kind(write_settings(options))


def check_target(raw: Mapping[str, str], schema: StructType) -> None:
    """Ask once, before any task, whether the topic can be written to; tells of options that mean nothing here.

    Raises:
        Rejected: the topic does not exist.
        Unavailable: no broker answers.
    """
    options = checked_options(raw, schema)
    tell_ignored(options)
    settings = write_settings(options)
    if settings.topic is not None:
        with settings.cluster() as cluster:
            code = cluster.metadata([settings.topic]).topics[settings.topic].error_code
        if code:
            raise topic_error(settings.topic, code)


@plainly
class TopicWriter(DataSourceArrowWriter):
    """At least once, in a batch query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


@plainly
class TopicStreamWriter(DataSourceStreamArrowWriter):
    """At least once, in a streaming query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


@plainly
class OnceWriter(DataSourceArrowWriter):
    """Exactly once, in a batch query. ``done``: an earlier run has written all of it."""

    def __init__(self, settings: WriteSettings, write: Write, *, done: bool = False) -> None:
        self._settings = settings
        self._write = write
        self._done = done

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self._done:
            for _ in iterator:
                pass  # what the query does beside its rows is done again: counts, reports, files
            return Written(0, 0, self._write)
        task = _task()
        return _written(self._write, write_task(self._settings, self._write, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._done:
            commit_tasks(self._settings, self._write, _tasks_of(messages), mark_done=self._write.repeatable)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_tasks(self._settings, _tasks_of(messages))


@plainly
class OnceStreamWriter(DataSourceStreamArrowWriter):
    """Exactly once, in a streaming query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = _task()
        query, batch = _property(_QUERY_ID), _property(_BATCH_ID)
        assert query is not None and batch is not None, "Spark tells every task of a stream its query and batch"
        write = Write(f"millstream-{query}", int(batch))
        return _written(write, write_task(self._settings, write, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's)
        writes = {found.write for found in messages if isinstance(found, Written) and found.write is not None}
        assert len(writes) <= 1, "the tasks of a batch belong to one write"
        for write in writes:
            assert write.number == batchId, "a batch commits its own tasks"
            commit_tasks(self._settings, write, _tasks_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's)
        abort_tasks(self._settings, _tasks_of(messages))


def write_rows(settings: WriteSettings, batches: Iterator[Any]) -> Written:
    """Store the rows of a task, at least once. Returns when all are stored.

    Raises:
        Unavailable: not all rows were stored in time; some may be.
        Rejected: a broker refuses them.
    """
    from millstream.spark.encode import RowEncoder

    with settings.cluster() as cluster:
        counts = PartitionCounts(cluster)
        encoder = RowEncoder(settings.topic, counts, codec=settings.codec, batch_bytes=settings.batch_bytes)
        pending = Pending(cluster.produce_all, settings.timeout_s)
        rows = 0
        for batch in batches:
            for encoded in encoder.encode(batch):
                pending.add((encoded.topic, encoded.partition), encoded.batch)
                rows += encoded.rows
        pending.flush()
        return Written(rows, pending.written_bytes)


def _written(write: Write, done: TaskDone) -> Written:
    return Written(done.rows, done.written_bytes, write, done)


def _tasks_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    """What the tasks have done; Spark has None for those that failed."""
    return [found.done for found in messages if isinstance(found, Written) and found.done is not None]


def _task() -> int:
    """Number of this task in its job.

    Raises:
        Rejected: Spark may run two attempts of a task at a time.
    """
    from pyspark import TaskContext

    if (_property(_SPECULATION) or "").lower() == "true":
        raise Rejected(
            "spark.speculation runs two attempts of a task at a time, which delivery=exactly-once does not allow: "
            "set it to false, or delivery=at-least-once"
        )
    context = TaskContext.get()
    assert context is not None, "Spark calls writers in a task"
    return context.partitionId()


def _property(name: str) -> str | None:
    """A property of the running job. Spark puts the session's settings among them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None
