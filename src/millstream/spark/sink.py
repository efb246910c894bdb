"""Writing rows to topics, at least once.

``acks=all``, nothing kept back: when a task ends, all its rows are stored. What makes it *at least* once: a task or a
micro-batch that fails is run again by Spark, and its rows are written again; so is a batch whose answer was lost. The
promise has to be named by the query (``delivery=at-least-once``), so that nobody believes in another; exactly-once
needs transactions, and asking for it is an error for as long as there are none.

``commit`` and ``abort`` do nothing: rows are visible when they are stored, and cannot be taken back.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.client import Cluster
from millstream.client.cluster import TopicPartition, error_of
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.spark.options import WRITE, Options, parse_options

_FLUSH_BYTES: Final = 4 << 20
_PAUSE_S: Final = 0.1


class Written(WriterCommitMessage):
    """What a task has stored."""

    def __init__(self, rows: int, written_bytes: int) -> None:
        self.rows = rows
        self.written_bytes = written_bytes


class WriteSettings(msgspec.Struct, frozen=True):
    """What all tasks of a query share."""

    bootstrap: str
    client_id: str
    timeout_s: float
    topic: str | None
    codec: str
    batch_bytes: int


def write_settings(raw: Mapping[str, str], schema: StructType) -> WriteSettings:
    """Check what a query wants written, before any of it is.

    Raises:
        Rejected: an option or a column is wrong or missing, or a promise is asked for that cannot be kept.
    """
    from millstream.spark.encode import check_columns

    options = parse_options(raw, WRITE)
    options.require("kafka.bootstrap.servers")
    _check_delivery(options)
    check_columns(schema.fieldNames())
    if options["topic"] is None and "topic" not in schema.fieldNames():
        raise Rejected("say where to write: the option topic, or a column topic")
    return WriteSettings(
        options["kafka.bootstrap.servers"],
        options["kafka.client.id"],
        options["kafka.request.timeout.ms"] / 1000,
        options["topic"],
        options["kafka.compression.type"],
        options["kafka.batch.size"],
    )


def _check_delivery(options: Options) -> None:
    delivery = options["delivery"]
    if delivery is None:
        raise Rejected(
            "say what is promised: option delivery=at-least-once (rows may be written twice when Spark repeats a task "
            "or a micro-batch). Exactly-once comes with transactions and is not there yet"
        )
    if delivery == "exactly-once":
        raise Rejected(
            "delivery=exactly-once needs transactions, which are not there yet; delivery=at-least-once is what there "
            "is, and readers have to bear a row that comes twice"
        )


class TopicWriter(DataSourceArrowWriter):
    """A batch query's sink."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's sink."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


def write_rows(settings: WriteSettings, batches: Iterator[Any]) -> Written:
    """Store the rows of a task; returns when all of them are.

    Raises:
        Unavailable: they could not be stored in time; some of them may have been.
        Rejected: a broker does not take them.
    """
    from millstream.spark.encode import RowEncoder

    with Cluster(settings.bootstrap, client_id=settings.client_id, timeout_s=settings.timeout_s) as cluster:
        counts: dict[str, int] = {}

        def partitions_of(topic: str) -> int:
            if topic not in counts:
                found = cluster.metadata([topic]).topics[topic]
                if found.error_code:
                    raise error_of(found.error_code, f"topic {topic} cannot be written to")
                counts[topic] = len(found.partitions)
            return counts[topic]

        encoder = RowEncoder(settings.topic, partitions_of, codec=settings.codec, batch_bytes=settings.batch_bytes)
        pending = _Pending(cluster)
        rows = 0
        for batch in batches:
            for encoded in encoder.encode(batch):
                pending.add((encoded.topic, encoded.partition), encoded.batch)
                rows += encoded.rows
        pending.flush()
        return Written(rows, pending.written_bytes)


class _Pending:
    """Batches that are encoded and not yet stored; one request per leader at a time keeps each partition's order."""

    def __init__(self, cluster: Cluster) -> None:
        self.written_bytes = 0
        self._cluster = cluster
        self._batches: dict[TopicPartition, list[bytes]] = {}
        self._bytes = 0

    def add(self, target: TopicPartition, batch: bytes) -> None:
        self._batches.setdefault(target, []).append(batch)
        self._bytes += len(batch)
        if self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Store everything that was added; a broker takes one batch of a partition a request."""
        while self._batches:
            self._store({target: batches[:1] for target, batches in self._batches.items()})
            self._batches = {target: batches[1:] for target, batches in self._batches.items() if len(batches) > 1}
        self._bytes = 0

    def _store(self, wanted: dict[TopicPartition, list[bytes]]) -> None:
        deadline = time.monotonic() + self._cluster.timeout_s
        while wanted:
            outcomes = self._cluster.produce_all(wanted)
            for target, outcome in outcomes.items():
                if not isinstance(outcome, MillstreamError):
                    self.written_bytes += sum(map(len, wanted.pop(target)))
                elif not isinstance(outcome, Retriable | OutcomeUnknown | Unavailable):
                    raise outcome
                elif time.monotonic() + _PAUSE_S > deadline:
                    raise Unavailable(f"{target[0]}-{target[1]} cannot be written: {outcome.message}") from outcome
            if wanted:
                time.sleep(_PAUSE_S)
