"""Groups at rest: one message an interval stands for the heartbeats of all of them, and one for the replies.

::

    leader:    settled with a peer ─► joins the set for it ─Led──► accepted there ─Followed─► heartbeats are left out
    interval:  LedAgain(number of the set) ──► time of the set's contact ──Followed(number, left out)──► time of contact

A heartbeat does three things: it says how far the group has committed, learns what the follower has, and renews the
contact of both. For a group that is *settled* (`core.raft.leading.is_settled`) only the contact is left, and a set
renews that of any number of groups in one step. A deadline or a vote request of a group uses the set's time of contact.

Invariants, on which every guard of the core (election timeout, check of the quorum, votes refused while a leader
is alive, replicas in sync) depends:

1. A leader's set has a group only while that replica leads it in the term that the set names. The set that is sent
   next after the leadership has ended is another one.
2. A follower counts a set's time for a group only if it followed the sender in that term when the set arrived, and has
   not changed its term, role or leader since. Else it names the group in each answer until another set arrives.
3. A leader counts an answer's time for a group only if the answer is to the set with which the group joined, or to a
   later one, and does not name it.
4. Heartbeats are left out only for a group that is settled and in an answered set. Any event of the group ends that:
   heartbeats and appends are sent as if it were in no set. A peer that is not connected gets none.
5. An answer is given, and a set is sent, after all that has happened in the turn was carried out.

**Bad input.** A group that is not here is named in the answer. **Crash.** Sets are in memory: the session of a new life
is another one, and a set that the follower does not know is answered so; its groups are sent heartbeats and probed as
after a lost connection. **Lost, late or repeated** messages: a set that is not the newest changes nothing; a lost one
is found by the next message. **Overload.** A set that changes costs 16 bytes a group, at most once an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from millstream.model.replication import Term
from millstream.peers.contact_items import Followed, Led, LedAgain, Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millstream.core.raft.raft import Raft
    from millstream.model.quantities import RaftGroupId, ShardId
    from millstream.model.replication import ReplicaId, TimeUs
    from millstream.raft.transport import Transport

FORGET_US: Final = 60_000_000
"""A set that was not repeated for this long belongs to an earlier session of its sender."""

Answer: TypeAlias = Callable[[Followed], None]
"""Sends an answer back."""


class ContactGroup(Protocol):
    """What is needed of a group."""

    core: Raft

    @property
    def group(self) -> RaftGroupId: ...


class _Set:
    """A leader's set for one shard of one peer."""

    __slots__ = ("acknowledged", "answered_us", "changed", "joined", "number", "place", "terms", "to")

    def __init__(self, to: ReplicaId, place: ShardId) -> None:
        self.to = to
        self.place = place
        self.number = 0
        """Of the set that was sent last; 0 if none was."""
        self.changed = False
        """The groups are not those of the set that was sent last."""
        self.terms: dict[int, Term] = {}
        self.joined: dict[int, int] = {}
        """Number of the set with which each group joined."""
        self.acknowledged = 0
        """Newest set that was answered."""
        self.answered_us: TimeUs | None = None
        """When it was answered last."""


