"""The operator's log: one line on stderr for each event that an operator must see.

::

    2026-11-20T21:54:07.123Z INFO  [shard 0] ready in 0.21 s
    2026-11-20T21:54:09.500Z WARN  [shard 1 orders/3 term 1] producer snapshot ignored, replaying the log: …

State changes are INFO; what needs a person is WARN or ERROR. Nothing per request is logged above DEBUG, which is off. A
line is one write(2), so lines of several processes never mix. A full pipe must not stop a shard: lines that do not fit,
or cannot be written, are dropped silently.

**Loggers.** The room of a line (``raft``, ``kafka``, …) is the package of the module that writes it; ``root`` is all of
them. ``set_for`` gives a room, or ``root``, another level for a time. When that is over the level is the one before: a
person who looks for a fault at night does not leave a broker that writes too much or too little. WARN and ERROR lines
are always written.

``set_form(JSON_LINES)`` writes each line as one JSON object: time, level, process, place, room, message, traceback.

``log`` is the log of this process. ``log.who("shard 0")`` is called once after the fork. ``log.at("orders/3 term 1")``
returns a log that also names the place. ``RateLimit`` limits the lines that a client can cause, and counts those that
it suppresses. Names that clients chose appear as they are, but unprintable characters are escaped, so that no client
can forge a line or send a sequence to the terminal that shows it. A traceback is indented below its line.
"""

from __future__ import annotations

import enum
import json
import os
import select
import sys
import time
import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.telemetry.metrics import Counter, StatsSlab


ROOT: Final = "root"
ROOMS: Final = (
    "app",
    "cluster",
    "coordinator",
    "helper",
    "kafka",
    "net",
    "objects",
    "partition",
    "peers",
    "raft",
    "shard",
    "storage",
    "tiers",
)
"""Packages whose lines have a level of their own."""

PLAIN_LINES: Final = "text"
JSON_LINES: Final = "json"


class Level(enum.IntEnum):
    """Urgency of a line."""

    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40


class TimedLevel(NamedTuple):
    """A level that ends automatically. ``until_s`` is a time of ``time.monotonic``."""

    level: Level
    until_s: float


class _Process:
    """State that all logs of a process share. ``timed`` has the levels that are set for a time, by logger."""

    __slots__ = ("as_json", "counters", "fd", "level", "now", "timed", "who")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.level = Level.INFO
        self.who = ""
        self.fd = 2
        self.as_json = False
        self.counters: dict[Level, Counter] = {}
        self.timed: dict[str, TimedLevel] = {}
        self.now = now

    def level_of(self, logger: str) -> Level:
        """The level that counts for a room now, or for ``root``."""
        if self.timed:
            now = self.now()
            self.timed = {name: one for name, one in self.timed.items() if one.until_s > now}
        found = self.timed.get(logger) or self.timed.get(ROOT)
        return self.level if found is None else found.level


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
        """The least urgent level that is written, of rooms without a level of their own."""
        return self._process.level_of(ROOT)

    def set_level(self, level: Level) -> None:
        """Set the level of ``root``; what is set for a time still counts before it."""
        self._process.level = level

    def set_for(self, logger: str, level: Level | None, seconds: float) -> None:
        """Give a room, or ``root``, a level for a time; None takes such a level away."""
        self._process.timed.pop(logger, None)
        if level is not None:
            self._process.timed[logger] = TimedLevel(level, self._process.now() + seconds)

    def levels(self) -> dict[str, tuple[Level, float | None]]:
        """For ``root`` and each room the level, and for how many more seconds it is set; None if it does not end."""
        process = self._process
        found: dict[str, tuple[Level, float | None]] = {}
        for logger in (ROOT, *ROOMS):
            level = process.level_of(logger)
            one = process.timed.get(logger)
            found[logger] = (level, None if one is None else one.until_s - process.now())
        return found

    def set_form(self, form: str) -> None:
        """``PLAIN_LINES`` or ``JSON_LINES``."""
        self._process.as_json = form == JSON_LINES

    def at(self, place: str) -> Log:
        """The same log with a place (topic partition, group) in each line."""
        return Log(self._process, place)

    def debug(self, message: str, *args: object) -> None:
        if self._wanted(Level.DEBUG):
            self._write(Level.DEBUG, message, args)

    def info(self, message: str, *args: object) -> None:
        if self._wanted(Level.INFO):
            self._write(Level.INFO, message, args)

    def warning(self, message: str, *args: object) -> None:
        self._write(Level.WARN, message, args)

    def error(self, message: str, *args: object) -> None:
        self._write(Level.ERROR, message, args)

    def exception(self, message: str, *args: object) -> None:
        """Write an ERROR line and, below it, the traceback of the exception being handled."""
        self._write(Level.ERROR, message, args, traceback.format_exc())

    def _wanted(self, level: Level) -> bool:
        """Whether the caller of the caller writes lines of this level."""
        if not self._process.timed:
            return self._process.level <= level
        return self._process.level_of(_room_of(2)) <= level

    def _write(self, level: Level, message: str, args: tuple[object, ...], detail: str = "") -> None:
        process = self._process
        seconds = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        stamp = f"{stamp}.{int(seconds * 1000) % 1000:03d}Z"
        text = message % args if args else message
        if process.as_json:
            parts = {"time": stamp, "level": level.name, "process": process.who, "place": self._place}
            parts |= {"room": _room_of(2), "message": text, "traceback": detail}
            line = json.dumps({name: part for name, part in parts.items() if part}) + "\n"
        else:
            place = _printable(" ".join(part for part in (process.who, self._place) if part))
            detail = "".join(f"    {_printable(one)}\n" for one in detail.splitlines())
            where = f"[{place}] " if place else ""
            line = f"{stamp} {level.name:<5} {where}{_printable(text)}\n{detail}"
        counter = process.counters.get(level)
        if counter is not None:
            counter.inc()
        _write_if_room(process.fd, line.encode(errors="backslashreplace"))


def _room_of(depth: int) -> str:
    """The room of the module ``depth`` calls above the caller."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]  # the documented way to the caller
    return str(frame.f_globals.get("__name__", "")).removeprefix("millstream.").partition(".")[0]


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
