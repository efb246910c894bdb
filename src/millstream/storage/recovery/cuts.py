"""The suffixes that were cut off one log, as its replay has to respect them.

The segments may show a cut already. So records that a later cut makes void are not written again, and what stands
after the end of the log in a segment is no copy of anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.recovery.replayed_state import Truncation


class Cuts:
    """The cuts of one log, all known before its replay. True if there were any."""

    __slots__ = ("_count", "_void_from", "lowest")

    def __init__(self, truncations: Sequence[Truncation]) -> None:
        """``truncations`` in the order in which they were made."""
        self._count = len(truncations)
        self._void_from = [Offset(min(cut.offset for cut in truncations[at:])) for at in range(self._count)]
        self.lowest = min((cut.offset for cut in truncations), default=None)
        """The lowest offset that was cut off; None without a cut."""

    def __bool__(self) -> bool:
        return self._count > 0

    def is_void(self, offset: Offset) -> bool:
        """Whether a cut that is still to come in the replay removes this offset."""
        return bool(self._void_from) and offset >= self._void_from[0]

    def passed(self) -> Offset:
        """The replay has reached the next cut. Returns the lowest offset that it, or a later one, removes."""
        return self._void_from.pop(0)
