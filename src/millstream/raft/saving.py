"""What one replica writes beside its log's entries: term and vote, and agreed log starts.

Both wait when the write-ahead log has no room; a newer one takes the place of the one that waits. A crash loses what
waits: no message has reported it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.format.epochs import StoredVote
from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.raft.ready import VoteState
    from millstream.storage.log.log import Log


class Retry:
    """A write that is tried again when there is room; a newer one replaces it."""

    __slots__ = ("_on_no_room", "_waiting")

    def __init__(self, on_no_room: Callable[[], None]) -> None:
        """``on_no_room``: call `again` soon."""
        self._on_no_room = on_no_room
        self._waiting: Callable[[], None] | None = None

    def write(self, write: Callable[[], None]) -> None:
        """Write now, or when there is room."""
        try:
            write()
        except ArenaFull:
            self._waiting = write
            self._on_no_room()
        else:
            self._waiting = None

    def again(self) -> None:
        """Write what waits, if there is room now."""
        if self._waiting is not None:
            self.write(self._waiting)


class Votes:
    """The votes of one replica. ``on_saved`` is called when a vote is durable."""

    __slots__ = ("_log", "_on_saved", "retry")

    def __init__(self, log: Log, on_saved: Callable[[VoteState], None], on_no_room: Callable[[], None]) -> None:
        self._log = log
        self._on_saved = on_saved
        self.retry = Retry(on_no_room)

    def save(self, state: VoteState) -> None:
        """Make a vote durable."""
        vote = StoredVote(state.term, state.voted_for)
        self.retry.write(partial(self._log.save_vote, vote, partial(self._on_saved, state)))


class Starts:
    """The agreed log starts of one replica. ``on_settled`` is called when one is durable.

    The log shows a start when its own disk has it. A leader before this one may have shown it on its own disk already,
    so a new leader does not serve before `settled`: its clients would see the log start move back.
    Invariant: ``_agreed`` never falls; it is the newest start that `agree` was given.
    """

    __slots__ = ("_agreed", "_log", "_on_settled", "retry")

    def __init__(self, log: Log, on_settled: Callable[[], None], on_no_room: Callable[[], None]) -> None:
        self._log = log
        self._on_settled = on_settled
        self._agreed = Offset(0)
        self.retry = Retry(on_no_room)

    @property
    def settled(self) -> bool:
        """Whether this replica's log starts where the group has agreed, durably."""
        return self._log.start_offset >= self._agreed

    def agree(self, offset: Offset) -> None:
        """The log is to start at ``offset``, which is committed; an older start changes nothing."""
        self._agreed = max(self._agreed, offset)
        if not self.settled:
            self.retry.write(partial(self._log.trim_prefix, self._agreed, self._on_settled))
