"""The timers of a shard: one heap, one kernel timer.

Everything that waits for a time (a parked fetch, a group session, a call's deadline) is an entry of one heap. The
kernel timer is set for the earliest entry only. Cancelling marks an entry; a marked entry is dropped when it comes up,
or with all others when marked entries are the majority. Ten thousand fetches that were woken early thus cost no memory
and no wake-ups. Without a timer, nothing wakes the shard.

Equal deadlines fire in the order in which they were set. A callback may set and cancel timers. A timer that it sets for
a past time fires in the next turn, so that timers cannot starve sockets.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPACT_AT = 64  # cancelled entries before the heap is compacted


class Timer:
    """A set deadline. ``cancel`` may be called at any time, also after it fired."""

    __slots__ = ("_heap", "callback", "deadline_us", "order")

    def __init__(self, heap: TimerHeap, deadline_us: int, order: int, callback: Callable[[], None]) -> None:
        self._heap = heap
        self.deadline_us = deadline_us
        self.order = order
        self.callback: Callable[[], None] | None = callback

    @property
    def pending(self) -> bool:
        """Whether it has neither fired nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._heap.cancelled()


class TimerHeap:
    """The heap. ``arm`` and ``disarm`` set the kernel timer, ``pop_due`` returns the callbacks to run."""

    __slots__ = ("_arm", "_armed_us", "_cancelled", "_disarm", "_entries", "_order")

    def __init__(self, arm: Callable[[int], None], disarm: Callable[[], None]) -> None:
        self._entries: list[tuple[int, int, Timer]] = []
        self._order = 0
        self._cancelled = 0
        self._armed_us = 0  # 0: the kernel timer is off
        self._arm = arm
        self._disarm = disarm

    def __len__(self) -> int:
        """Number of pending timers."""
        return len(self._entries) - self._cancelled

    def set(self, deadline_us: int, callback: Callable[[], None]) -> Timer:
        self._order += 1
        timer = Timer(self, deadline_us, self._order, callback)
        heappush(self._entries, (deadline_us, self._order, timer))
        if not self._armed_us or deadline_us < self._armed_us:
            self._armed_us = deadline_us
            self._arm(deadline_us)
        return timer

    def cancelled(self) -> None:
        """Count one more cancelled entry of the heap."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_AT and 2 * self._cancelled > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].callback is not None]
            heapify(self._entries)
            self._cancelled = 0

    def start_pass(self) -> int:
        """A mark for ``pop_due``: timers set after it wait for the next pass."""
        return self._order

    def pop_due(self, now_us: int, mark: int) -> Callable[[], None] | None:
        """The next callback whose time has come, now fired; None without one. Call ``rearm`` afterwards."""
        entries = self._entries
        while entries:
            deadline_us, order, timer = entries[0]
            callback = timer.callback
            if callback is None:
                heappop(entries)
                self._cancelled -= 1
            elif deadline_us > now_us or order > mark:
                return None
            else:
                heappop(entries)
                timer.callback = None
                return callback
        return None

    def rearm(self) -> None:
        """Set the kernel timer to the earliest remaining entry, or disarm it."""
        entries = self._entries
        while entries and entries[0][2].callback is None:
            heappop(entries)
            self._cancelled -= 1
        if entries:
            self._armed_us = entries[0][0]
            self._arm(self._armed_us)
        elif self._armed_us:
            self._armed_us = 0
            self._disarm()
