"""The entries that the store has of one shard's log, and their removal when the archive has all that is in them.

The oldest leave first; the newest stays, because its number says where the next life of the broker continues. An error
of the store leaves the entries where they are, and the next look tries again. After a crash, what is left is removed in
the next life.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.errors import MillstreamError
    from millstream.model.quantities import Offset
    from millstream.model.shared import SharedPartition
    from millstream.shard.reactor import Reactor
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.wal_gate import Gate

_TRIM_US: Final = 1_000_000
_CLOSED_US: Final = 60_000_000
"""A partition that is closed may be opened again for so long, with another group."""


class StoredEntry(NamedTuple):
    """An entry that is confirmed, with the end of each of its parts and the start of its log."""

    number: int
    parts: list[tuple[Gate, Offset, Offset]]


class StoredEntries:
    """Lifecycle: made with the log, ``stop`` with it. Invariant: ``_entries`` has those since the start, in order."""

    __slots__ = ("_entries", "_gates", "_link", "_reactor", "_stopped", "_trims")

    def __init__(self, reactor: Reactor, link: ArchiveLink, gates: Mapping[SharedPartition, Gate]) -> None:
        """``gates`` are those of the partitions that are open now."""
        self._reactor = reactor
        self._link = link
        self._gates = gates
        self._entries: deque[StoredEntry] = deque()
        self._trims = False
        self._stopped = False

    def add(self, number: int, parts: list[tuple[Gate, Offset, Offset]]) -> None:
        """The store has another entry."""
        self._entries.append(StoredEntry(number, parts))

    def stop(self) -> None:
        """Remove nothing more."""
        self._stopped = True

    def trim_later(self) -> None:
        """Remove what is superfluous in a while."""
        if not self._trims and not self._stopped and len(self._entries) > 1:
            self._trims = True
            self._reactor.call_later(_TRIM_US, self._trim)

    def _trim(self) -> None:
        """Remove the oldest entries if the archive has them. The newest stays."""
        first = end = self._entries[0].number
        for entry in self._entries:
            if entry is self._entries[-1] or not all(self._is_covered(*part) for part in entry.parts):
                break
            end = entry.number + 1
        if end == first or self._stopped:
            self._trimmed(first, None)
        else:
            self._link.trim_entries(first, end, partial(self._trimmed, end))

    def _is_covered(self, gate: Gate, end_offset: Offset, start_offset: Offset) -> bool:
        """Whether no one needs an entry for the offsets of a partition below ``end_offset``, and for the start of its
        log. One that was closed and is not opened again was deleted, or is another broker's.
        """
        now = self._gates.get(gate.key)
        if now is None:
            return self._reactor.now_us() - gate.closed_us > _CLOSED_US
        start = now.archive.start
        if max(now.safe_start(), start.saved) < now.archive.archive.start_offset:
            return False  # the archive ends where the log starts, and the store does not know that start
        end = now.archive.archive.end_offset if now is gate else now.confirmed
        return end >= end_offset and start.saved >= start_offset

    def _trimmed(self, end: int, error: MillstreamError | None) -> None:
        while error is None and self._entries and self._entries[0].number < end:
            self._entries.popleft()
        self._trims = False
        self.trim_later()
