"""Writes the markers of decided transactions, for as long as it takes.

A transaction is complete when each of its partitions has its marker. A partition that does not answer, or is led by
no broker now, is tried again, at ever longer intervals up to ``BACKOFF_MAX_US``. A partition that no longer exists
has no reader left. One that knows a later epoch of the producer, or a later coordinator, is left to that one.

A coordinator that stops leaves the rest to its successor, which finds the decision in the log.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.core.txn.image import TopicPartition
from millstream.core.txn.messages import SendMarkers
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import CoordinatorEpoch
from millstream.partition.append.markers import Marker
from millstream.telemetry.log import RateLimit, log

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor

BACKOFF_US: Final = 20_000
BACKOFF_MAX_US: Final = 1_000_000
_LINES_A_MINUTE: Final = 6

_FINAL: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)

WriteMarker = Callable[[TopicPartition, Marker, Callable[[ErrorCode], None]], None]
"""``write(place, marker, done)``, on whichever shard or broker the partition is."""


class MarkerSender:
    """The markers of one partition of ``__transaction_state``.

    Lifecycle: with the partition's coordinator; ``stop`` when it coordinates no more.
    """

    def __init__(self, reactor: "Reactor", write: WriteMarker) -> None:
        self._reactor = reactor
        self._write = write
        self._stopped = False
        self._lines = RateLimit(_LINES_A_MINUTE)

    def stop(self) -> None:
        """Try nothing again, and call nothing back."""
        self._stopped = True

    def send(self, wanted: SendMarkers, coordinator_epoch: CoordinatorEpoch, done: Callable[[], None]) -> None:
        """Call ``done`` when every partition has its marker."""
        marker = Marker(
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.commits,
            coordinator_epoch,
            wanted.client_version,
        )
        missing = len(wanted.partitions)

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing and not self._stopped:
                done()

        for topic_partition in wanted.partitions:
            self._send_one(topic_partition, marker, BACKOFF_US, settled)

    def _send_one(
        self, topic_partition: TopicPartition, marker: Marker, backoff_us: int, settled: Callable[[], None]
    ) -> None:
        if self._stopped:
            return

        def answered(error: ErrorCode) -> None:
            if error in _FINAL:
                settled()
                return
            if backoff_us >= BACKOFF_MAX_US and self._lines.allows():
                log.warning(
                    "the marker of producer %d for %s/%d is not written yet: %s; it is tried again%s",
                    marker.producer_id,
                    *topic_partition,
                    error.name,
                    self._lines.left_out(),
                )
            following_us = min(2 * backoff_us, BACKOFF_MAX_US)
            self._reactor.call_later(backoff_us, lambda: self._send_one(topic_partition, marker, following_us, settled))

        self._write(topic_partition, marker, answered)
