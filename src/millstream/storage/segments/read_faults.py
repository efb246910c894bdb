"""What reading a segment found wrong: counted each time, said a few times a minute, by topic and partition.

A consumer asks again for what it could not get, so that one damaged batch is found many times a second: it is
reported once in ``AGAIN_S``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.telemetry.metrics import StatsSlab

AGAIN_S: Final = 600.0
_LINES_A_MINUTE: Final = 10
_REMEMBERED_MAX: Final = 1024

Clock = Callable[[], float]


def closed(name: str) -> MillstreamError:
    """The error of a read of the log ``name`` whose topic was deleted in the meantime."""
    return Unavailable(f"{name}: the log is closed", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def stopping(name: str) -> MillstreamError:
    """The error of a read of the log ``name`` whose shard stops."""
    return Retriable(f"{name}: its shard stops", ErrorCode.KAFKA_STORAGE_ERROR)


class ReadFaults:
    """One per shard."""

    def __init__(self, stats: StatsSlab, now: Clock = time.monotonic) -> None:
        self._corrupt = stats.counter("storage_faults", kind="corruption")
        self._failed = stats.counter("storage_faults", kind="read_error")
        self._damage = stats.damage
        self._now = now
        self._lines = RateLimit(_LINES_A_MINUTE, now)
        self._reported: dict[tuple[str, str], float] = {}
        self.on_corrupt: Callable[[str], None] = _nothing
        """Gets the name of a log in which damage was found, each time."""

    def corrupt(self, name: str, path: str, offset: Offset, what: str) -> None:
        """The segment ``path`` of the log ``name`` holds bytes that were not written, at ``offset`` (-1: somewhere)."""
        self._corrupt.inc()
        self._damage.put(name, offset, path)
        self._say(name, f"corrupt: {what}")
        self.on_corrupt(name)

    def failed(self, name: str, path: str, error: int) -> None:
        """The disk could not read a segment of the log ``name``."""
        self._failed.inc()
        self._say(name, f"{path} could not be read: {os.strerror(error)}")

    def _say(self, name: str, line: str) -> None:
        now = self._now()
        if now - self._reported.get((name, line), -AGAIN_S) < AGAIN_S:
            return
        if self._lines.allows():
            if len(self._reported) >= _REMEMBERED_MAX:
                self._reported.clear()
            self._reported[name, line] = now
            operator_log.at(name).error("%s%s", line, self._lines.left_out())


def _nothing(name: str) -> None:
    """Default callback: repairs nothing."""


class HelperFault(Exception):
    """What a helper process has met in a command about one log. Its text ends with the traceback there."""


def raise_fault(fault: Exception) -> None:
    """Raise what a helper process has met, behind the boundary of its log."""
    raise fault
