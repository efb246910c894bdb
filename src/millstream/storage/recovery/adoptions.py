"""Logs whose files another replica has sent, when a crash came right after (``Kind.ADOPT``, ``segments.incoming``).

The newest such note of a group makes every earlier record of it void, but for votes, and its files are put in place
before the log is replayed: they may be already, or the crash came between the note and that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.format.epochs import StoredVote
from millstream.format.names import staged_directory
from millstream.format.wal import Kind
from millstream.storage.segments.incoming import put_in_place

if TYPE_CHECKING:
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import RaftPosition
    from millstream.storage.disk import Disk

    Place = tuple[int, int]


class _Adoption(NamedTuple):
    place: Place
    position: RaftPosition


class Adoptions:
    """The notes of one recovery."""

    def __init__(self) -> None:
        self._newest: dict[int, _Adoption] = {}

    def note(self, group: RaftGroupId, place: Place, position: RaftPosition) -> None:
        """A note stands at ``place`` (sequence of its frame, number in it); the files end at Raft ``position``."""
        self._newest[group] = _Adoption(place, position)

    def void(self, kind: Kind | int, group: RaftGroupId, place: Place) -> bool:
        """Whether a record is void because a note comes later."""
        adoption = self._newest.get(group) if self._newest else None
        return adoption is not None and place < adoption.place and kind != Kind.VOTE

    def complete(self, disk: Disk, group: RaftGroupId, directory: str) -> None:
        """Put the files of a group in place, if they are not. Raises OSError."""
        adoption = self._newest.get(group)
        if adoption is not None:
            put_in_place(disk, directory, staged_directory(directory, adoption.position), StoredVote())
