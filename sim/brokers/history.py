"""A history of a `Cluster` from one seed: clients append while faults come and go, in rounds that end with a heal.

In each heal the cluster must elect, commit and agree, and everything is compared with what clients have seen.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from millstream.cluster import quorum_controller
from millstream.coordinator import local_groups
from millstream.core.overtaking import GAPS_MS
from sim.brokers.admin import Admin
from sim.brokers.clients import GroupMember, PlainProducer, Producer, Reader, Trimmer
from sim.brokers.controlled import CONTROLLER_GROUP, control
from sim.brokers.coordinator import TRANSACTIONS_GROUP
from sim.brokers.disks import SPACE_US, FailingDisks
from sim.brokers.judge import whole_log
from sim.brokers.members import Members, OneTopic, group_settings
from sim.brokers.rot import Rots
from sim.brokers.served import OFFSETS_GROUP, ServedBroker, serve
from sim.brokers.settings import Setting, draw
from sim.brokers.transactions import TIMEOUT_MS, TransactionalProducer
from sim.brokers.upgrades import Upgrade, releases, upgraded
from sim.brokers.world import BEGIN_US, GROUP, Cluster
from sim.engine.histories import attempt
from sim.engine.local_storage import Stopped
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.replication import ReplicaId
    from sim.brokers.world import Broker
    from sim.engine.histories import Counts, Finding


def play(seed: int, counts: Counts, setting: Setting | None = None) -> Finding | None:
    """Play the history of a seed, in a setting of its own or a given one; a finding is in ``counts``, too."""
    history = BrokersHistory(seed, setting)
    with (
        patch.object(quorum_controller, "new_topic_id", history.new_topic_id),
        patch.object(local_groups, "_member_suffix", history.new_member_id),
        patch.object(local_groups, "_member_id", history.new_member_id),
        releases(),
    ):
        finding = attempt(seed, counts, history.run, (AssertionError, Stopped, OSError), history.setting)
    history.count(counts)
    for each in history.cluster.histories.values():
        counts.seen += each.seen
    return finding


class BrokersHistory:
    """One history. A finding is raised by the cluster, or by an assertion of the code under test.

    Lifecycle: made from a seed, `run` once.
    """

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.setting = setting = setting or draw(seed)
        controlled = setting.controlled and setting.nodes > 1
        more = [
            group
            for group, there in (
                (OFFSETS_GROUP, setting.groups),
                (TRANSACTIONS_GROUP, setting.transactions),
                (CONTROLLER_GROUP, controlled),
            )
            if there
        ]
        self.cluster = Cluster(
            seed,
            setting.nodes,
            options=setting.options,
            delay_us=setting.delay_us,
            write_caching=setting.write_caching,
            checkpoint_bytes=setting.checkpoint_bytes,
            make=self._make_controlled if controlled else self.make,
            more=more,
        )
        self.faults: Counter[str] = Counter()
        cluster, timeout_us = self.cluster, 2 * setting.options.election_timeout_us
        self._producers = [
            Producer(cluster, number, GROUP, timeout_us, setting.in_flight) for number in range(setting.producers)
        ]
        self._plain = PlainProducer(cluster, 0, GROUP, timeout_us)
        self._readers = [Reader(cluster, number, GROUP, timeout_us) for number in range(2)]
        self._trimmer = Trimmer(cluster, "trimmer", GROUP, timeout_us)
        self._admin = Admin(cluster, timeout_us, moves=setting.moves) if controlled else None
        self._member = GroupMember(cluster, timeout_us) if setting.groups else None
        self._members = Members(cluster, timeout_us) if setting.members else None
        self._transactional = (
            TransactionalProducer(cluster, timeout_us, self._next_value) if setting.transactions else None
        )
        self._chance = self.cluster.chance("faults")
        self._disks = FailingDisks(self.cluster, self.faults, self._down)
        self._rots = Rots(self.cluster, self.faults, self._down)
        self._upgrade = (
            Upgrade(cluster, setting.rounds, self._down, timeout_us // 2) if controlled and setting.upgrades else None
        )
        self._clients = self.cluster.chance("clients")
        self._value = 0
        self._until_us = 0
        kinds: tuple[tuple[bool, Callable[[], None]], ...] = (
            (setting.crashes, self._crash),
            (setting.crashes, self._crash_leader),
            (setting.crashes, self._power_failure),
            (setting.cuts, self._isolate),
            (setting.cuts, self._isolate_leader),
            (setting.cuts, self._one_way),
            (setting.pauses, self._pause),
            (setting.stalls, self._hang),
            (setting.transfers, self._transfer),
            (setting.wipes, self._wipe),
            (setting.disk_faults, self._fail_disk),
            (setting.disk_faults, self._fill_disk),
            (setting.rots, lambda: self._rots.begin(self._up())),
            (setting.rots, lambda: self._rots.begin(self._up())),
        )
        self._kinds = [act for on, act in kinds if on]

    def make(self, cluster: Cluster, node_id: int) -> Broker:
        """A broker without a controller."""
        return self._with_groups(serve(cluster, node_id))

    def _make_controlled(self, cluster: Cluster, node_id: int) -> Broker:
        broker = (upgraded if self.setting.upgrades else control)(cluster, node_id)
        if self.setting.snapshots:
            broker.snapshot_us = self.setting.options.election_timeout_us // 2
        return self._with_groups(broker)

    def _with_groups(self, broker: ServedBroker) -> ServedBroker:
        """Let it coordinate groups of members."""
        if self.setting.members:
            broker.group_settings = group_settings(2 * self.setting.options.election_timeout_us)
            broker.group_topics = OneTopic()
        return broker

    def run(self) -> Cluster:
        """Play it to its end."""
        for _ in range(self.setting.rounds):
            self.cluster.loss = self.setting.loss
            self._until_us = self.cluster.now + self.setting.round_us
            self._fault_later()
            self._client()
            if self._transactional is not None:
                self._transactional.go_on()
            if self._members is not None:
                self._members.go_on()
            if self._upgrade is not None:
                self._upgrade.go_on()
            self.cluster.run(limit_us=self.setting.round_us)
            self._disks.mend()
            self.cluster.heal()
            limit_us = 60 * self.setting.options.election_timeout_us + SPACE_US * self.setting.disk_faults
            # A producer whose acknowledged batches are lost gets retriable errors first (`overtaking.GAPS_MS`).
            self._finish(limit_us + 2_000 * GAPS_MS if self.setting.write_caching else limit_us)
        return self.cluster

    def count(self, counts: Counts) -> None:
        """Add what happened, but for what was seen."""
        cluster = self.cluster
        counts.simulated_us += cluster.now - BEGIN_US
        counts.steps += cluster.steps
        counts.operations += cluster.operations
        counts.trace = cluster.trace
        counts.faults += self.faults

    def new_topic_id(self) -> bytes:
        """An id that a replay has, too."""
        return self.cluster.chance("topic ids").randbytes(16)

    def new_member_id(self) -> str:
        """An id that a replay has, too."""
        return self.cluster.chance("member ids").randbytes(8).hex()

    def _next_value(self) -> int:
        self._value += 1
        return self._value

    def _finish_transactions(self, producer: TransactionalProducer, limit_us: int) -> None:
        """Its last transaction ends, and none stays open."""
        cluster = self.cluster
        producer.stop()
        limit_us += 1000 * TIMEOUT_MS
        if not cluster.run(lambda: producer.idle, limit_us):
            raise Violation(f"G1: the last transaction has not ended {limit_us} us after the heal")

        def closed() -> bool:
            leader: Any = cluster.leader()
            return leader is not None and not leader.partition.transactions.open

        if not cluster.run(closed, limit_us):
            raise Violation(f"D5: a transaction is open {limit_us} us after the heal")

    def _finish(self, limit_us: int) -> None:
        """Every producer gets its acknowledgements, brokers agree, readers come to the end."""
        cluster = self.cluster
        if self._upgrade is not None:
            self._upgrade.finish(limit_us)
        if not cluster.run(lambda: not any(one.unacked for one in self._producers), limit_us):
            left = [(one.name, len(one.unacked)) for one in self._producers]
            raise Violation(f"G1: nothing is acknowledged {limit_us} us after the heal: {left}")
        if self._admin is not None:
            self._finish_admin(self._admin, limit_us)
        if self._transactional is not None:
            self._finish_transactions(self._transactional, limit_us)
        if self._members is not None:
            self._members.finish(limit_us)
        if self.setting.rots:
            self._rots.finish(limit_us)
        cluster.settle(limit_us)
        if self._transactional is not None:
            leader = cluster.leader()
            assert leader is not None
            assert leader.shard is not None
            checks = next(one for one in leader.checks if one.group is leader.group)
            self._transactional.check(whole_log(leader.shard, checks))
        if self._admin is not None:
            cluster.run(self._admin.applied, limit_us)
            self._admin.check()
        end_us = cluster.now + limit_us
        self._poll_until(end_us)
        if not cluster.run(lambda: all(one.position >= cluster.history.top for one in self._readers), limit_us):
            left = [(one.name, one.position) for one in self._readers]
            raise Violation(f"G5: readers do not come to {cluster.history.top}: {left}")

    def _finish_admin(self, admin: Admin, limit_us: int) -> None:
        """A topic is made within the limit, and everybody knows it."""
        made, end_us = len(admin.made), self.cluster.now + limit_us

        def poll() -> None:
            if len(admin.made) <= made and self.cluster.now < end_us:
                admin.try_to_create()
                self.cluster.after(self.setting.options.election_timeout_us // 5, poll)

        poll()
        if not self.cluster.run(lambda: len(admin.made) > made and admin.applied(), limit_us):
            raise Violation(f"G1: no topic is made {limit_us} us after the heal")
        if not self.cluster.run(admin.moved, limit_us):
            raise Violation(f"G5: a move has not ended {limit_us} us after the heal: {admin.moving()}")

    def _poll_until(self, end_us: int) -> None:
        behind = [one for one in self._readers if one.position < self.cluster.history.top]
        for reader in behind:
            reader.poll()
        if behind and self.cluster.now < end_us:
            self.cluster.after(self.setting.options.election_timeout_us // 20, lambda: self._poll_until(end_us))

    # Clients

    def _client(self) -> None:
        if self.cluster.now >= self._until_us:
            return
        chance, setting = self._clients, self.setting
        self.cluster.after(1 + int(SECOND * chance.expovariate(setting.operations_per_s)), self._client)
        if setting.sync_us:
            for broker in self._up():
                broker.hang_disk(chance.randint(1, setting.sync_us))
        what = chance.random()
        if what < 0.3:
            chance.choice(self._readers).poll()
        elif what < 0.4 and self._member is not None:
            self._member.poll()
        elif what < (0.7 if setting.moves else 0.5) and self._admin is not None:
            self._admin.poll()
        elif what < (0.7 if setting.trims_far else 0.52) and setting.trims:
            self._trim()
        else:
            producer = self._plain if what > 0.92 else chance.choice(self._producers)
            if producer.send(self._value + 1, chance.randint(1, setting.records), chance.randint(0, setting.size)):
                self._value += 1

    def _trim(self) -> None:
        """Move the log start, past what a replica lacks only if it may be sent files."""
        ends = [one.group.committed_offset for one in self._up()]
        if self.setting.trims_far and ends:
            # A producer that repeats a batch which was deleted since would be told of a gap in its sequences.
            limit = min([max(ends), *(one.acknowledged_end for one in self._producers if one.unacked)])
            self._trimmer.trim(limit if self._clients.random() < 0.5 else self._clients.randint(0, limit))
        elif len(ends) == len(self.cluster.brokers):
            self._trimmer.trim(self._clients.randint(0, min(ends)))

    # Faults

    def _fault_later(self) -> None:
        self.cluster.after(1 + int(self._chance.expovariate(1 / self.setting.fault_every_us)), self._fault)

    def _fault(self) -> None:
        if self.cluster.now < self._until_us and self._kinds:
            self._fault_later()
            self._chance.choice(self._kinds)()

    def _duration(self) -> int:
        """From a hundredth of an election timeout to six of them."""
        return int(self.setting.options.election_timeout_us * 10 ** self._chance.uniform(-2, 0.8))

    def _up(self) -> list[Broker]:
        return [one for one in self.cluster.brokers.values() if one.is_up and one not in self.cluster.paused]

    def _down(self, broker: Broker) -> None:
        broker.crash(torn=self._chance.random() < 0.8)
        self._up_later(broker)

    def _up_later(self, broker: Broker) -> None:
        """Start a broker after a while, with a disk that is in order."""

        def start() -> None:
            if not broker.is_up:
                self._disks.mend(broker)
                broker.start()

        self.cluster.after(self._duration(), start)

    def _crash(self) -> None:
        if up := self._up():
            self.faults["crash"] += 1
            self._down(self._chance.choice(up))

    def _crash_leader(self) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader not in self.cluster.paused:
            self.faults["crash of the leader"] += 1
            self._down(leader)

    def _power_failure(self) -> None:
        if self._chance.random() < 0.3:
            self.faults["power failure of all"] += 1
            for broker in self._up():
                self._down(broker)

    def _wipe(self) -> None:
        """A broker comes up without the files of the topic; no other one does before it has everything again."""
        brokers = self.cluster.brokers.values()
        if not all(isinstance(one, ServedBroker) and one.is_up and one.is_whole for one in brokers):
            return
        broker = self._chance.choice(self._up() or [None])
        if isinstance(broker, ServedBroker):
            self.faults["files of a replica lost"] += 1
            broker.crash(torn=False)
            self._disks.mend(broker)  # the loss of files meets no failing disk
            broker.wipe()
            self._up_later(broker)

    def _fail_disk(self) -> None:
        if up := self._up():
            self._disks.fail(self._chance.choice(up))

    def _fill_disk(self) -> None:
        if up := self._up():
            self._disks.fill(self._chance.choice(up), self._duration())

    def _isolate(self) -> None:
        self.faults["isolation"] += 1
        self._cut_off(self._chance.choice(list(self.cluster.brokers.values())))

    def _isolate_leader(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            self.faults["isolation of the leader"] += 1
            self._cut_off(leader)

    def _cut_off(self, broker: Broker) -> None:
        others = [one for one in self.cluster.brokers if one != broker.replica]
        self._cut({(broker.replica, one) for one in others} | {(one, broker.replica) for one in others})

    def _one_way(self) -> None:
        broker = self._chance.choice(list(self.cluster.brokers.values()))
        others = [one for one in self.cluster.brokers if one != broker.replica]
        self.faults["one-way cut"] += 1
        if self._chance.random() < 0.5:
            self._cut({(broker.replica, one) for one in others})
        else:
            self._cut({(one, broker.replica) for one in others})

    def _cut(self, pairs: set[tuple[ReplicaId, ReplicaId]]) -> None:
        cluster = self.cluster
        new = pairs - cluster.cut
        cluster.cut |= new
        cluster.after(self._duration(), lambda: cluster.cut.difference_update(new))

    def _pause(self) -> None:
        if up := self._up():
            self.faults["pause"] += 1
            self.cluster.paused[self._chance.choice(up)] = self.cluster.now + self._duration()

    def _hang(self) -> None:
        if up := self._up():
            self.faults["disk stall"] += 1
            self._chance.choice(up).hang_disk(self._duration())

    def _transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader not in self.cluster.paused:
            self.faults["transfer"] += 1
            leader.transfer(self._chance.choice(list(self.cluster.brokers)))
