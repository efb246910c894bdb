"""A history of a `Cluster` from one seed: clients append while faults come and go, in rounds that end with a heal.

In each heal the cluster must elect, commit and agree, and everything is compared with what clients have seen.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from millstream.core.raft.options import RaftOptions
from millstream.testing.local_storage import Stopped
from millstream.testing.sim.brokers import BEGIN_US, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.replication import ReplicaId
    from millstream.testing.sim.brokers import Broker

SECOND = 1_000_000
PARKED_MAX = 30


class Setting(msgspec.Struct, frozen=True):
    """What a history is like. The range of each knob includes its calm end."""

    nodes: int
    rounds: int
    round_us: int
    batches_per_s: int
    records: int
    """Largest count of records in a batch."""
    size: int
    """Largest size of a batch in bytes, beside its head."""
    fault_every_us: int
    loss: float
    delay_us: int
    sync_us: int
    """Disks take up to so long for what is written when a client appends."""
    trims: bool
    write_caching: bool
    checkpoint_bytes: int
    options: RaftOptions


def draw(seed: int) -> Setting:
    """The setting of a seed."""
    chance = Cluster.stream(seed, "setting")
    timeout_us = chance.choice((300_000, 1_500_000))
    return Setting(
        nodes=chance.choice((1, 3, 3, 3, 5)),
        rounds=chance.choice((2, 4)),
        round_us=chance.choice((2, 6)) * timeout_us,
        batches_per_s=chance.choice((5, 20, 100)),
        records=chance.choice((1, 1, 5)),
        size=chance.choice((0, 100, 3_000, 20_000)),
        fault_every_us=timeout_us // chance.choice((1, 2, 4)),
        loss=chance.choice((0, 0, 0.02, 0.2)),
        delay_us=chance.choice((100, 2_000, 20_000)),
        sync_us=chance.choice((0, 2_000, timeout_us // 10, timeout_us // 2)),
        trims=chance.random() < 0.5,
        write_caching=chance.random() < 0.15,
        checkpoint_bytes=chance.choice((8 << 10, 64 << 10, 256 << 10)),
        options=RaftOptions(
            heartbeat_us=timeout_us // 10,
            election_timeout_us=timeout_us,
            election_jitter_min_us=timeout_us // 50,
            election_jitter_max_us=timeout_us // 10,
            retry_min_us=timeout_us // 10,
            retry_max_us=timeout_us // 5,
            transfer_timeout_us=timeout_us,
            disk_stall_us=2 * timeout_us,
            max_in_flight_appends=chance.choice((1, 3, 64)),
            max_in_flight_bytes=chance.choice((1, 10_000, 4 << 20)),
            pre_vote=chance.random() < 0.7,
            check_quorum=chance.random() < 0.7,
            priority=chance.random() < 0.7,
        ),
    )


class Finding(msgspec.Struct, frozen=True):
    """A seed that broke something."""

    seed: int
    setting: Setting
    what: str
    trace: str
    """Where it was noticed."""


class Counts(msgspec.Struct):
    """Sums over histories."""

    histories: int = 0
    simulated_us: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    seen: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def hours(self) -> float:
        """Simulated hours."""
        return self.simulated_us / SECOND / 3600


def play(seed: int, counts: Counts) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    history = BrokersHistory(seed)
    begun = time.process_time()
    finding: Finding | None = None
    try:
        history.run()
    except (AssertionError, Stopped) as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-4:])
        finding = Finding(seed, history.setting, str(error) or repr(error), where)
        counts.findings.append(finding)
    counts.cpu_s += time.process_time() - begun
    counts.histories += 1
    counts.simulated_us += history.cluster.now - BEGIN_US
    counts.steps += history.cluster.steps
    counts.seen += history.cluster.history.seen
    return finding


class BrokersHistory:
    """One history. A finding is raised by the cluster, or by an assertion of the code under test.

    Lifecycle: made from a seed, `run` once.
    """

    def __init__(self, seed: int) -> None:
        self.setting = draw(seed)
        setting = self.setting
        self.cluster = Cluster(
            seed,
            setting.nodes,
            options=setting.options,
            delay_us=setting.delay_us,
            write_caching=setting.write_caching,
            checkpoint_bytes=setting.checkpoint_bytes,
        )
        self._chance = self.cluster.chance("faults")
        self._clients = self.cluster.chance("clients")
        self._value = 0
        self._until_us = 0
        self._faults: tuple[Callable[[], None], ...] = (
            self._crash,
            self._crash_leader,
            self._power_failure,
            self._isolate,
            self._one_way,
            self._pause,
            self._hang,
            self._transfer,
        )

    def run(self) -> Cluster:
        """Play it to its end."""
        for _ in range(self.setting.rounds):
            self.cluster.loss = self.setting.loss
            self._until_us = self.cluster.now + self.setting.round_us
            self._fault_later()
            self._client()
            self.cluster.run(limit_us=self.setting.round_us)
            self.cluster.heal()
            self.cluster.settle(60 * self.setting.options.election_timeout_us)
        return self.cluster

    def _seen(self, what: str) -> None:
        self.cluster.history.seen[what] += 1

    # Clients

    def _client(self) -> None:
        if self.cluster.now >= self._until_us:
            return
        chance = self._clients
        self.cluster.after(1 + int(SECOND * chance.expovariate(self.setting.batches_per_s)), self._client)
        if self.setting.sync_us:
            for broker in self._up():
                broker.hang_disk(chance.randint(1, self.setting.sync_us))
        leading = [one for one in self._up() if one.group.core.leads and len(one.parked) < PARKED_MAX]
        if not leading:
            return
        broker = chance.choice(leading)
        if self.setting.trims and chance.random() < 0.03 and broker.group.is_serving:
            self._trim(broker)
            return
        self._value += 1
        broker.append(self._value, chance.randint(1, self.setting.records), chance.randint(0, self.setting.size))

    def _trim(self, leader: Broker) -> None:
        """Move the log start, but not past what a replica lacks: that one would need files."""
        if len(self._up()) == len(self.cluster.brokers):
            common = min(one.group.committed_offset for one in self._up())
            leader.propose_log_start(self._clients.randint(0, common))
            self._seen("log start")

    # Faults

    def _fault_later(self) -> None:
        self.cluster.after(1 + int(self._chance.expovariate(1 / self.setting.fault_every_us)), self._fault)

    def _fault(self) -> None:
        if self.cluster.now < self._until_us:
            self._fault_later()
            self._chance.choice(self._faults)()

    def _duration(self) -> int:
        """From a hundredth of an election timeout to six of them."""
        return int(self.setting.options.election_timeout_us * 10 ** self._chance.uniform(-2, 0.8))

    def _up(self) -> list[Broker]:
        return [one for one in self.cluster.brokers.values() if one.is_up and one not in self.cluster.paused]

    def _down(self, broker: Broker) -> None:
        broker.crash(torn=self._chance.random() < 0.8)
        self.cluster.after(self._duration(), lambda: None if broker.is_up else broker.start())

    def _crash(self) -> None:
        if up := self._up():
            self._seen("crash")
            self._down(self._chance.choice(up))

    def _crash_leader(self) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader not in self.cluster.paused:
            self._seen("crash of the leader")
            self._down(leader)

    def _power_failure(self) -> None:
        if self._chance.random() < 0.3:
            self._seen("power failure of all")
            for broker in self._up():
                self._down(broker)

    def _isolate(self) -> None:
        broker = self._chance.choice(list(self.cluster.brokers.values()))
        others = [one for one in self.cluster.brokers if one != broker.replica]
        self._seen("isolation")
        self._cut({(broker.replica, one) for one in others} | {(one, broker.replica) for one in others})

    def _one_way(self) -> None:
        broker = self._chance.choice(list(self.cluster.brokers.values()))
        others = [one for one in self.cluster.brokers if one != broker.replica]
        self._seen("one-way cut")
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
            self._seen("pause")
            self.cluster.paused[self._chance.choice(up)] = self.cluster.now + self._duration()

    def _hang(self) -> None:
        if up := self._up():
            self._seen("disk stall")
            self._chance.choice(up).hang_disk(self._duration())

    def _transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader not in self.cluster.paused:
            self._seen("transfer")
            leader.transfer(self._chance.choice(list(self.cluster.brokers)))
