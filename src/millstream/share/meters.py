"""ShareMeters: the metrics of the share partitions of one shard."""

from typing import Final

from millstream.core.share.tally import Tally
from millstream.telemetry.metrics import StatsSlab

KINDS: Final = ("gap", "accept", "release", "reject", "renew")
"""Types of acknowledgement, as in a request."""


class ShareMeters:
    """The metrics of a shard. The core counts in ``tally``; `show` makes that visible.

    Lifecycle: made with the shard's share partitions.
    """

    def __init__(self, stats: StatsSlab) -> None:
        self.tally = Tally()
        self.partitions = stats.gauge("share_partitions")
        self.writes = stats.counter("share_state_writes")
        self.failed_writes = stats.counter("share_state_failed_writes")
        self._acquired = stats.counter("share_acquired_records")
        self._acknowledged = [stats.counter("share_acknowledged_records", kind=kind) for kind in KINDS]
        self._released = stats.counter("share_released_records")
        self._timed_out = stats.counter("share_timed_out_records")
        self._exhausted = stats.counter("share_exhausted_records")

    def show(self) -> None:
        """Add to the counters what was counted since the last call."""
        tally = self.tally
        for counter, value in zip(self._acknowledged, tally.acknowledged, strict=True):
            counter.inc(value - counter.value)
        for counter, value in (
            (self._acquired, tally.acquired),
            (self._released, tally.released),
            (self._timed_out, tally.timed_out),
            (self._exhausted, tally.exhausted),
        ):
            counter.inc(value - counter.value)
