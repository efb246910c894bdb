"""Bringing a log's durable bytes into its segment files, after the fact and in big pieces.

Ranges of the log cache are written once ``WRITE_BYTES_MIN`` of them are full and durable, or a quarter of the log's
stream in the cache, up to four times as much: a log that has much of the cache leaves what is written longer in it.
Less than that, and a quiet log's open range, is written when its segment is sealed, or a checkpoint or the cache asks
for it (``write``). At most one ``Write`` of a log is at the worker, so a failed one leaves no hole: the next goes to
the same place. Its memory is held until the worker has answered: a cut and the deletion of the log do not wait for it,
and bytes of another log in that memory would go into the segment. Only durable bytes are ever written, so a segment
never holds what the write-ahead log does not, and recovery may take a segment's bytes for the copy that they are.

A full disk (ENOSPC, EDQUOT) is reported to ``LogHost.write_refused``, and ``advance`` tries again; any other
error ends the shard.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.iobuf.room import release_all
from millstream.model.quantities import BytePosition
from millstream.storage.messages.commands import Write, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Fragment
    from millstream.storage.log.cache import Range
    from millstream.storage.log.host import LogHost
    from millstream.storage.log.open_log import OpenLog

_VERB: Final = "write behind"

WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
WRITE_BYTES_MIN: Final = 1024 * 1024
"""A write of 128 KiB costs the worker three times as much a byte, and the reactor a message each; one of 4 MiB costs
three quarters as much a byte.
"""


class WriteBehind:
    """One per log."""

    __slots__ = (
        "_generation",
        "held",
        "_host",
        "_log",
        "_pending",
        "_unwritten",
        "_waiters",
        "target",
        "under_way",
    )

    def __init__(self, log: OpenLog, host: LogHost) -> None:
        self._log = log
        self._host = host
        self._unwritten: deque[Range] = deque()
        self._waiters: list[tuple[int, Callable[[], None]]] = []
        self._generation = 0
        self._pending: tuple[int, int] = (0, 0)  # (generation, stream position that the sent Write reaches)
        self.target = log.ends.written_position - _head_start(log.group)
        """Stream position up to which the segment is to reach."""

        self.under_way = False
        self.held: list[int] = []
        """Stream positions of cuts of the log's end that are not in the files yet: nothing after them is written."""

    def add(self, one: Range) -> None:
        """A new range of the log, to be written some time."""
        self._unwritten.append(one)

    def gone(self, one: Range) -> None:
        """``one``, which is written, leaves the cache, as all before it have: their memory is written no more."""
        unwritten = self._unwritten
        while unwritten and unwritten[0].stream <= one.stream:
            unwritten.popleft()

    def filled(self, position: BytePosition) -> None:
        """The log's ranges up to ``position`` are full, the one from there on is open."""
        log = self._log
        least = self._host.write_bytes_min
        if position - self.target >= min(max(least, log.cache.span // 4), 4 * least):
            self.target = position

    def write(self, target: int) -> None:
        """Write up to stream position ``target`` as it becomes durable."""
        if target > self.target:
            self.target = target
        if not self.under_way:
            self.advance()

    def when_written(self, position: BytePosition, callback: Callable[[], None]) -> None:
        """Write up to ``position``, which is durable, then call back; at once if it is written."""
        if self._log.ends.written_position >= position or self._log.closed:
            callback()
            return
        self._waiters.append((position, callback))
        self.write(position)

    def advance(self) -> None:
        """Send the next piece, if there is one to send."""
        log = self._log
        limit = min(self.target, log.ends.durable_position, *self.held)
        begin = position = log.ends.written_position
        if position >= limit or log.closed:
            return
        segment = None
        spans: list[int] = []
        lent: list[Fragment] = []
        for one in self._unwritten:
            if one.end <= position:
                continue
            if segment is None:
                segment = one.segment
            elif one.segment is not segment and not (segment.dead and one.segment.dead):
                break
            start = position - one.stream
            end = min(one.used, limit - one.stream)
            if end <= start:
                break
            if one.fragment is None:
                raise AssertionError(
                    f"{log.name}: the memory of bytes {position} to {one.end} of the log was given back"
                )
            spans += (one.arena_offset + start, one.arena_offset + end)
            lent.append(one.fragment)
            position += end - start
            if position - begin >= WRITE_BYTES_MAX and not segment.dead:
                break
        if segment is None or position == begin:
            raise AssertionError(f"{log.name}: bytes {begin} to {limit} of the log are in no range")
        self.under_way = True
        self._pending = (self._generation, position)
        if segment.dead:
            self._written(0, 0)
            return
        entries = _entries_below(segment.entries, position - segment.stream)
        del segment.entries[: len(entries)]
        shared = [fragment.share() for fragment in lent]
        worker = self._host.worker
        number = worker.next_id()
        write = Write(number, segment.path, begin - segment.stream, spans, entries, log.topic)
        guard = self._log.guard
        answered, broke = partial(guard, _VERB, self._answered, shared), partial(guard, _VERB, self._broke, shared)
        worker.ask(write, Written, answered, broke)

    def _answered(self, shared: list[Fragment], reply: Written) -> None:
        """The worker's answer, which may come when the log is closed. ``shared`` is the memory of the write."""
        release_all(shared)
        if not self._log.closed:
            if not reply.errno:
                self._host.wrote(self._log)
            self._written(reply.errno, reply.bytes)

    def _broke(self, shared: list[Fragment], fault: Exception) -> None:
        """The worker met what no command meets."""
        release_all(shared)
        if not self._log.closed:
            raise fault

    def _written(self, errno: int, count: int) -> None:
        """``count`` bytes are in the page cache, or why not."""
        log = self._log
        self.under_way = False
        generation, position = self._pending
        if errno:
            self._host.write_refused(log, errno)
            return
        self._host.meters.written_bytes.inc(count)
        if generation == self._generation and position > log.ends.written_position:
            log.ends.written_position = BytePosition(position)
        unwritten = self._unwritten
        while unwritten and unwritten[0].end <= log.ends.written_position and unwritten[0] is not log.cache.open:
            unwritten.popleft()
        if self._waiters:
            ready = [callback for wanted, callback in self._waiters if wanted <= log.ends.written_position]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > log.ends.written_position]
            for callback in ready:
                callback()
        if not self.under_way:
            self.advance()

    def cut(self, position: BytePosition) -> None:
        """The log ends at stream position ``position`` now."""
        self._generation += 1
        while self._unwritten and self._unwritten[-1].stream >= position:
            self._unwritten.pop()
        self.target = min(self.target, position)
        waiters, self._waiters = self._waiters, []
        for wanted, callback in waiters:
            self._waiters.append((min(wanted, position), callback))

    def hold(self, position: BytePosition) -> None:
        """Write nothing after ``position`` for now: the files are about to be cut there."""
        self.held.append(position)

    def go_on(self, position: BytePosition) -> None:
        """They are."""
        self.held.remove(position)
        if not self.under_way:
            self.advance()

    def abandon(self) -> None:
        """The log is closed: nobody waits for its bytes any more."""
        waiters, self._waiters = self._waiters, []
        self._unwritten.clear()
        for _, callback in waiters:
            callback()


def _head_start(group: int) -> int:
    """How much sooner than ``WRITE_BYTES_MIN`` a log's first write is due: spread evenly over consecutive groups.

    Logs that are filled evenly would all be written in the same moment otherwise, again and again.
    """
    return (group * 40503 & 0xFFFF) * WRITE_BYTES_MIN >> 16  # 2^16 divided by the golden ratio


def _entries_below(entries: list[int], position: int) -> list[int]:
    """The leading index entries for places before ``position``."""
    count = 0
    while count < len(entries) and entries[count + 1] < position:
        count += 3
    return entries[:count]
