"""Agreed log starts on their way to this replica's disk. One that finds no room in the write-ahead log waits.

The log shows a start when its own disk has it. A leader before this one may have shown it on its own disk already, so a
new leader does not serve before `settled`: its clients would see the log start move back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.log.log import Log


class Starts:
    """The log starts of one replica.

    Invariant: ``_agreed`` never falls; it is the newest start that `agree` was given.
    """

    __slots__ = ("_agreed", "_log", "_on_no_room", "_on_settled", "_waits")

    def __init__(self, log: Log, on_settled: Callable[[], None], on_no_room: Callable[[], None]) -> None:
        """``on_settled`` is called when a start is durable. ``on_no_room``: call `try_again` soon."""
        self._log = log
        self._on_settled = on_settled
        self._on_no_room = on_no_room
        self._agreed = Offset(0)
        self._waits = False

    @property
    def settled(self) -> bool:
        """Whether this replica's log starts where the group has agreed, durably."""
        return self._log.start_offset >= self._agreed

    def agree(self, offset: Offset) -> None:
        """The log is to start at ``offset``, which is committed; an older start changes nothing."""
        self._agreed = max(self._agreed, offset)
        if not self.settled:
            self._write()

    def try_again(self) -> None:
        """There may be room by now."""
        if self._waits:
            self._write()

    def _write(self) -> None:
        try:
            self._log.trim_prefix(self._agreed, self._on_settled)
        except ArenaFull:
            self._waits = True
            self._on_no_room()
        else:
            self._waits = False
