"""The writes that a core has decided, in order, until they are in the log.

The usual write goes to the log at once. A write with a truncation waits for the cut, which is durable in a later turn;
a write for which the log has no room waits until there is some. A write that waits owns its bytes, and while one waits
the group steps no append and takes no proposal, so at most one write has record batches, and the others are term
starts.

::

    core's end      what the core has decided          ┐ waiting
    log_end         what is in the log and stays there ┘

A crash loses the writes that wait. No message has reported them as durable.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.iobuf import ArenaFull
from millstream.storage.log.entries import SentBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.ready import LogWrite
    from millstream.model.replication import RaftPosition, Term
    from millstream.storage.log.entries import SentEntries
    from millstream.storage.log.log import Log


class _Waiting:
    """A write that is not in the log yet."""

    __slots__ = ("cut_done", "entries", "write")

    def __init__(self, write: LogWrite, entries: SentEntries) -> None:
        self.write = write
        self.entries = entries
        self.cut_done = write.truncate_to is None


class Writes:
    """The writes of one group.

    Invariants: ``_waiting`` is in the order of the core's decisions; ``_cutting`` is set exactly while the log cuts its
    end for the first of them.
    """

    __slots__ = ("_cutting", "_log", "_on_cut", "_on_no_room", "_on_written", "_waiting")

    def __init__(
        self,
        log: Log,
        on_cut: Callable[[RaftPosition, Term], None],
        on_written: Callable[[Sequence[SentBatch]], None],
        on_no_room: Callable[[], None],
    ) -> None:
        """``on_cut(position, term)``: the log ends at ``position``, durably. ``on_written(batches)``: these are in the
        log. ``on_no_room``: call `advance` soon.
        """
        self._log = log
        self._on_cut = on_cut
        self._on_written = on_written
        self._on_no_room = on_no_room
        self._waiting: deque[_Waiting] = deque()
        self._cutting = False

    @property
    def waiting(self) -> bool:
        """Whether a write that the core has decided is not in the log yet."""
        return bool(self._waiting)

    @property
    def log_end(self) -> RaftPosition:
        """End (exclusive) of the entries in the log that no pending truncation removes."""
        return self._waiting[0].write.start if self._waiting else self._log.next_raft_position

    def add(self, write: LogWrite, entries: SentEntries) -> None:
        """Write ``entries``, whose bytes are lent during the call, after everything that waits."""
        if not self._waiting and write.truncate_to is None:
            try:
                self._append(write, entries)
            except ArenaFull:
                pass
            else:
                return
        self._waiting.append(_Waiting(write, entries.copied()))
        self.advance()

    def advance(self) -> None:
        """Carry out waiting writes as far as possible."""
        while self._waiting and not self._cutting:
            first = self._waiting[0]
            write = first.write
            try:
                if not first.cut_done:
                    self._cut(first)
                    continue
                if write.end > write.start:
                    self._append(write, first.entries)
            except ArenaFull:
                self._on_no_room()
                return
            self._waiting.popleft()

    def drop(self) -> None:
        """Drop waiting writes, because the log is about to be closed."""
        self._waiting.clear()

    def _append(self, write: LogWrite, entries: SentEntries) -> None:
        self._log.append_entries(entries, write.term)
        self._on_written([one for one in entries.entries if isinstance(one, SentBatch)])

    def _cut(self, first: _Waiting) -> None:
        write = first.write
        assert write.truncate_to is not None
        position = write.truncate_to.position

        def done() -> None:
            self._cutting = False
            if not self._waiting:
                return  # dropped
            first.cut_done = True
            self._on_cut(position, write.term)
            self.advance()

        self._cutting = True
        try:
            self._log.truncate_to(position, done)
        except ArenaFull:
            self._cutting = False
            raise
