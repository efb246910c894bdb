"""Faults of a round: what goes wrong, when, and for how long.

Durations are drawn evenly over orders of magnitude around the election timeout. Damage and replaced disks are placed
only while every voter's disk has everything that is committed, and touch one replica: what the promise covers, no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.quorum import members
from millstream.core.raft.ready import Role
from millstream.model.replication import RaftPosition, node_of
from sim.raft.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.raft.replica import SimReplica
    from sim.raft.world import World


class Faults:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance("faults")
        self._until = 0
        knobs = world.knobs
        kinds: list[tuple[bool, Callable[[], None], int]] = [
            (knobs.crashes, self._crash, 4),
            (knobs.crashes, self._crash_all, 1),
            (knobs.crashes, self._crash_leader, 2),
            (knobs.cuts, self._isolate, 3),
            (knobs.cuts, self._one_way, 3),
            (knobs.cuts, self._split, 2),
            (knobs.pauses, self._pause, 3),
            (knobs.stalls, self._stall, 4),
            (knobs.transfers, self._transfer, 3),
            (knobs.membership, self._change_members, 6),
            (knobs.damage, self._damage, 1),
            (knobs.damage and knobs.membership, self._replace, 1),
            (knobs.damage and not knobs.membership, self._wipe, 1),
        ]
        self._kinds = [(act, weight) for on, act, weight in kinds if on]

    def begin(self, until_us: int) -> None:
        """Let faults happen until then."""
        self._until = until_us
        self._schedule()

    def end(self) -> None:
        """No more faults, and no late end of one; the loss of a majority, in a part of the worlds."""
        self._until = 0
        if self._world.knobs.recoveries:
            recover(self._world)

    def _schedule(self) -> None:
        delay = int(self._chance.expovariate(1 / self._world.knobs.fault_every_us))
        self._world.after(delay, None, self._act)

    def _act(self) -> None:
        world = self._world
        if world.now >= self._until:
            return
        self._schedule()
        if self._kinds:
            acts, weights = zip(*self._kinds, strict=True)
            act: Callable[[], None] = self._chance.choices(acts, weights)[0]
            act()

    def _seen(self, what: str, *arguments: object) -> None:
        self._world.faults_seen[what] += 1
        self._world.record(what, *arguments)

    def _duration(self) -> int:
        """From a hundredth of an election timeout to eight of them."""
        return int(self._world.knobs.options.election_timeout_us * 10 ** self._chance.uniform(-2, 0.9))

    def _pick(self, *, up: bool = True) -> SimReplica | None:
        choices = [replica for replica in self._world.slots if (replica.core is not None) == up]
        return self._chance.choice(choices) if choices else None

    def _pick_leader(self) -> SimReplica | None:
        for replica in self._world.slots:
            if replica.core is not None and replica.core.role is Role.LEADER:
                return replica
        return None

    # Crashes

    def _crash(self) -> None:
        replica = self._pick()
        if replica is not None:
            self._seen("crash", replica.identity)
            self._down(replica)

    def _crash_leader(self) -> None:
        replica = self._pick_leader()
        if replica is not None:
            self._seen("crash of the leader", replica.identity)
            self._down(replica)

    def _crash_all(self) -> None:
        self._seen("power failure of all")
        for replica in self._world.slots:
            if replica.core is not None:
                self._down(replica)

    def _down(self, replica: SimReplica) -> None:
        replica.crash()
        self._world.after(self._duration(), replica, replica.start)

    def _damage(self) -> None:
        replica = self._pick()
        if replica is None or not self._is_redundant():
            return
        self._seen("damage", replica.identity)
        replica.crash()
        image = replica.disk.image
        keep = self._chance.choice([image.base.position, *(unit.end for unit in image.units)])
        replica.damaged_until = RaftPosition(image.end)
        image.truncate(keep)
        replica.excused = True
        self._world.after(self._duration(), replica, replica.start)

    def _wipe(self) -> None:
        replica = self._pick()
        if replica is None or not self._is_redundant():
            return
        self._seen("disk wiped", replica.identity)
        leader = self._world.leader()
        assert leader is not None and leader.core is not None
        members = leader.core.replica.log.configuration
        replica.crash()
        replica.wipe(members)
        self._world.after(self._duration(), replica, replica.start)

    def _replace(self) -> None:
        replica = self._pick()
        if replica is None or not self._is_redundant():
            return
        self._seen("disk replaced", replica.identity)
        replica.crash()
        replica.replace()
        self._world.after(self._duration(), replica, replica.start)

    def _is_redundant(self) -> bool:
        """Whether every voter's disk has everything that is committed, and none is in doubt."""
        world = self._world
        top, leader = world.judge.top, world.leader()
        if leader is None or leader.core is None or any(replica.excused for replica in world.slots):
            return False
        if any(replica.core is None for replica in world.slots):
            return False
        configuration = leader.core.replica.log.configuration
        if (
            len(configuration.voters) < 3
            or configuration.outgoing
            or leader.core.committed != leader.core.next_position
        ):
            return False
        for member in members(configuration):
            slot = world.slot_of(node_of(member))
            if slot.identity != member or slot.disk.image.chain_at(top) != world.judge.committed[top]:
                return False
        return True

    # Network

    def _isolate(self) -> None:
        leader = self._pick_leader()
        replica = (
            leader if leader is not None and self._chance.random() < 0.4 else self._chance.choice(self._world.slots)
        )
        self._seen("isolation", replica.identity)
        others = [other.slot for other in self._world.slots if other is not replica]
        self._cut({(replica.slot, other) for other in others} | {(other, replica.slot) for other in others})

    def _one_way(self) -> None:
        replica = self._chance.choice(self._world.slots)
        sends = self._chance.random() < 0.5
        self._seen("one-way cut", replica.identity, "to" if sends else "from")
        others = [other.slot for other in self._world.slots if other is not replica]
        others = self._chance.sample(others, self._chance.randint(0, len(others)))
        self._cut({(replica.slot, other) if sends else (other, replica.slot) for other in others})

    def _split(self) -> None:
        left = {replica.slot for replica in self._world.slots if self._chance.random() < 0.5}
        right = {replica.slot for replica in self._world.slots} - left
        self._seen("split", tuple(left), tuple(right))
        self._cut({(a, b) for a in left for b in right} | {(b, a) for a in left for b in right})

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        network = self._world.network
        pairs = pairs - network.cut
        network.cut |= pairs
        self._world.after(self._duration(), None, self._mend, pairs)

    def _mend(self, pairs: set[tuple[int, int]]) -> None:
        self._world.network.cut -= pairs

    # Time

    def _pause(self) -> None:
        replica = self._pick()
        if replica is not None:
            self._seen("pause", replica.identity)
            replica.paused_until = max(replica.paused_until, self._world.now + self._duration())

    def _stall(self) -> None:
        replica = self._pick_leader() if self._chance.random() < 0.4 else self._pick()
        if replica is not None:
            self._seen("disk stall", replica.identity)
            replica.disk.stalled_until = self._world.now + self._duration()

    # Orders of an operator

    def _transfer(self) -> None:
        replica = self._pick_leader()
        if replica is None or replica.core is None or replica.paused_until > self._world.now:
            return
        voters = replica.core.replica.log.configuration.voters
        to = self._chance.choice(voters)
        refusal = replica.core.transfer(replica.now(), to)
        if refusal is None:
            self._seen("transfer", replica.identity, to)
        replica.drain()

    def _change_members(self) -> None:
        """One step towards a random set of members that live on the present disks."""
        replica = self._pick_leader()
        if replica is None or replica.core is None or replica.paused_until > self._world.now:
            return
        now = replica.core.replica.log.configuration
        live = [slot.identity for slot in self._world.slots]
        voters = [voter for voter in now.voters if voter in live]
        learners = [learner for learner in now.learners if learner in live]
        strangers = [identity for identity in live if identity not in voters and identity not in learners]
        step = self._chance.random()
        if strangers and step < 0.4:
            learners.append(self._chance.choice(strangers))
        elif learners and step < 0.8:
            promoted = self._chance.choice(learners)
            learners.remove(promoted)
            voters.insert(self._chance.randint(0, len(voters)), promoted)
        elif len(voters) > 1 and len(voters) >= self._world.knobs.nodes:
            voters.remove(self._chance.choice(voters))
        refusal = replica.core.propose_members(replica.now(), tuple(voters), tuple(learners))
        if refusal is None:
            self._seen("change of members", tuple(voters), tuple(learners))
        replica.drain()
