"""Pacing: when the next tick of the write-ahead log may start. Each tick costs wake-ups and a sync; each wait costs
latency.

A log whose ticks carry about one record each serves clients that wait for every answer. Pacing would only delay them,
so the next tick starts at once. Otherwise two ticks start at least ``pacing_us`` apart, and 1.25 × ``pacing_us`` while
the tick has few records: at 10,000 requests a second, five of them share the sync of a tick. The longer wait ends early
when the tick has as many records as recent ticks had: the few clients that wait for answers have all sent again, and no
more records will come. A tick of ``_PACED_BYTES`` starts at once.

This file only calculates: it has no clock. ``storage.wal.wal`` calls it, and starts and cancels the timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.shard.reactor import Timer

_BUSY_RECORDS: Final = 2.0
"""Pacing applies from this mean number of records per tick on."""

_FEW_RECORDS: Final = 16
"""From this number of records on, each record's share of the sync is small beside its other costs."""

_PACED_BYTES: Final = 128 * 1024
"""Payload bytes from which on a tick is not paced: its bytes cost more than its wake-ups."""

_FORGET: Final = 0.25
"""Records that each smaller tick takes off the peak: a client that has gone is forgotten after four ticks per record.
"""


class TickPace:
    """Decides when the next tick may start. Times are microseconds of one monotonic clock."""

    __slots__ = ("_mean", "_pacing_us", "_peak", "submitted_us", "timer")

    def __init__(self, pacing_us: int) -> None:
        self._pacing_us = pacing_us
        self.submitted_us = 0
        """Start of the last tick."""

        self.timer: Timer | None = None
        """Starts the next tick, if that waits."""

        self._mean = 0.0
        self._peak = 0.0

    def due_us(self, records: int, payload_bytes: int) -> int:
        """Earliest start of a tick with this content. A time in the past, or 0, means at once."""
        pacing_us = self._pacing_us
        if not pacing_us or self._mean < _BUSY_RECORDS or payload_bytes >= _PACED_BYTES:
            return 0
        if records >= _FEW_RECORDS or records >= self._peak:
            return self.submitted_us + pacing_us
        return self.submitted_us + pacing_us + pacing_us // 4

    def submitted(self, now_us: int, records: int) -> None:
        """Note that a tick of ``records`` starts now."""
        self.submitted_us = now_us
        self._mean += (records - self._mean) / 4
        self._peak = records if records >= self._peak else self._peak - _FORGET
