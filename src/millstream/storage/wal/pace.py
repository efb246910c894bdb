"""When the next tick of the write-ahead log may start: wake-ups and syncs are paid per tick, latency per wait.

Where ticks carry one record each, clients wait for each answer, and pacing would only make them wait longer: the next
tick starts at once. Otherwise two ticks start at least `pacing_us` apart, and while few records are there, a quarter as
long again: 10 000 requests a second that come at any time fill a tick of `pacing_us` with five of them, each of which
would pay a fifth of its sync. That wait ends early when as many records are there as lately came at once. A handful of
clients that wait for their answers are all back by then; nobody else is coming, and waiting on would only slow them
down. A tick of `_PACED_BYTES` does not wait at all.

Only numbers: no clock and no timer. `storage.wal.wal` asks and waits.
"""

from __future__ import annotations

from typing import Final

_BUSY_RECORDS: Final = 2.0
"""Mean records a tick from which on pacing applies."""

_FEW_RECORDS: Final = 16
"""From so many records on, what a sync costs each of them is small beside the rest that they cost."""

_PACED_BYTES: Final = 128 * 1024
"""A tick of this size costs more in bytes than in wake-ups: waiting for company gains nothing."""

_FORGET: Final = 0.25
"""How much of the peak each tick below it takes off: a client that has gone is waited for in four ticks a record."""


class TickPace:
    """When the next tick goes. Times are µs of one monotonic clock."""

    __slots__ = ("_mean", "_pacing_us", "_peak", "submitted_us")

    def __init__(self, pacing_us: int) -> None:
        self._pacing_us = pacing_us
        self.submitted_us = 0
        """When the last tick started."""

        self._mean = 0.0
        self._peak = 0.0

    def due_us(self, records: int, payload_bytes: int) -> int:
        """When a tick that holds this much may start; a time that has passed, or 0, is at once."""
        pacing_us = self._pacing_us
        if not pacing_us or self._mean < _BUSY_RECORDS or payload_bytes >= _PACED_BYTES:
            return 0
        if records >= _FEW_RECORDS or records >= self._peak:
            return self.submitted_us + pacing_us
        return self.submitted_us + pacing_us + pacing_us // 4

    def submitted(self, now_us: int, records: int) -> None:
        """A tick of `records` starts now."""
        self.submitted_us = now_us
        self._mean += (records - self._mean) / 4
        self._peak = records if records >= self._peak else self._peak - _FORGET
