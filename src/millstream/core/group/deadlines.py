"""The deadlines of all groups of a coordinator, in one heap that is cheap to postpone in.

A heartbeat moves its member's deadline, thousands of times a second for large groups, and a heap operation each time
would be the most expensive part of it. Therefore a ``Deadline`` that moves later only stores its new time. The heap
keeps the old entry, and when that comes up it is pushed again with the new time. Only a deadline that moves *earlier*,
or has no entry, is pushed at once. Stale entries are removed when the heap has doubled since the last removal;
otherwise each member that comes and goes would hold its group for its whole session timeout.

``next_us`` may therefore be early, never late. The caller then wakes up, finds nothing due and asks again, once per
period.
"""

import heapq
from typing import Final, Generic, TypeVar

G = TypeVar("G")
"""What has deadlines: a group."""

OFF = 0
CAME = -1
_COMPACT_AT: Final = 1_024


class Deadline(Generic[G]):
    """A time at which something happens to ``group``. ``at_us`` is ``OFF`` if it is not set, and ``CAME`` if it was
    reached and its effect is pending, unless it is cancelled or moved before.

    ``member_id`` is set for the session of a member, or of one that has yet to join.
    """

    __slots__ = ("at_us", "entry_us", "group", "kind", "member_id")

    def __init__(self, kind: str, group: G, member_id: str = "") -> None:
        self.kind = kind
        self.group = group
        self.member_id = member_id
        self.at_us = OFF
        self.entry_us = OFF


SESSION = "session"
JOIN = "join"
SYNC = "sync"


class Deadlines(Generic[G]):
    """The heap. Times are in µs of the caller's monotonic clock and greater than 0."""

    __slots__ = ("_compact_at", "_heap", "_order")

    def __init__(self) -> None:
        self._compact_at = _COMPACT_AT
        self._heap: list[tuple[int, int, Deadline[G]]] = []
        self._order = 0

    def set(self, deadline: Deadline[G], at_us: int) -> None:
        """Set ``deadline`` to ``at_us``, or move it there."""
        deadline.at_us = at_us
        if deadline.entry_us == OFF or at_us < deadline.entry_us:
            self._push(deadline, at_us)

    @staticmethod
    def cancel(deadline: Deadline[G]) -> None:
        deadline.at_us = OFF

    @property
    def next_us(self) -> int | None:
        """A lower bound of the next deadline; None without any."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_us: int) -> Deadline[G] | None:
        """Remove and return one deadline that has been reached; None if no deadline is due."""
        heap = self._heap
        while heap and heap[0][0] <= now_us:
            entry_us, _, deadline = heapq.heappop(heap)
            if deadline.entry_us != entry_us:
                continue  # stale: the deadline was moved to an earlier time
            deadline.entry_us = OFF
            if deadline.at_us == OFF:
                continue
            if deadline.at_us > now_us:
                self._push(deadline, deadline.at_us)
                continue
            deadline.at_us = OFF
            return deadline
        return None

    def _push(self, deadline: Deadline[G], at_us: int) -> None:
        if len(self._heap) >= self._compact_at:
            self._compact()
        self._order += 1
        deadline.entry_us = at_us
        heapq.heappush(self._heap, (at_us, self._order, deadline))

    def _compact(self) -> None:
        """Remove the entries of deadlines that are off or have a newer entry."""
        kept: list[tuple[int, int, Deadline[G]]] = []
        for entry in self._heap:
            entry_us, _, deadline = entry
            if deadline.entry_us != entry_us:
                continue
            if deadline.at_us == OFF:
                deadline.entry_us = OFF
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self._compact_at = max(2 * len(kept), _COMPACT_AT)
