"""Writes term and vote to the disk. A vote that finds no room in the write-ahead log waits; a newer one replaces it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.format.epochs import StoredVote
from millstream.iobuf import ArenaFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.raft.ready import VoteState
    from millstream.storage.log.log import Log


class Votes:
    """The votes of one replica."""

    __slots__ = ("_log", "_on_no_room", "_on_saved", "_waiting")

    def __init__(self, log: Log, on_saved: Callable[[VoteState], None], on_no_room: Callable[[], None]) -> None:
        """``on_saved`` is called when a vote is durable. ``on_no_room``: call `try_again` soon."""
        self._log = log
        self._on_saved = on_saved
        self._on_no_room = on_no_room
        self._waiting: VoteState | None = None

    def save(self, state: VoteState) -> None:
        """Make a vote durable."""
        try:
            self._log.save_vote(StoredVote(state.term, state.voted_for), partial(self._on_saved, state))
        except ArenaFull:
            self._waiting = state
            self._on_no_room()
        else:
            self._waiting = None

    def try_again(self) -> None:
        """Write the vote that waits, if there is room now."""
        if self._waiting is not None:
            self.save(self._waiting)
