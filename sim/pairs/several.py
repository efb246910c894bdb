"""The world of a pair with a cluster of three: brokers that are killed, paused, cut off and moved between.

The verbs of clients are those of `World`. A client asks the broker that leads in the newest term, of those that it
reaches. It asks again while the error is retriable, and a batch without a definite answer may be there twice, unless
its producer is idempotent. What needs a majority of replicas that are away is refused with `NO_MAJORITY`.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.admin.bodies import RepairAsked
from millstream.app.repairs import Repair
from millstream.config.settings import Settings
from millstream.coordinator.transactions import ask_or_refuse
from millstream.core.controller import requests
from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE
from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import node_of
from millstream.partition.partition import Partition
from millstream.raft.replicated import ReplicatedGroup
from millstream.wire.records import OVERHEAD_BYTES, unpack_header
from sim.brokers.controlled import CONTROLLER_GROUP
from sim.brokers.judge import whole_log
from sim.brokers.world import BEGIN_US, Cluster
from sim.engine.disk import PowerFailure
from sim.engine.local_storage import DATA_DIR
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.kinds import INTERNAL, TOPIC
from sim.pairs.member import Member
from sim.pairs.sharing import Sharing
from sim.pairs.world import MINUTE, TRIES, Refused, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.coordinator.local_groups import LocalGroups
    from millstream.core.controller.state import ControllerState
    from sim.engine.disk import SimDisk
    from sim.pairs.kinds import Kind

BROKERS: Final = 3
NO_MAJORITY: Final = "no majority of the replicas is there"
_CONNECT_US: Final = 1_000
_PAUSE_US: Final = 15 * SECOND


class Several(World):
    """One history's. Lifecycle: made with all brokers up."""

    cluster: Cluster
    rest_us = 15 * MINUTE
    look_us = 10 * SECOND
    one_disk_promises = False

    def __init__(self, seed: str, kind: Kind) -> None:
        self.replicas = kind.replicas
        self.doomed: set[Member] = set()
        """Brokers whose power is going to fail."""
        super().__init__(seed, kind)

    def settings_of(self, node: NodeId) -> Settings:
        """The settings of one broker."""
        return Settings(data_dir=DATA_DIR, objects_url="s3://world", node_id=node, shards=1, **self.kind.settings)

    def found(self) -> None:
        """Make a cluster of empty disks; the store stays."""
        begin_us = self.cluster.now if hasattr(self, "cluster") else BEGIN_US
        self.cluster = Cluster(
            self.chance.getrandbits(60),
            BROKERS,
            make=lambda cluster, node: Member(cluster, node, self),
            more=(CONTROLLER_GROUP,),
            begin_us=begin_us,
        )
        self._wait_until_ready()
        for name in (GROUP_METADATA, TRANSACTION_STATE):
            self.create(name, self.kind.configs if name == self.kind.name else INTERNAL, BROKERS)
        self.committed.clear()
        self.sharing = Sharing(self)

    # Brokers

    @property
    def members(self) -> list[Member]:
        """All brokers."""
        brokers: list[Any] = list(self.cluster.brokers.values())
        return brokers

    def lives(self) -> list[Any]:
        """The brokers that are up."""
        return [one for one in self.members if one.is_up]

    def reached(self) -> list[Member]:
        """The brokers that clients reach, and that reach a majority."""
        cut = self.cluster.cut
        return [
            one
            for one in self.lives()
            if one.is_ready
            and one not in self.cluster.paused
            and sum((one.replica, other.replica) in cut for other in self.members) < BROKERS // 2 + 1
        ]

    def disks(self) -> list[SimDisk]:
        """The disks of all brokers."""
        return [one.disk for one in self.members]

    @property
    def controller(self) -> ControllerState:
        """The controller's state on the broker that has applied most of it."""
        known = [one.cache.state for one in self.members if hasattr(one, "cache")]
        return max(known, key=lambda state: state.revision)

    @property
    def clock_is_back(self) -> bool:
        """Whether a wall clock was set back."""
        return any(one.jump_ms < 0 for one in self.members)

    def wall_ms(self) -> int:
        """The clock of clients and of the store."""
        return self.cluster.now // 1000 if hasattr(self, "cluster") else BEGIN_US // 1000

    def run(self, holds: Callable[[], bool] | None, limit_us: int) -> None:
        """Run the cluster until ``holds`` is true, for ``limit_us`` at most."""
        end_us = self.cluster.now + limit_us
        while True:
            try:
                self.cluster.run(holds, end_us - self.cluster.now)
                return
            except PowerFailure:
                for one in self.members:
                    if 0 <= one.disk.crash_at <= one.disk.operations:
                        self.power_fails(one)

    def power_fails(self, member: Member) -> None:
        """The power of a broker fails, and comes back after a while."""
        if not member.is_up:
            return
        member.crash(torn=self.chance.random() < 0.5)

        def again() -> None:
            if not member.is_up and not member.begins:
                member.start()

        self.cluster.after(self.chance.choice((0, SECOND, 10 * SECOND)), again)

    def power_fails_in(self, member: Member, delay_us: int) -> None:
        """The power of a broker fails after ``delay_us``, unless `end_power_failures` comes first."""
        self.doomed.add(member)

        def fails() -> None:
            if member in self.doomed:
                self.power_fails(member)

        self.cluster.after(delay_us, fails)

    def end_power_failures(self) -> None:
        """No more power fails: a client that waits for an answer would not see that its connection has ended."""
        self.doomed.clear()
        for one in self.members:
            one.disk.crash_at = -1

    def wait(self, duration_us: int) -> None:
        """Let time pass."""
        self.run(None, duration_us)

    def pause(self, duration_us: int) -> None:
        """A cluster costs its time: it has less before rest."""
        self.wait(min(duration_us, _PAUSE_US))

    def _wait_until_ready(self) -> None:
        self.until(lambda: all(one.is_up and one.is_ready for one in self.members), "a broker does not come up")

    def start(self) -> None:
        """Start all brokers, which reach each other. One with its log in the store starts when that is there."""
        self.connect()
        if self.waits_for_store and len(self.lives()) < BROKERS:
            self.set_store(Faults())
        for one in self.members:
            if not one.is_up:
                one.start()
        self._wait_until_ready()

    def connect(self) -> None:
        """No broker is cut off or paused."""
        cluster = self.cluster
        cut, paused = bool(cluster.cut), list(cluster.paused)
        cluster.cut.clear()
        cluster.paused.clear()
        for one in paused:
            one.idle = False
        if cut:
            for one in self.members:
                self.connects(one)

    def stop(self) -> None:
        """Stop all brokers in order."""
        for one in self.lives():
            self.stop_one(one)

    def stop_one(self, member: Member) -> None:
        """An orderly stop."""
        done: list[int] = []
        member.stop(lambda: done.append(1))
        self.until(lambda: bool(done), "a broker does not stop")

    def kill(self, *, torn: bool) -> None:
        """The power of all brokers fails."""
        for one in self.lives():
            one.crash(torn=torn)

    def heal(self) -> None:
        """Brokers are up and reach each other, and disks have room."""
        for one in self.members:
            one.disk.capacity_bytes = None
        self.end_power_failures()
        self.start()
        for one in self.members:
            self._repair(one)

    def isolate(self, member: Member) -> None:
        """Nothing passes between a broker and the others."""
        for other in self.members:
            if other is not member:
                self.cluster.cut |= {(member.replica, other.replica), (other.replica, member.replica)}

    def fail(self, member: Member) -> Partition | None:
        """A verb of a replica raises; what failed, None without one."""
        partition = member.table.find(TOPIC, 0)
        if not isinstance(partition, Partition):
            return None
        self.expected.append("failed in a planted verb")
        partition.log.guard("a planted verb", _raise)
        self.until(lambda: partition.raft_group in member.table.failed, "a replica that failed is not taken down")
        return partition

    def _repair(self, member: Member) -> None:
        """As ``millstream topic repair`` does, of each replica of a broker that has failed."""
        shard = member.shard
        assert shard is not None
        for entry in list(member.table.failed.values()):
            if entry.raft_group in member.partitions.repairing:
                continue
            answers: list[Any] = []
            asked = RepairAsked(entry.name, entry.index, execute=True)
            Repair(
                shard.context.reactor, shard.storage, member.partitions, member.unclean, entry, asked, answers.append
            ).begin()
            member.idle = False
            self.until(lambda answers=answers: bool(answers), "a repair is not answered")
            if isinstance(answers[0], MillstreamError):
                raise Violation(f"a replica that failed is not repaired: {answers[0].message}")
            if answers[0]["lost"]:
                raise Violation(f"a repair has lost {answers[0]['lost']} records")

    def connects(self, member: Member) -> None:
        """A broker opens its connections."""
        cluster = member.cluster

        def opened(one: Any, other: Any) -> None:
            if one.is_up and other.is_up and not cluster.cut:
                one.network.on_opened(other.node_id, 0)

        for other in getattr(cluster, "brokers", {}).values():
            if other is not member:
                cluster.after(_CONNECT_US, lambda other=other: opened(member, other))
                cluster.after(_CONNECT_US, lambda other=other: opened(other, member))

    def set_wall_clock(self, by_ms: int) -> None:
        """Move the wall clock of one broker."""
        member = self.chance.choice(self.members)
        member.jump_ms += by_ms
        if member.shard is not None:
            member.shard.reactor.jump_ms = member.jump_ms

    def lag(self, name: str, index: int) -> str:
        """Which replicas of a partition lack something, or are elsewhere; empty if all have all."""
        leader = self.serving(name, index)
        part = self.controller.topics[name].partitions[index]
        held = {one.node_id: one.table.find(name, index) for one in self.members}
        replicas = {node: entry for node, entry in held.items() if isinstance(entry, Partition)}
        if part.raft_group in self.controller.moves:
            return f"is still moved to {part.replicas}"
        if set(replicas) != set(part.replicas):
            return f"is held by {sorted(replicas)}, not by {part.replicas}"
        end = (leader.high_watermark, leader.log.next_raft_position)
        late = [node for node, one in replicas.items() if (one.high_watermark, one.log.next_raft_position) != end]
        return f"lacks records on {late}" if late else ""

    def check_replicas(self) -> None:
        """The replicas of a partition have the same batches in the files that several have, unless they are compacted:
        each replica compacts by itself.
        """
        for topic in self.controller.topics.values():
            for index, part in enumerate(topic.partitions):
                truth = self.truths[topic.topic_id, index]
                if not truth.compacts and not self.config(topic.name).has_events and len(part.replicas) > 1:
                    self._check_same(topic.name, index)

    def _check_same(self, name: str, index: int) -> None:
        known: dict[int, int] = {}
        held: list[tuple[NodeId, int, dict[int, int]]] = []
        for member in self.members:
            entry, shard = member.table.find(name, index), member.shard
            if not isinstance(entry, Partition) or shard is None:
                continue
            checks: Any = SimpleNamespace(log=entry.log, group=entry.group, replica=member.replica)
            start = max(entry.log.start_offset, entry.log.first_local_offset)
            found = {base: crc for data in whole_log(shard, checks, start) for base, crc in _batches(data)}
            held.append((member.node_id, start, found))
            known |= found
        for node, start, found in held:
            wrong = [base for base, crc in known.items() if base >= start and found.get(base) != crc]
            if wrong:
                raise Violation(f"{name}/{index}: broker {node} has another batch, or none, at offset {min(wrong)}")

    # The controller

    def decide(self, request: Any) -> Any:
        """Have the controller decide, again while it is not there. Raises Refused with its sentence."""
        found, unknown = self._submitted(request), False
        for _ in range(TRIES):
            if not isinstance(found, MillstreamError):
                break
            unknown = True
            self.wait(SECOND)
            found = self._submitted(request)
        if isinstance(found, MillstreamError):
            raise Violation(f"the controller does not decide: {found}")
        first = found[0]
        repeated = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS)
        if first.error and not (unknown and first.error in repeated):
            raise Refused(first.message or first.error.name)
        return first

    def _submitted(self, request: Any) -> Any:
        """The results, or the error in their place."""
        answers: list[Any] = []
        self.until(lambda: bool(self.reached()), "no broker is reached")
        client = self.chance.choice(self.reached()).client
        if isinstance(request, requests.CreateTopics):
            client.create_topics(request.topics, answers.append, timeout_ms=30_000)
        elif isinstance(request, requests.CreatePartitions):
            client.create_partitions(request.topics, answers.append, timeout_ms=30_000)
        else:
            client.submit(request, answers.append)
        self.until(lambda: bool(answers), "the controller does not answer")
        return answers[0]

    # Where clients ask

    def leader(self, name: str, index: int) -> tuple[Member, Partition] | None:
        """The broker that leads a partition in the newest term, of those that are reached."""
        found: list[tuple[int, Member, Partition]] = []
        for one in self.reached():
            entry = one.table.find(name, index)
            if isinstance(entry, Partition) and not entry.refusal and entry.group.is_serving:
                found.append((entry.leader_epoch, one, entry))
        best = max(found, key=lambda one: one[0], default=None)
        return None if best is None else best[1:]

    def home(self, name: str, index: int) -> tuple[Member, Partition]:
        """The broker that leads, once there is one. Raises Refused if there can be none."""
        self.until(
            lambda: self.leader(name, index) is not None or self._is_hopeless(name, index),
            f"{name}/{index} has no leader",
        )
        found = self.leader(name, index)
        if found is None:
            raise Refused(NO_MAJORITY)
        return found

    def _is_hopeless(self, name: str, index: int) -> bool:
        """Whether a majority of the replicas is away for longer than a client waits."""
        topic = self.controller.topics.get(name)
        if topic is None or self.cluster.paused:
            return False
        replicas, group = topic.partitions[index].replicas, topic.partitions[index].raft_group
        failed = {one.node_id for one in self.reached() if group in one.table.failed}
        if len(replicas) == 1 and self.settings.shared_wal == "object" and not failed:
            return False  # another broker takes it over
        there = {one.node_id for one in self.reached()} - failed
        starts = {one.node_id for one in self.members if one.begins or (one.is_up and not one.is_ready)}
        return not _is_majority(there | starts, replicas) or self._grows_again(name, index, there | starts)

    def _grows_again(self, name: str, index: int, there: set[NodeId]) -> bool:
        """Whether a group that an unclean cut has left with one voter has few again, of whom no majority is there. A
        replica that is being filled does not know them.
        """
        entries = [one.table.find(name, index) for one in self.reached()]
        groups = [one.group for one in entries if isinstance(one, Partition) and not one.log.files.lost]
        voters = [one.configuration.voters for one in groups if isinstance(one, ReplicatedGroup)]
        return bool(voters) and not any(_is_majority(there, tuple(map(node_of, each))) for each in voters)

    def serving(self, name: str, index: int = 0) -> Partition:
        """A partition, once it is led."""
        return self.home(name, index)[1]

    def broker_of(self, name: str, index: int) -> Any:
        """The broker that leads a partition."""
        return self.home(name, index)[0]

    def coordinate(self, request: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        """Ask the coordinator of transactions."""
        member = self.home(TRANSACTION_STATE, 0)[0]
        ask_or_refuse(member.transactions.partitions.get(0), request(done))

    def groups(self) -> LocalGroups:
        """The groups of their coordinator."""
        return self.home(GROUP_METADATA, 0)[0].groups

    def next_producer_id(self, done: Callable[[Any], None]) -> None:
        """An id that no producer ever had."""
        self.reached()[0].producer_ids.next(done)


def _is_majority(there: set[NodeId], of: Sequence[int]) -> bool:
    return 2 * sum(node in there for node in of) > len(of)


class _Planted(Exception):
    """What no verb raises."""


def _raise() -> None:
    raise _Planted


def _batches(data: memoryview) -> Iterator[tuple[int, int]]:
    """Base offset and checksum of each batch."""
    at = 0
    while at < len(data):
        header = unpack_header(data, at)
        yield header[0], header[4]
        at += header[1] + OVERHEAD_BYTES