class LedSets:
    """The leader's end, of one shard.

    Invariant: ``_of`` has a group's set for a peer exactly while the group is in that set.
    """

    def __init__(self, session: Session, transport: Transport) -> None:
        """``session`` is that of no other life of this shard."""
        self._session = session
        self._transport = transport
        self._sets: dict[tuple[ReplicaId, ShardId], _Set] = {}
        self._of: dict[int, dict[ReplicaId, _Set]] = {}
        self.is_due = False
        """`send` is called at the end of the turn. The shard writes it."""

    def rests(self, group: ContactGroup, peer: ReplicaId) -> bool:
        """Whether a heartbeat of ``group`` to ``peer`` may be left out now. A group that is settled joins the set."""
        core, number = group.core, group.group
        if not core.is_settled(peer):
            return False
        of_peer = self._of.get(number, {}).get(peer)
        place = self._transport.place(peer, number)
        if of_peer is not None:
            if of_peer.place != place:
                self._take_out(of_peer, number)
            return of_peer.place == place and of_peer.acknowledged >= of_peer.joined[number]
        if self._transport.takes_contact(peer, place):
            of_peer = self._sets.setdefault((peer, place), _Set(peer, place))
            of_peer.terms[number] = core.term
            of_peer.joined[number] = of_peer.number + 1
            of_peer.changed = True
            self._of.setdefault(number, {})[peer] = of_peer
        return False

    def leave(self, group: ContactGroup) -> None:
        """The group no longer has a leader here, or has another term."""
        for of_peer in list(self._of.get(group.group, {}).values()):
            self._take_out(of_peer, group.group)

    def renew(self, group: ContactGroup) -> None:
        """Give the core of a leader the last contacts with its peers."""
        for peer, of_peer in self._of.get(group.group, {}).items():
            if of_peer.answered_us is not None and of_peer.acknowledged >= of_peer.joined[group.group]:
                group.core.contact(of_peer.answered_us, peer)

    def send(self) -> None:
        """An interval has passed."""
        for of_peer in self._sets.values():
            if of_peer.changed:
                terms = of_peer.terms
                led = Led(self._session, of_peer.number + 1, tuple(terms), tuple(terms.values()))
                if self._transport.contact(of_peer.to, of_peer.place, led):
                    of_peer.number += 1
                    of_peer.changed = False
            elif of_peer.terms:
                self._transport.contact(of_peer.to, of_peer.place, LedAgain(self._session, of_peer.number))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not any(of_peer.changed or of_peer.terms for of_peer in self._sets.values())

    def answered_since(self, at_us: int) -> bool:
        """Whether every set that is not empty was answered since then."""
        return all(
            of_peer.answered_us is not None and of_peer.answered_us >= at_us
            for of_peer in self._sets.values()
            if of_peer.terms
        )

    def answered_us(self, group: RaftGroupId, peer: ReplicaId) -> TimeUs | None:
        """When a peer last answered the set that has a group; None without an answer or a set."""
        of_peer = self._of.get(group, {}).get(peer)
        return of_peer.answered_us if of_peer is not None and of_peer.acknowledged >= of_peer.joined[group] else None

    def times(self) -> Iterable[TimeUs]:
        """When each set that has groups was answered last, of those that were."""
        return [one.answered_us for one in self._sets.values() if one.terms and one.answered_us is not None]

    def silent_since(self, at_us: int) -> Iterable[int]:
        """The groups of sets that were not answered since then."""
        for of_peer in self._sets.values():
            if of_peer.answered_us is None or of_peer.answered_us <= at_us:
                yield from of_peer.terms

    def on_followed(self, now: TimeUs, sender: ReplicaId, place: ShardId, followed: Followed) -> Iterable[int]:
        """An answer has arrived. Returns the groups that the follower does not follow."""
        of_peer = self._sets.get((sender, place))
        if of_peer is None or followed.session != self._session or followed.number > of_peer.number:
            return ()
        if not followed.known:
            out = [group for group, joined in of_peer.joined.items() if joined <= followed.number]
        else:
            if followed.number < of_peer.acknowledged:
                return ()
            of_peer.acknowledged = followed.number
            of_peer.answered_us = now
            joined = of_peer.joined
            out = [group for group in followed.left_out if joined.get(group, followed.number + 1) <= followed.number]
        for group in out:
            self._take_out(of_peer, group)
        return out

    def lost(self, peer: ReplicaId) -> None:
        """The connection to a peer ended: drop its sets."""
        for of_peer in self._sets.values():
            if of_peer.to == peer:
                for group in list(of_peer.terms):
                    self._take_out(of_peer, group)

    def _take_out(self, of_peer: _Set, group: int) -> None:
        del of_peer.terms[group], of_peer.joined[group]
        of_peer.changed = True
        of = self._of[group]
        del of[of_peer.to]
        if not of:
            del self._of[group]


class _Heard:
    """A set as a follower keeps it."""

    __slots__ = ("groups", "heard_us", "left_out", "number", "sender")

    def __init__(self, sender: ReplicaId, now: TimeUs) -> None:
        self.sender = sender
        self.number = 0
        self.heard_us = now
        self.groups: set[int] = set()
        """Those that follow the sender in the term of the set."""
        self.left_out: set[int] = set()
        """The others."""


