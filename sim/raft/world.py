"""Events in order of time, over a handful of replicas, from one seed.

A world runs in rounds. In each, clients append and read while faults come and go; then everything is healed, and the
cluster must elect, commit and agree within `RECOVERY_TIMEOUTS` election timeouts. Time is a whole number of
microseconds; of two events at one time the one that was scheduled first goes first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.core.raft.messages import Configuration, InstallOffer
from millstream.core.raft.ready import Role
from millstream.model.replication import ReadId, node_of, replica_id
from sim.engine.timeline import SECOND, Streams, Timeline
from sim.raft.judge import Judge
from sim.raft.network import Network
from sim.raft.replica import SimReplica

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from millstream.core.raft.messages import Message
    from millstream.model.replication import ReplicaId
    from sim.raft.image import Unit
    from sim.raft.knobs import Knobs

RECOVERY_TIMEOUTS = 20
"""Election timeouts after a heal by which a leader has committed in its own term: ten, and as long for what was under
way when the network came back."""
LATE_TIMEOUTS = 6
"""Election timeouts after which every machine has come up for the first time."""
MAX_PARKED = 20
"""Appends that the clients of a leader have in flight."""
AGREEMENT_TIMEOUTS = 40
"""Election timeouts after which every member has what is committed."""
_MASK = (1 << 64) - 1


class Event(NamedTuple):
    """What happened, for the report of a finding."""

    at_us: int
    what: str
    arguments: tuple[Any, ...]


class _Due(NamedTuple):
    """What happens later; with a replica, in its life at that time only."""

    replica: SimReplica | None
    life: int
    do: Callable[..., None]
    arguments: tuple[Any, ...]


class FaultSource(Protocol):
    """What goes wrong in a round."""

    def begin(self, until_us: int) -> None:
        """Let faults happen until then."""
        ...

    def end(self) -> None:
        """No more faults."""
        ...


class World:
    """One cluster.

    Lifecycle: made from a seed and knobs, `run` once. A finding is raised as `judge.Violation`, or as the assertion of
    the core that noticed it.
    """

    def __init__(self, seed: int, knobs: Knobs) -> None:
        self.seed = seed
        self.knobs = knobs
        self.now = 0
        self.events = 0
        self.operations = 0
        self.trace = seed & _MASK
        """Hash over everything that happened; a replay has the same."""
        self.recent: deque[Event] = deque(maxlen=200)
        self.faults_seen: Counter[str] = Counter()
        self._streams = Streams(seed)
        self.timeline: Timeline[_Due] = Timeline()
        self.network = Network(knobs, self.chance("network"))
        self.judge = Judge(self)
        slots = range(1, knobs.nodes + knobs.spares + 1)
        first = Configuration(tuple(replica_id(slot) for slot in slots[: knobs.nodes]))
        if knobs.assigned and knobs.nodes > 1:
            self.judge.on_created(first)
        self.slots = [SimReplica(self, slot, first) for slot in slots]
        self._next_value = 0
        self._clients_on = False
        for replica in self.slots:
            self._start_first(replica)

    def _start_first(self, replica: SimReplica) -> None:
        """Start a machine for the first time: late, sometimes, if others need not ask it for its vote."""
        chance = self.chance("late")
        if not self.knobs.assigned or chance.random() < 0.6:
            replica.start()
            return
        late_us = int(chance.random() * LATE_TIMEOUTS * self.knobs.options.election_timeout_us)
        self.after(late_us, None, lambda: replica.start() if replica.core is None else None)

    def chance(self, stream: str) -> random.Random:
        """The random numbers of one purpose."""
        return self._streams(stream)

    def slot_of(self, node_id: int) -> SimReplica:
        """The slot with that node id."""
        return self.slots[node_id - 1]

    # Time

    def at(self, time_us: int, replica: SimReplica | None, do: Callable[..., None], *arguments: Any) -> None:
        """Schedule; with a replica, for its present life only."""
        life = replica.life if replica is not None else 0
        self.timeline.add(max(time_us, self.now), _Due(replica, life, do, arguments))

    def after(self, delay_us: int, replica: SimReplica | None, do: Callable[..., None], *arguments: Any) -> None:
        """Schedule from now on."""
        self.at(self.now + delay_us, replica, do, *arguments)

    def run_until(self, end_us: int) -> None:
        """Let everything happen up to then."""
        timeline = self.timeline
        while (time_us := timeline.due_us()) is not None and time_us <= end_us:
            replica, life, do, arguments = timeline.pop()
            self.now = time_us
            if replica is not None:
                if replica.life != life:
                    continue
                if replica.paused_until > time_us:
                    self.at(replica.paused_until, replica, do, *arguments)
                    continue
            self.events += 1
            do(*arguments)
        self.now = end_us

    def run(self, faults: FaultSource, rounds: int, round_us: int) -> None:
        """Run rounds of faults, each with its heal."""
        for _ in range(rounds):
            self.network.calm = False
            self._clients_on = True
            self.after(0, None, self._client)
            faults.begin(self.now + round_us)
            self.run_until(self.now + round_us)
            self._clients_on = False
            faults.end()
            self.heal()

    def note(self, kind: int, *what: int) -> None:
        """Take an event into the trace."""
        self.trace = (self.trace * 0x100000001B3 ^ hash((self.now, kind, *what))) & _MASK

    def record(self, what: str, *arguments: Any) -> None:
        """Remember an event for the report of a finding."""
        self.recent.append(Event(self.now, what, arguments))

    def told(self) -> list[str]:
        """The last events in words."""
        return [
            f"{event.at_us / SECOND:10.6f} {event.what} {' '.join(str(part) for part in event.arguments)}"
            for event in self.recent
        ]

    # Network and disks

    def send(self, sender: SimReplica, to: ReplicaId, message: Message, units: Sequence[Unit] = ()) -> None:
        """Give a message to the network."""
        self.judge.on_message(sender, to, message)
        self.record("sends", sender.identity, to, message)
        receiver = self.slot_of(node_of(to))
        chain = 0
        if isinstance(message, InstallOffer):
            found = sender.memory.chain_at(message.end.position)
            assert found is not None
            chain = found
        for arrival in self.network.arrivals(sender.slot, receiver.slot, self.now):
            self.at(arrival, None, self._deliver, receiver, sender.identity, to, message, units, chain)

    def _deliver(
        self,
        receiver: SimReplica,
        sender: ReplicaId,
        to: ReplicaId,
        message: Message,
        units: Sequence[Unit],
        chain: int,
    ) -> None:
        if receiver.paused_until > self.now:
            self.at(receiver.paused_until, None, self._deliver, receiver, sender, to, message, units, chain)
            return
        self.note(4, sender, to, message.term)
        receiver.receive(sender, to, message, units, chain)

    def sync_ends(self, replica: SimReplica) -> int:
        """When a sync that starts now ends."""
        chance = self.chance("disk")
        time_us = int(self.knobs.sync_us * (0.5 + chance.random()))
        if not self.network.calm and chance.random() < 0.02:
            time_us *= chance.randrange(1, 10)
        return max(self.now + time_us, replica.disk.stalled_until)

    # Clients

    def _client(self) -> None:
        if not self._clients_on:
            return
        chance = self.chance("clients")
        self.after(int(SECOND * chance.expovariate(self.knobs.operations_per_s)), None, self._client)
        leaders = [replica for replica in self.slots if replica.core is not None and replica.core.role is Role.LEADER]
        if not leaders:
            return
        replica = leaders[chance.randrange(len(leaders))]
        if replica.paused_until > self.now:
            return
        if chance.random() < 0.1:
            self.operations += 1
            self._read(replica)
        elif len(replica.parked) < MAX_PARKED:
            self.operations += 1
            self._next_value += 1
            replica.propose(self._next_value, chance.randint(1, self.knobs.batch_records))

    def _read(self, replica: SimReplica) -> None:
        core = replica.core
        assert core is not None
        self._next_value += 1
        self.judge.on_read_asked(self._next_value)
        core.read_barrier(replica.now(), ReadId(self._next_value))
        replica.drain()

    # Healing

    def leader(self) -> SimReplica | None:
        """The replica that leads and has committed in its term; the one of the newest term, if there are several."""
        serving = [replica for replica in self.slots if replica.core is not None and replica.core.is_serving]
        return max(serving, key=lambda replica: replica.core.term if replica.core is not None else 0, default=None)

    def heal(self) -> None:
        """End every fault; the cluster must work and agree within stated times."""
        self.network.heal()
        for replica in self.slots:
            replica.paused_until = 0
            replica.disk.stalled_until = 0
            if replica.core is None:
                replica.start()
        timeout = self.knobs.options.election_timeout_us
        began = self.now
        values: set[int] = set()
        allowed = RECOVERY_TIMEOUTS * timeout + self.backlog_us()
        while values.isdisjoint(self.judge.acknowledged):
            if self.now - began > allowed:
                self.judge.fail("G1", f"nothing is acknowledged {self.now - began} us after the heal")
            self.run_until(self.now + timeout // 10)
            leader = self.leader()
            if leader is not None and values.isdisjoint(self.judge.acknowledged):
                self._next_value += 1
                if leader.propose(self._next_value, 1):
                    values.add(self._next_value)
                self.run_until(self.now + timeout // 2)
        self._agree(AGREEMENT_TIMEOUTS * timeout + allowed)

    def backlog_us(self) -> int:
        """Longest time that the entries which some replica lacks take, one append and one answer after the other."""
        longest = max(self.slots, key=lambda replica: replica.memory.end).memory
        lowest = min(replica.committed for replica in self.slots)
        units = len(longest.units_from(lowest, longest.end))
        return (units + 20) * 4 * (2 * self.knobs.delay_us + self.knobs.sync_us)

    def _agree(self, allowed_us: int) -> None:
        began = self.now
        timeout = self.knobs.options.election_timeout_us
        while True:
            leader = self.leader()
            if leader is not None and leader.core is not None and self._everyone_has(leader):
                break
            if self.now - began > allowed_us:
                ends = [(replica.identity, replica.committed) for replica in self.slots]
                self.judge.fail("G4", f"replicas do not agree {self.now - began} us after the heal: {ends}")
            self.run_until(self.now + timeout // 2)
        for replica in self.slots:
            replica.excused = False
            replica.damaged_until = None
        self.judge.check_all()
        self.record("healed")

    def _everyone_has(self, leader: SimReplica) -> bool:
        core = leader.core
        assert core is not None
        configuration = core.replica.log.configuration
        everyone = {*configuration.voters, *configuration.outgoing, *configuration.learners}
        identities = {replica.identity: replica for replica in self.slots}
        return core.committed == core.next_position and all(
            identities[member].committed == core.committed for member in everyone if member in identities
        )
