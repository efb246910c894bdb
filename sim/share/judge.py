"""What must hold of a share partition, whoever leads it.

- S1: a record whose acknowledgement was answered is not delivered again.
- S2: under one leader a record has one holder at a time.
- S3: a record is delivered at most as often as the limit says, under one leader.
- S4: a record below the start, in memory or stored, was acknowledged by one who held it, or archived for a reason, or
  is not in the log.
- S5: after the heal, members that take and acknowledge come to the end of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.share.partition import ACCEPT, GAP, REJECT
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.core.share.partition import Acquired

_FINAL = (GAP, ACCEPT, REJECT)


class Judge:
    """Knows what members have seen and said."""

    def __init__(self) -> None:
        self.finished: set[int] = set()
        """Offsets whose final acknowledgement was answered."""
        self.reasons: set[int] = set()
        """Offsets that may be below the start."""
        self.holders: dict[int, tuple[str, int, int]] = {}
        """Offset → member, token and deadline, under the present leader."""
        self.deliveries: dict[int, int] = {}
        """Of an offset, under the present leader."""

    def new_leader(self) -> None:
        """The locks of the leader before are gone."""
        self.holders.clear()
        self.deliveries.clear()

    def reset(self, start: int, end: int) -> None:
        """The group was set to ``start``: what is behind it may be delivered again."""
        self.finished = {offset for offset in self.finished if offset < start}
        self.reasons = {*self.reasons, *range(end)} - set(range(start, end))

    def delivered(
        self, member: str, token: int, given: Iterable[Acquired], limit: int, lock_us: int, now_us: int, log: set[int]
    ) -> None:
        """A member got records."""
        for one in given:
            if one.count > limit:
                raise Violation(f"S3: {one} with a limit of {limit}")
            for offset in range(one.first, one.last + 1):
                if offset in self.finished:
                    raise Violation(f"S1: {offset} was acknowledged, and is delivered to {member}")
                holder = self.holders.get(offset)
                if holder is not None and holder[2] > now_us:
                    raise Violation(f"S2: {offset} is held by {holder[0]} and delivered to {member}")
                if offset not in log:
                    raise Violation(f"S4: {offset} is in no batch that was read, and is delivered")
                count = self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                if count > limit:
                    raise Violation(f"S3: {offset} is delivered {count} times")
                if one.count >= limit:
                    self.reasons.add(offset)
                self.holders[offset] = member, token, now_us + lock_us

    def renewed(self, offsets: Iterable[int], lock_us: int, now_us: int) -> None:
        """A holder got more time."""
        for offset in offsets:
            if offset in self.holders:
                member, token, _ = self.holders[offset]
                self.holders[offset] = member, token, now_us + lock_us

    def said(self, member: str, offsets: dict[int, int]) -> None:
        """An acknowledgement was taken, by type; its answer is still to come."""
        for offset, kind in offsets.items():
            if kind in _FINAL and (holder := self.holders.get(offset)) is not None and holder[0] == member:
                self.reasons.add(offset)

    def answered(self, offsets: dict[int, int]) -> None:
        """An acknowledgement was answered with NONE."""
        for offset, kind in offsets.items():
            if kind in _FINAL:
                self.finished.add(offset)
            self.holders.pop(offset, None)

    def session_replaced(self, member: str, token: int) -> None:
        """What the member holds belongs to its new session."""
        for offset, holder in self.holders.items():
            if holder[0] == member:
                self.holders[offset] = member, token, holder[2]

    def session_over(self, token: int) -> None:
        """A session's locks are gone, or go when their write fails."""
        self.holders = {offset: holder for offset, holder in self.holders.items() if holder[1] != token}

    def passed(self, start: int, log: set[int], what: str) -> None:
        """The start, in memory or stored, is at ``start``."""
        lost = [offset for offset in sorted(log) if offset < start and offset not in self.reasons]
        if lost:
            raise Violation(f"S4: {what} is at {start}, and no member has acknowledged {lost[:5]}")

    @staticmethod
    def finish(start: int, end: int) -> None:
        """Everything is healed, and time has passed."""
        if start < end:
            raise Violation(f"S5: the start stays at {start}, the log ends at {end}")
