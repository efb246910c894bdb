"""The operator's log: one line on stderr for each event that an operator must see.

::

    2026-11-20T21:54:07.123Z INFO  [shard 0] ready in 0.21 s
    2026-11-20T21:54:09.500Z WARN  [shard 1 orders/3 term 1] producer snapshot ignored, replaying the log: …

State changes are INFO; what needs a person is WARN or ERROR. Nothing per request is logged above DEBUG, which is off. A
line is one write(2), so lines of several processes never mix. A full pipe must not stop a shard: lines that do not fit,
or cannot be written, are dropped silently.

``log`` is the log of this process. ``log.who("shard 0")`` is called once after the fork. ``log.at("orders/3 term 1")``
returns a log that also names the place. ``RateLimit`` limits the lines that a client can cause, and counts those that
it suppresses. Names that clients chose appear as they are, but unprintable characters are escaped, so that no client
can forge a line or send a sequence to the terminal that shows it. A traceback is indented below its line.
"""

from __future__ import annotations

import enum
import os
import select
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.telemetry.metrics import Counter, StatsSlab


class Level(enum.IntEnum):
    """Urgency of a line."""

    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40


class _Process:
    """State that all logs of a process share."""

    __slots__ = ("counters", "fd", "level", "who")

    def __init__(self) -> None:
        self.level = Level.INFO
        self.who = ""
        self.fd = 2
        self.counters: dict[Level, Counter] = {}


class Log:
    """The log of one process, or of one place in it (a partition, a group)."""

    __slots__ = ("_place", "_process")

    def __init__(self, process: _Process, place: str = "") -> None:
        self._process = process
        self._place = place

    def who(self, name: str, stats: StatsSlab | None = None) -> None:
        """Set the process's name for every later line, and count the lines in ``stats``."""
        process = self._process
        process.who = name
        if stats is not None:
            process.counters = {
                Level.INFO: stats.counter("log_lines", level="info"),
                Level.WARN: stats.counter("log_lines", level="warning"),
                Level.ERROR: stats.counter("log_lines", level="error"),
            }

    @property
    def level(self) -> Level:
        """The least urgent level that is written."""
        return self._process.level

    def set_level(self, level: Level) -> None:
        self._process.level = level

    def at(self, place: str) -> Log:
        """The same log with a place (topic partition, group) in each line."""
        return Log(self._process, place)

    def debug(self, message: str, *args: object) -> None:
        if self._process.level <= Level.DEBUG:
            self._write(Level.DEBUG, message, args)

    def info(self, message: str, *args: object) -> None:
        if self._process.level <= Level.INFO:
            self._write(Level.INFO, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._write(Level.WARN, message, args)

    def error(self, message: str, *args: object) -> None:
        self._write(Level.ERROR, message, args)

    def exception(self, message: str, *args: object) -> None:
        """Write an ERROR line and, below it, the traceback of the exception being handled."""
        self._write(Level.ERROR, message, args, traceback.format_exc())

    def _write(self, level: Level, message: str, args: tuple[object, ...], detail: str = "") -> None:
        process = self._process
        seconds = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        place = _printable(" ".join(part for part in (process.who, self._place) if part))
        text = _printable(message % args if args else message)
        detail = "".join(f"    {_printable(line)}\n" for line in detail.splitlines())
        where = f"[{place}] " if place else ""
        line = f"{stamp}.{int(seconds * 1000) % 1000:03d}Z {level.name:<5} {where}{text}\n{detail}"
        counter = process.counters.get(level)
        if counter is not None:
            counter.inc()
        _write_if_room(process.fd, line.encode(errors="backslashreplace"))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _write_if_room(fd: int, data: bytes) -> None:
    """Write as much as fits without waiting. A pipe with any room takes ``PIPE_BUF`` bytes at once (pipe(7))."""
    room = select.poll()
    try:
        room.register(fd, select.POLLOUT)
        for begin in range(0, len(data), select.PIPE_BUF):
            if not room.poll(0):
                return
            os.write(fd, data[begin : begin + select.PIPE_BUF])
    except OSError:
        return


log = Log(_Process())
"""The log of this process."""


class RateLimit:
    """Limit of ``per_minute`` lines a minute, with bursts of the same size. ``suppressed`` counts the lines left
    out.
    """

    __slots__ = ("_interval_s", "_now", "_per_minute", "_room", "_then", "suppressed")

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._interval_s = 60.0 / per_minute
        self._now = now
        self._room = float(per_minute)
        self._then = now()
        self.suppressed = 0

    def allows(self) -> bool:
        """Whether a line may be written now. ``left_out`` then says how many were suppressed since the last one."""
        now = self._now()
        self._room = min(float(self._per_minute), self._room + (now - self._then) / self._interval_s)
        self._then = now
        if self._room < 1.0:
            self.suppressed += 1
            return False
        self._room -= 1.0
        return True

    def left_out(self) -> str:
        """Empty, or " (and 12 more like it)". Resets the count."""
        count, self.suppressed = self.suppressed, 0
        return f" (and {count} more like it)" if count else ""
