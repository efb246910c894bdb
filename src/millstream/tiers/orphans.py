"""What retention has left in the store: when its leader looks for objects below the start of an archive. Pure.

A leader removes what leaves the archive after a grace period (`Unneeded`). It remembers that in memory
alone. So objects stay if it dies before, if a follower that has restarted leads next, or if an upload ends when its
records were deleted already. The next leader finds them by their names: an object whose offsets all lie below the start
of the archive has no owner, because the start is committed and only rises.

Each leader looks once, and again after `_AGAIN_US` when the start has moved. It looks only at keys below the start,
which the store lists first. The start that counts is one that is as old as the grace period, for the sake of readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from millstream.model.replication import Term

_AGAIN_US: Final = 3_600_000_000


class Orphans:
    """The looks at one partition. The archiver of its leader calls it, with times that do not fall."""

    __slots__ = ("_next_us", "_removed_to", "_term", "_wanted")

    def __init__(self) -> None:
        self._term: Term | None = None
        """The leadership that the rest is of."""
        self._removed_to = Offset(0)
        """Nothing is left below it. Exclusive."""
        self._next_us = 0
        """Not before this time is another look wanted."""
        self._wanted: tuple[Offset, int] | None = None
        """The start up to which to look, and since when it is the start."""

    def due(self, term: Term, first_offset: Offset, now_us: int, grace_us: int) -> Offset | None:
        """The offset below which to remove everything now; None if nothing is to be done.

        ``first_offset`` is that of the first object of the archive, or of the log without one.
        """
        if term != self._term:
            self._term, self._removed_to, self._next_us, self._wanted = term, Offset(0), now_us, None
        if self._wanted is None and first_offset > self._removed_to and now_us >= self._next_us:
            self._wanted = first_offset, now_us
        if self._wanted is not None and now_us >= self._wanted[1] + grace_us:
            return self._wanted[0]
        return None

    def removed(self, below_offset: Offset, now_us: int) -> None:
        """Nothing is left below the offset."""
        self._removed_to, self._next_us, self._wanted = below_offset, now_us + _AGAIN_US, None
