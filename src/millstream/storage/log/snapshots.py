"""Saved states of a log's idempotent producers: the newest, which files there are, and when the next one is due.

A snapshot saves replaying the log's batch headers at the next start, and remembers what compaction takes out of the
log. It is written by a checkpoint (``checkpoint``); after a crash one that speaks of more than the log has is void.
"""

from __future__ import annotations

from millstream.model.quantities import BytePosition, Offset


class Snapshots:
    """One per log. ``newest`` is (offset, the producers' state as of it), if there is one."""

    __slots__ = ("files", "newest", "position", "wanted")

    def __init__(self, newest: tuple[int, bytes] | None, files: tuple[int, ...], position: BytePosition) -> None:
        self.newest = newest
        self.files = list(files)
        """Offsets of those that have a file, oldest first."""
        self.position = position
        """The log's stream position when the last one was made."""
        self.wanted = False
        """The next checkpoint is to make one, however little was written since."""

    def note(self, offset: Offset, data: bytes) -> None:
        """One as of ``offset`` is being written."""
        self.newest = (offset, data)
        if offset not in self.files:
            self.files.append(offset)

    def removed(self, offsets: list[int]) -> None:
        """The files of these were removed; until then a cut of the log has to know of them."""
        self.files = [one for one in self.files if one not in offsets]

    def drop(self, offset: Offset) -> list[int]:
        """Forget those after ``offset``: the log was cut. Returns the offsets of their files."""
        gone = [one for one in self.files if one > offset]
        self.files = [one for one in self.files if one <= offset]
        if self.newest is not None and self.newest[0] > offset:
            self.newest = None
        return gone
