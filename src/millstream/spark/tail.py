"""Reads from the leader what no sealed file holds: the tail of a log, a log without files, a missing file.

The next fetch is in flight while one is decoded. The ends that a query reads to were stable when it was planned, so the
reader waits if a response without batches comes before such an end. A log that is shorter than it was is a loss, and
``failOnDataLoss`` decides.
"""

import time
from collections.abc import Iterator

from millstream.client import EARLIEST, LATEST, Cluster, OffsetOutOfRange, PartitionLog, TopicReplaced
from millstream.errors import Unavailable
from millstream.spark.columns import RecordBatch
from millstream.spark.decode import Aborted, Decoder
from millstream.spark.loss import LossPolicy
from millstream.spark.planner import Span


class Tail:
    """Reads ranges of one partition from its leader. ``bytes_read`` counts the received batches."""

    def __init__(
        self, cluster: Cluster, span: Span, *, read_committed: bool, fetch_bytes: int, loss: LossPolicy
    ) -> None:
        self.bytes_read = 0
        self._cluster = cluster
        self._span = span
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes
        self._loss = loss
        self._name = f"{span.topic}-{span.partition}"

    def read(self, decoder: Decoder, end: int) -> Iterator[RecordBatch]:
        """Decode from the decoder's position to ``end`` (exclusive); the decoder is then at ``end``.

        Raises:
            DataLost: records were deleted, and ``failOnDataLoss`` is set.
            Unavailable: no leader answers.
        """
        while decoder.position < end:
            try:
                yield from self._read(decoder, end)
            except OffsetOutOfRange:
                self._step_over(decoder, end)
            except TopicReplaced as error:
                self._loss.report(f"{error.message}, and offsets {decoder.position} to {end} had not been read")
                decoder.skip_to(end)

    def _read(self, decoder: Decoder, end: int) -> Iterator[RecordBatch]:
        topic_id = bytes.fromhex(self._span.topic_id)
        with PartitionLog(
            self._cluster,
            self._span.topic,
            self._span.partition,
            topic_id=topic_id,
            read_committed=self._read_committed,
            max_bytes=self._fetch_bytes,
        ) as log:
            log.request(decoder.position)
            deadline = time.monotonic() + self._cluster.timeout_s
            while True:
                fetched = log.receive()
                scan = decoder.scan(fetched.records, f"fetched from {self._name}")
                if scan.rows:
                    deadline = time.monotonic() + self._cluster.timeout_s
                elif time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self._name} gives no record at offset {decoder.position}, and {end} is where it ended"
                    )
                else:
                    # A batch may be larger than a fetch; brokers then send it alone, or truncated.
                    log.max_bytes = max(log.max_bytes, scan.needed)
                if max(scan.next_offset, decoder.position) < end:
                    log.request(max(scan.next_offset, decoder.position))
                self.bytes_read += scan.consumed
                aborted = [Aborted(producer_id, first) for producer_id, first in fetched.aborted]
                yield from decoder.decode(scan, f"fetched from {self._name}", aborted)
                if decoder.position >= end:
                    return

    def _step_over(self, decoder: Decoder, end: int) -> None:
        """Continue after deleted offsets."""
        key = (self._span.topic, self._span.partition)
        low = self._cluster.list_offsets({key: EARLIEST})[key].offset
        high = self._cluster.list_offsets({key: LATEST})[key].offset
        position = decoder.position
        if low > position:
            self._loss.report(f"{self._name} starts at offset {low} now, and {position} had not been read")
            decoder.skip_to(min(low, end))
        elif high < end:
            self._loss.report(f"{self._name} ends at offset {high} now, and {end} had been there")
            decoder.skip_to(end)
