"""Deadlines of all groups of one shard: one timer, and nothing to do for groups at rest.

::

    group ──set──► heap ──alarm──► due? ──no, contact moved it──► a set vouches for the group? ──yes──► parked
                     ▲               └yes──► group.deadline_passed                            └no──► heap
                     └──── the set is silent, or says no more of the group ◄── watch ── parked

The deadline of a follower, and that of a leader that checks its quorum, comes ``election_timeout_us`` after the last
contact or later. As long as the sets of `contacts` bring contact, that of a group at rest never comes. Such a group is
*parked* when its deadline is put off; from then on its sets are watched instead, a few for the whole shard.

Invariant: a parked group is given back to the heap before its deadline comes. Who takes it out of a set, or ends its
rest, calls `unpark`; a set that is silent for ``election_timeout_us`` is found by the watch at that time.

**Crash.** Nothing is kept. **Overload.** When a set falls silent, all its groups get their deadlines back in one turn,
some microseconds each.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from millstream.model.replication import TimeUs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.model.quantities import RaftGroupId
    from millstream.raft.host import HostedGroup


class Alarm(Protocol):
    """A timer that was set."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time and turns: `shard.reactor.Reactor` in production."""

    def now_us(self) -> int: ...

    def call_at(self, deadline_us: int, callback: Callable[[], None]) -> Alarm: ...

    def end_of_turn(self, callback: Callable[[], None]) -> None: ...


class Sets(Protocol):
    """What vouches for groups: both ends of `contacts`."""

    def renew(self, group: HostedGroup) -> None:
        """Tell the group's core of the newest contact."""
        ...

    def vouched_us(self, group: HostedGroup) -> TimeUs | None:
        """When there was contact last in every set that the group needs; None if one is missing."""
        ...

    def oldest_us(self, after_us: int) -> TimeUs | None:
        """The oldest contact of any set that has groups, of those later than ``after_us``; None without one."""
        ...

    def silent_since(self, at_us: int) -> Iterable[RaftGroupId]:
        """The groups of all sets without contact since then."""
        ...


class Deadlines:
    """Ticks groups when their deadlines come.

    Shard: one each. Invariant: ``_heap`` has the earliest deadline of each group that waits for one and is not parked,
    and maybe later ones.
    """

    def __init__(self, clock: Clock, sets: Sets, silence_us: int) -> None:
        """``silence_us``: no deadline of a group comes within this time after its last contact."""
        self._clock = clock
        self._sets = sets
        self._silence_us = silence_us
        self._heap: list[tuple[int, int, HostedGroup]] = []
        self._count = 0
        self._alarm: Alarm | None = None
        self._alarm_us = 0
        self._parked: dict[RaftGroupId, tuple[int, HostedGroup]] = {}
        """By group: the deadline that was put off when it was parked."""
        self._watching = False

    def set(self, group: HostedGroup, deadline_us: int) -> None:
        """Tick the group then."""
        self._count += 1
        heapq.heappush(self._heap, (deadline_us, self._count, group))
        self._set_alarm()

    def unpark(self, group: RaftGroupId) -> None:
        """A group may have no contact by sets from now on."""
        parked = self._parked.pop(group, None)
        if parked is not None and not parked[1].closed:
            self.set(parked[1], parked[0])

    @property
    def parked_count(self) -> int:
        """Groups of which only the sets are watched."""
        return len(self._parked)

    def _set_alarm(self) -> None:
        first = self._heap[0][0]
        if self._alarm is not None:
            if self._alarm_us <= first:
                return
            self._alarm.cancel()
        self._alarm_us = first
        self._alarm = self._clock.call_at(first, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        now = self._clock.now_us()
        while self._heap and self._heap[0][0] <= now:
            _, _, group = heapq.heappop(self._heap)
            if group.closed:
                continue
            try:
                self._due(group, now)
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("election", error)
        if self._heap:
            self._set_alarm()

    def _due(self, group: HostedGroup, now: int) -> None:
        """A deadline has come: put it off, or let it take effect."""
        self._sets.renew(group)
        is_put_off, later = group.core.put_off(TimeUs(now))
        if not is_put_off:
            group.deadline_passed()
        elif later is not None:
            self._put_off(now, group, later)

    def _put_off(self, now: int, group: HostedGroup, deadline_us: TimeUs) -> None:
        vouched = self._sets.vouched_us(group)
        if vouched is None or vouched <= now - self._silence_us:
            self.set(group, deadline_us)
            return
        self._parked[group.group] = (deadline_us, group)
        if not self._watching:
            self._watch(now)

    def _watch(self, now: int) -> None:
        """Look again when the set with the oldest contact would be silent for too long."""
        oldest = self._sets.oldest_us(now - self._silence_us) if self._parked else None
        self._watching = oldest is not None
        if oldest is not None:
            self._clock.call_at(oldest + self._silence_us, self._on_watch)

    def _on_watch(self) -> None:
        now = self._clock.now_us()
        for number in self._sets.silent_since(now - self._silence_us):
            self.unpark(number)
        self._watch(now)