class HeardSets:
    """The follower's end, of one shard.

    Invariant: a group is in ``_of`` with a set exactly while it is in the set's ``groups``.
    """

    def __init__(self, groups: Mapping[int, ContactGroup]) -> None:
        """``groups`` are those of the shard."""
        self._groups = groups
        self._sets: dict[tuple[ReplicaId, Session], _Heard] = {}
        self._of: dict[int, _Heard] = {}
        self._answers: dict[tuple[ReplicaId, Session], Answer] = {}

    def on_led(self, now: TimeUs, sender: ReplicaId, item: Led | LedAgain, answer: Answer) -> Iterable[int]:
        """A set has arrived, or its repetition. `answers` answers it, at the end of the turn. Returns the groups that
        are no longer in a set.
        """
        out: Iterable[int] = ()
        key = (sender, item.session)
        heard = self._sets.get(key)
        if isinstance(item, Led) and (heard is None or item.number > heard.number):
            if heard is None:
                self._forget(now, sender)
                heard = self._sets[key] = _Heard(sender, now)
            out = self._take_over(heard, item)
        if heard is None or item.number > heard.number:
            answer(Followed(item.session, item.number, known=False))
        elif item.number == heard.number:
            heard.heard_us = now
            self._answers[key] = answer
        return out

    def heard_us(self, group: RaftGroupId) -> TimeUs | None:
        """When the set that has a group arrived last; None without a set."""
        heard = self._of.get(group)
        return heard.heard_us if heard is not None else None

    def times(self) -> Iterable[TimeUs]:
        """When each set that has groups arrived last."""
        return [heard.heard_us for heard in self._sets.values() if heard.groups]

    def silent_since(self, at_us: int) -> Iterable[int]:
        """The groups of sets that have not arrived since then."""
        for heard in self._sets.values():
            if heard.heard_us <= at_us:
                yield from heard.groups

    def groups_since(self, at_us: int) -> set[int]:
        """The groups of sets that have arrived since then."""
        return set[int]().union(*(heard.groups for heard in self._sets.values() if heard.heard_us >= at_us))

    def drop(self, group: ContactGroup) -> None:
        """The group has another term, role or leader, or is closed."""
        self.renew(group)
        heard = self._of.pop(group.group, None)
        if heard is not None:
            heard.groups.discard(group.group)
            heard.left_out.add(group.group)

    def renew(self, group: ContactGroup) -> None:
        """Give the core of a follower the last contact with its leader."""
        heard = self._of.get(group.group)
        if heard is not None:
            group.core.contact(heard.heard_us, heard.sender)

    def answers(self) -> None:
        """Answer what has arrived in this turn."""
        due, self._answers = self._answers, {}
        for key, answer in due.items():
            heard = self._sets.get(key)
            if heard is not None:
                answer(Followed(key[1], heard.number, known=True, left_out=tuple(heard.left_out)))

    def _take_over(self, heard: _Heard, item: Led) -> Iterable[int]:
        """The groups of ``item`` are those of the set now. Returns those that were in it, and are in no set now."""
        earlier, heard.groups, heard.left_out = heard.groups, set(), set()
        heard.number = item.number
        for number, term in zip(item.groups, item.terms, strict=True):
            group = self._groups.get(number)
            if group is None or not group.core.follows(heard.sender, Term(term)):
                heard.left_out.add(number)
                continue
            before = self._of.get(number)
            if before is not None and before is not heard:
                before.groups.discard(number)
                before.left_out.add(number)
            heard.groups.add(number)
            self._of[number] = heard
        out = earlier - heard.groups
        for number in out:
            self.renew(self._groups[number])
            del self._of[number]
        return out

    def _forget(self, now: TimeUs, sender: ReplicaId) -> None:
        """Drop the sets of earlier sessions of this sender."""
        for key, heard in list(self._sets.items()):
            if heard.sender == sender and now - heard.heard_us > FORGET_US:
                for number in heard.groups:
                    self.renew(self._groups[number])
                    del self._of[number]
                del self._sets[key]
