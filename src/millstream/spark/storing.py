"""Sends encoded batches to the leaders of their partitions until all are stored."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.client import Cluster
from millstream.client.cluster import TopicPartition
from millstream.errors import MillstreamError, OutcomeUnknown, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.spark.topic_error import topic_error

_FLUSH_BYTES: Final = 4 << 20
_PAUSE_S: Final = 0.1

Produce = Callable[[Mapping[TopicPartition, Sequence[bytes]]], Mapping[TopicPartition, int | MillstreamError]]


class PartitionCounts:
    """Number of partitions by topic, asked for once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        if topic not in self._counts:
            found = self._cluster.metadata([topic]).topics[topic]
            if found.error_code:
                raise topic_error(topic, found.error_code)
            self._counts[topic] = len(found.partitions)
        return self._counts[topic]


class Pending:
    """Encoded batches that are not yet stored. One request per leader at a time keeps each partition's order."""

    def __init__(self, produce: Produce, timeout_s: float) -> None:
        self.written_bytes = 0
        self._produce = produce
        self._timeout_s = timeout_s
        self._batches: dict[TopicPartition, list[bytes]] = {}
        self._bytes = 0

    def add(self, target: TopicPartition, batch: bytes) -> None:
        self._batches.setdefault(target, []).append(batch)
        self._bytes += len(batch)
        if self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Store all added batches. A broker takes one batch of a partition per request.

        Raises:
            Unavailable: not all were stored in time; some may be.
            Rejected: a broker refuses one.
        """
        while self._batches:
            self._store({target: batches[:1] for target, batches in self._batches.items()})
            self._batches = {target: batches[1:] for target, batches in self._batches.items() if len(batches) > 1}
        self._bytes = 0

    def _store(self, wanted: dict[TopicPartition, list[bytes]]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while wanted:
            outcomes = self._produce(wanted)
            for target, outcome in outcomes.items():
                if not isinstance(outcome, MillstreamError) or outcome.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    self.written_bytes += sum(map(len, wanted.pop(target)))
                elif not isinstance(outcome, Retriable | OutcomeUnknown | Unavailable):
                    raise outcome
                elif time.monotonic() + _PAUSE_S > deadline:
                    raise Unavailable(f"{target[0]}-{target[1]} cannot be written: {outcome.message}") from outcome
            if wanted:
                time.sleep(_PAUSE_S)
