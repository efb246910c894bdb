"""The invariants of the simulated cluster, checked after each event that could break one.

Each check names what it checks as the reliability notes do: A1 one leader a term; A2 a leader keeps its log; A3 same
point, same prefix; A4 committed entries are in later leaders' logs; A5 everyone commits the same; A6 commit counts what
disks hold, and entries of the own term; A7 term and vote are durable before a message; A8 votes are a set of voters; A9
what is committed is never cut; A10 a completion proves only what the disk holds; A12 changes of members are joint and
one at a time; A14 an install agrees with what is committed; A15 a confirmed read sees every earlier commit; A16 and C1
no acknowledged operation is lost.

The cost of a check does not grow with the log: equality of prefixes is equality of chains.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.core.raft.messages import Configuration, NewerTerm, TimeoutNow, VoteReply, VoteRequest
from millstream.core.raft.quorum import Outcome, reached, tally
from millstream.core.raft.ready import Role
from millstream.model.replication import RaftPosition, node_of
from sim.engine.violation import Violation
from sim.raft.image import EMPTY_CHAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.raft.messages import Message
    from millstream.model.replication import ReplicaId
    from sim.raft.image import Unit
    from sim.raft.replica import SimReplica
    from sim.raft.world import World


class Judge:
    """Knows the whole history of one world, and nothing that a replica says of itself without comparing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.leaders: dict[int, ReplicaId] = {}
        """Leader of each term."""
        self._begun: set[tuple[ReplicaId, int]] = set()
        """Leaders, and the terms from which they lead."""
        self._chains: dict[tuple[int, int], int] = {}
        """Chain of each unit ever appended, by end and term."""
        self.committed: dict[int, int] = {0: EMPTY_CHAIN}
        """Chain at the end of each committed unit."""
        self.top = 0
        """Largest committed end."""
        self._top_by_term: dict[int, int] = {}
        """Largest end that the leader of a term committed."""
        self._votes: dict[int, dict[ReplicaId, ReplicaId]] = {}
        """Votes that left: by term, whom each voter voted for."""
        self.acknowledged: dict[int, int] = {}
        """Operations that were acknowledged to a client, with their ends."""
        self._values: dict[int, int] = {}
        """Committed operations, with their ends."""
        self._reads: dict[int, int] = {}
        """Committed end when each read barrier was asked for."""
        self._alone: set[tuple[ReplicaId, int]] = set()
        """Replicas that lead alone by order, and the terms from which they do."""
        self.seen: Counter[str] = Counter()
        """Rare events reached."""

    def fail(self, invariant: str, what: str) -> None:
        """An invariant is broken."""
        raise Violation(f"{invariant}: {what}")

    # Elections

    def on_message(self, sender: SimReplica, to: ReplicaId, message: Message) -> None:
        """A message leaves."""
        disk = sender.disk.state
        pre = isinstance(message, VoteRequest | VoteReply) and message.pre
        if not pre and message.term > disk.term:
            self.fail("A7", f"{sender.identity} sends {message} while its disk holds {disk}")
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            if disk.term == message.term and disk.voted_for != to:
                self.fail("A7", f"{sender.identity} votes for {to} while its disk holds {disk}")
            self._vote(sender.identity, message.term, to)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._vote(sender.identity, message.term, sender.identity)
        elif isinstance(message, TimeoutNow):
            self.seen["transfer"] += 1
        elif isinstance(message, NewerTerm):
            self.seen["message of an old term refused"] += 1

    def _vote(self, voter: ReplicaId, term: int, candidate: ReplicaId) -> None:
        before = self._votes.setdefault(term, {}).setdefault(voter, candidate)
        if before != candidate:
            self.fail("A7", f"{voter} votes for {before} and {candidate} in term {term}")

    def on_created(self, first: Configuration) -> None:
        """The group's creation has cast the votes of its first voters in the first term for the first of them."""
        self._votes[self._world.knobs.first_term] = dict.fromkeys(first.voters, first.voters[0])

    def on_lead(self, replica: SimReplica, term: int) -> None:
        """A replica becomes leader, which happens once a term."""
        other = self.leaders.setdefault(term, replica.identity)
        if other != replica.identity:
            self.fail("A1", f"{other} and {replica.identity} lead term {term}")
        if (other, term) in self._begun:
            self.fail("A1", f"{other} leads term {term} again")
        self._begun.add((other, term))
        if term == self._world.knobs.first_term and self._world.knobs.assigned:
            self.seen[f"assigned leader of term {term}"] += 1
        core = replica.core
        assert core is not None
        configuration = core.replica.log.configuration
        cast = self._votes.setdefault(term, {})
        cast.setdefault(replica.identity, replica.identity)
        votes = {voter: True for voter, candidate in cast.items() if candidate == replica.identity}
        if (replica.identity, term) in self._alone:
            self.seen["lead alone"] += 1
        elif tally(configuration, votes) is not Outcome.WON:
            self.fail("A8", f"{replica.identity} leads term {term} with votes of {sorted(votes)} in {configuration}")
        if replica.disk.state.term != term or replica.disk.state.voted_for != replica.identity:
            self.fail("A7", f"{replica.identity} leads term {term} while its disk holds {replica.disk.state}")
        needed = max((end for by, end in self._top_by_term.items() if by < term), default=0)
        if needed >= replica.memory.base.position and replica.memory.chain_at(needed) != self.committed[needed]:
            self.fail("A4", f"{replica.identity} leads term {term} without what is committed up to {needed}")
        self.seen["election"] += 1
        if configuration.outgoing:
            self.seen["election in a joint configuration"] += 1

    # Logs

    def on_append(self, replica: SimReplica, unit: Unit) -> None:
        """A unit is in a replica's memory."""
        chain = self._chains.setdefault((unit.end, unit.term), unit.chain)
        if chain != unit.chain:
            self.fail("A3", f"{replica.identity} has another entry or prefix at {unit.end} of term {unit.term}")
        if isinstance(unit.control, Configuration):
            self._on_configuration(replica, unit)

    def _on_configuration(self, replica: SimReplica, unit: Unit) -> None:
        core = replica.core
        assert core is not None
        new = unit.control
        assert isinstance(new, Configuration)
        if core.role is not Role.LEADER or self._is_alone(replica, new):
            return
        old = core.replica.log.configuration_at(RaftPosition(unit.start))
        joint = bool(new.outgoing) and new.outgoing == old.voters and not old.outgoing
        leaving = bool(old.outgoing) and new.voters == old.voters and not new.outgoing
        same = set(new.voters) == set(old.voters) and not old.outgoing and not new.outgoing
        if not (joint or leaving or same):
            self.fail("A12", f"{replica.identity} goes from {old} to {new}")
        if not core.is_serving:
            self.fail("A12", f"{replica.identity} changes members before it has committed an entry of term {core.term}")
        self.seen["membership change"] += 1

    def _is_alone(self, replica: SimReplica, new: Configuration) -> bool:
        """Whether the replica is about to lead alone, as the only member."""
        core = replica.core
        return core is not None and (replica.identity, core.term) in self._alone and new.voters == (replica.identity,)

    def on_alone(self, replica: SimReplica, survivors: Sequence[SimReplica]) -> None:
        """A replica is about to lead alone, because a majority is lost forever. What no survivor has is given up."""
        core = replica.core
        assert core is not None
        term, memory = core.term + 1, replica.memory
        held = [end for end, chain in self.committed.items() if memory.chain_at(end) == chain]
        top = max(held, default=memory.base.position)
        for other in survivors:
            if other.committed > top:
                self.fail("A9", f"{other.identity} has {other.committed} committed, {replica.identity} only {top}")
            if any(unit.term >= term for unit in other.memory.units):
                self.fail("A3", f"{replica.identity} leads in term {term}, of which {other.identity} has entries")
        if top < self.top:
            self.seen["committed and given up"] += 1
        self._alone.add((replica.identity, term))
        self.leaders = {of: leader for of, leader in self.leaders.items() if of < term}
        self._chains = {point: chain for point, chain in self._chains.items() if point[1] < term}
        self.committed = {end: chain for end, chain in self.committed.items() if end <= top}
        self.top = min(self.top, top)
        self._top_by_term = {of: min(end, top) for of, end in self._top_by_term.items()}
        self._values = {value: end for value, end in self._values.items() if end <= top}
        self.acknowledged = {value: end for value, end in self.acknowledged.items() if end <= top}
        self._reads = {number: min(end, top) for number, end in self._reads.items()}

    def on_truncate(self, replica: SimReplica, position: RaftPosition, gone: list[Unit]) -> None:
        """Units have been cut off."""
        core = replica.core
        assert core is not None
        if core.role is Role.LEADER:
            self.fail("A2", f"{replica.identity} cuts its log to {position} while it leads")
        if position < replica.committed:
            self.fail("A9", f"{replica.identity} cuts to {position} below its committed end {replica.committed}")
        for unit in gone:
            if self.committed.get(unit.end) == unit.chain:
                self.fail("A9", f"{replica.identity} cuts off {unit}, which is committed")
        if len(gone) > 1:
            self.seen["truncation of more than one entry"] += 1
        if any(isinstance(unit.control, Configuration) for unit in gone):
            self.seen["configuration taken back"] += 1
        if replica.disk.queue and replica.disk.syncing:
            self.seen["truncation while a sync is under way"] += 1

    def on_durable(self, replica: SimReplica, durable: RaftPosition) -> None:
        """A core believes that its log is durable up to there."""
        memory, disk = replica.memory, replica.disk.image
        if durable < memory.base.position or durable < disk.base.position:
            return
        if memory.chain_at(durable) != disk.chain_at(durable):
            self.fail("A10", f"{replica.identity} takes {durable} for durable, and its disk ends at {disk.end}")

    def on_adopt(self, replica: SimReplica, end: RaftPosition, chain: int) -> None:
        """Files replace a log."""
        if self.committed.get(end) != chain:
            self.fail("A14", f"{replica.identity} installs up to {end}, which is not what is committed")
        if end < replica.committed:
            self.fail("A14", f"{replica.identity} goes back from {replica.committed} to {end}")
        self.seen["install"] += 1

    # Commit

    def on_commit(self, replica: SimReplica, before: int, now: RaftPosition) -> None:
        """A replica's committed end has moved."""
        core, memory = replica.core, replica.memory
        assert core is not None
        chain = memory.chain_at(now)
        # A leader that is no longer a member steps down in the step that commits this.
        leads = self.leaders.get(core.term) == replica.identity
        if now <= self.top:
            if chain != self.committed.get(now):
                self.fail("A5", f"{replica.identity} commits another entry at {now}")
        else:
            if not leads:
                self.fail("A6", f"{replica.identity} commits {now}, which no leader has committed")
            if self.top >= memory.base.position and memory.chain_at(self.top) != self.committed[self.top]:
                self.fail("A5", f"{replica.identity} commits {now} behind another entry at {self.top}")
            for unit in memory.units_from(max(self.top, memory.base.position), now):
                self.committed[unit.end] = unit.chain
                if unit.control is None:
                    if unit.value in self._values:
                        self.fail("C5", f"operation {unit.value} is committed twice")
                    self._values[unit.value] = unit.end
            self.top = now
        if leads:
            self._on_leader_commit(replica, before, now, chain)

    def _on_leader_commit(self, replica: SimReplica, before: int, now: RaftPosition, chain: int | None) -> None:
        core = replica.core
        assert core is not None
        term = core.term
        if core.replica.log.term_at(now) != term:
            self.fail("A6", f"{replica.identity} commits {now} of an older term than {term} by counting (figure 8)")
        # The members in force at the commit; the step may have appended others since.
        in_force = replica.in_force
        if not reached(in_force, lambda voter: self._holds(voter, now, chain)):
            self.fail("A6", f"{replica.identity} commits {now}, which no majority of {in_force} has on disk")
        self._top_by_term[term] = max(now, self._top_by_term.get(term, 0))
        if core.replica.log.term_at(RaftPosition(before)) != term:
            self.seen["commit of older terms with the own"] += 1

    def _holds(self, voter: ReplicaId, position: RaftPosition, chain: int | None) -> int:
        slot = self._world.slot_of(node_of(voter))
        if slot.identity != voter or slot.excused:
            return 1
        image = slot.disk.image
        return int(position <= image.base.position or image.chain_at(position) == chain)

    def on_acknowledge(self, replica: SimReplica, end: int, value: int) -> None:
        """An operation is acknowledged to its client."""
        if not self._world.knobs.write_caching and self._values.get(value) != end:
            self.fail("C1", f"{replica.identity} acknowledges operation {value} at {end}, which is not committed")
        self.acknowledged[value] = end

    def on_read_asked(self, read_id: int) -> None:
        """A read barrier starts."""
        self._reads[read_id] = self.top

    def on_read(self, replica: SimReplica, read_id: int, position: RaftPosition) -> None:
        """A read barrier is confirmed."""
        needed = self._reads.pop(read_id)
        if position < needed:
            self.fail("A15", f"{replica.identity} serves a read at {position}, asked for when {needed} was committed")
        self.seen["read barrier"] += 1

    # At a heal

    def check_all(self) -> None:
        """Compare everything with everything; every replica is up."""
        for replica in self._world.slots:
            for image in (replica.memory, replica.disk.image):
                for unit in image.units:
                    known = self.committed.get(unit.end)
                    if unit.end <= replica.committed and known != unit.chain:
                        self.fail("A5", f"{replica.identity} has {unit} committed, and others have not")
        if not self._world.knobs.write_caching:
            for value, end in self.acknowledged.items():
                if self._values.get(value) != end:
                    self.fail("C1", f"the acknowledged operation {value} at {end} is lost")
