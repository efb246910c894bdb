"""What reading a segment found wrong: counted each time, said a few times a minute, by topic and partition.

A consumer asks again for what it could not get, so that one damaged batch is found many times a second.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.telemetry.metrics import StatsSlab

_LINES_A_MINUTE = 10


class ReadFaults:
    """One per shard."""

    def __init__(self, stats: StatsSlab) -> None:
        self._corrupt = stats.counter("storage_faults", kind="corruption")
        self._failed = stats.counter("storage_faults", kind="read_error")
        self._lines = RateLimit(_LINES_A_MINUTE)

    def corrupt(self, name: str, what: str) -> None:
        """The log `name` holds bytes that nobody wrote."""
        self._corrupt.inc()
        self._say(name, f"corrupt: {what}")

    def failed(self, name: str, error: int) -> None:
        """The disk could not read a segment of the log `name`."""
        self._failed.inc()
        self._say(name, f"a segment could not be read: {os.strerror(error)}")

    def _say(self, name: str, line: str) -> None:
        if self._lines.allows():
            operator_log.at(name).error("%s%s", line, self._lines.left_out())
