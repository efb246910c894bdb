"""What the members of a simulated group were assigned, and what must hold of it (D1, D2).

==  ==================================================================================================================
D1  A partition has one owner per generation; in a consumer group at any time, as long as the owner's session lasts.
    A commit of somebody who has lost the partition to another member is refused.
D2  A committed offset that was acknowledged is there, until a later commit replaces it.
==  ==================================================================================================================

Members that keep still for too long lose their partitions without knowing it; when they wake up they commit as who they
were. A partition is owned by the member to which it was assigned in the newest generation or epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.brokers.judge import at_least
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable


class Identity(NamedTuple):
    """Who a member is for its coordinator."""

    member_id: str
    epoch: int
    """Generation of a classic group, or member epoch."""


class Owner(NamedTuple):
    """A partition's owner, as the answer to the owner says."""

    who: Identity
    at_us: int


class Commit(NamedTuple):
    """A commit of one partition."""

    value: int
    partition: int
    who: Identity
    sent_us: int


class GroupTruth:
    """Of one group, over a whole history.

    Invariants: ``owners`` has for each partition who was assigned it in the newest epoch. A value of ``commits`` is in
    ``unknown`` until its answer says whether it was stored; a value that was refused is in neither.
    """

    def __init__(self, group_id: str, partitions: int, seen: Counter[str], *, generations: bool) -> None:
        """``generations``: a classic group, in which a generation says who owns what."""
        self.group_id = group_id
        self.partitions = partitions
        self._generations = generations
        self._seen = seen
        self.owners: dict[int, Owner] = {}
        self._assigned: dict[int, dict[str, frozenset[int]]] = {}
        """Of each generation: what each member was assigned."""
        self._value = 0
        self._commits: dict[int, Commit] = {}
        self._unknown: set[int] = set()
        self._acked_in: dict[int, dict[int, int]] = {one: {} for one in range(partitions)}
        """Of each partition: the newest value that was acknowledged, by term of the coordinator."""

    # Owners

    def on_assigned(self, who: Identity, partitions: Iterable[int], now_us: int) -> None:
        """A member was assigned that it owns these partitions in its epoch."""
        mine = frozenset(partitions)
        if self._generations:
            self._check_generation(who, mine)
        for partition in mine:
            before = self.owners.get(partition)
            if before is None or before.who.epoch < who.epoch:
                if before is not None and before.who.member_id != who.member_id:
                    self._seen["partition with a new owner"] += 1
                self.owners[partition] = Owner(who, now_us)

    def _check_generation(self, who: Identity, mine: frozenset[int]) -> None:
        found = self._assigned.setdefault(who.epoch, {})
        if found.setdefault(who.member_id, mine) != mine:
            raise Violation(
                f"D1: {who} of group {self.group_id} is assigned {sorted(mine)}, {sorted(found[who.member_id])} before"
            )
        for other, owned in found.items():
            if other != who.member_id and owned & mine:
                raise Violation(
                    f"D1: {who} and {other} of group {self.group_id} own {sorted(owned & mine)} in one generation"
                )

    # Commits

    def commit(self, partition: int, who: Identity, now_us: int) -> Commit:
        """A commit that is about to be sent."""
        self._value += 1
        made = self._commits[self._value] = Commit(self._value, partition, who, now_us)
        self._unknown.add(made.value)
        return made

    def on_committed(self, commit: Commit, term: int) -> None:
        """The coordinator of a term has acknowledged a commit (D1)."""
        self._unknown.discard(commit.value)
        acked = self._acked_in[commit.partition]
        acked[term] = max(commit.value, acked.get(term, 0))
        owner = self.owners.get(commit.partition)
        if owner is None or owner.who.member_id == commit.who.member_id:
            return
        if owner.who.epoch > commit.who.epoch and owner.at_us < commit.sent_us:
            raise Violation(
                f"D1: {commit.who} commits partition {commit.partition} of group {self.group_id}, "
                f"which {owner.who} owns since {commit.sent_us - owner.at_us} us"
            )

    def on_refused(self, commit: Commit) -> None:
        """The coordinator has fenced a commit: it is stored nowhere."""
        self._unknown.discard(commit.value)
        self._commits.pop(commit.value)
        self._seen["commit fenced"] += 1

    def floor(self, partition: int) -> dict[int, int]:
        """What a fetch that is sent now must find, by term of the coordinator."""
        return dict(self._acked_in[partition])

    def on_fetched(self, partition: int, offset: int, floor: dict[int, int], term: int) -> None:
        """The coordinator of a term says what is committed (D2). ``offset`` is -1 if nothing is."""
        needed = at_least(floor, term)
        if offset < 0:
            if needed:
                raise Violation(f"D2: group {self.group_id} has no offset of partition {partition}, {needed} before")
            return
        found = self._commits.get(offset)
        if found is None or found.partition != partition:
            raise Violation(f"D2: group {self.group_id} has offset {offset} of partition {partition}: {found}")
        if offset >= needed:
            return
        newest = self._commits[needed]
        if offset not in self._unknown or found.who.member_id != newest.who.member_id:
            raise Violation(f"D2: the coordinator of term {term} has {found}, {newest} was acknowledged before")
