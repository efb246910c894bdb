"""Writes rows to topics, at least once.

Writes use ``acks=all`` and hold nothing back: when a task ends, all its rows are stored. It is *at least* once because
Spark repeats failed tasks and micro-batches, whose rows are then written again, and because a batch whose response was
lost is sent again. The query must name the guarantee (``delivery=at-least-once``), so that nobody expects another.
Exactly-once needs writes in transactions, which this sink does not make, and is refused.

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
    """Result of a task: what it stored."""

    def __init__(self, rows: int, written_bytes: int) -> None:
        self.rows = rows
        self.written_bytes = written_bytes


class WriteSettings(msgspec.Struct, frozen=True):
    """The settings that all tasks of a query share."""

    bootstrap: str
    client_id: str
    timeout_s: float
    topic: str | None
    codec: str
    batch_bytes: int


def write_settings(raw: Mapping[str, str], schema: StructType) -> WriteSettings:
    """Check the options and the schema of a write, before anything is written.

    Raises:
        Rejected: an option or a column is wrong or missing, or the guarantee cannot be given.
    """
    from millstream.spark.encode import check_columns

    options = parse_options(raw, WRITE)
    options.require("kafka.bootstrap.servers")
    _check_delivery(options)
    check_columns(schema.fieldNames())
    if options["topic"] is None and "topic" not in schema.fieldNames():
        raise Rejected("no topic is named: set the option topic, or add a column topic")
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
            "the guarantee is missing: set delivery=at-least-once (rows may be written twice when Spark repeats "
            "a task or a micro-batch). Exactly-once needs a sink that writes in transactions, which this one does not"
        )
    if delivery == "exactly-once":
        raise Rejected(
            "delivery=exactly-once needs a sink that writes in transactions, which this one does not; "
            "delivery=at-least-once is supported, and readers must tolerate duplicate rows"
        )


class TopicWriter(DataSourceArrowWriter):
    """The sink of a batch query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._settings, iterator)


def write_rows(settings: WriteSettings, batches: Iterator[Any]) -> Written:
    """Store the rows of a task. Returns when all are stored.

    Raises:
        Unavailable: not all rows were stored in time; some may be.
        Rejected: a broker refuses them.
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
    """Encoded batches that are not yet stored. One request per leader at a time keeps each partition's order."""

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
        """Store all added batches. A broker takes one batch of a partition per request."""
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
