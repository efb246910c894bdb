"""Brokers of the simulated world that run the production code: Raft shell, log, recovery, over a disk in memory.

::

    Cluster ── time, network ──► Broker: RaftShard ─ ReplicatedGroup ─ Log ─ ShardStorage ─ SimDisk
                                         (`local_storage` steps writer, worker and reactor)

A `Cluster` has one Raft group on one shard of each broker. Messages go through their bytes on the wire. Steps of a
broker take no time; which broker goes next is drawn, and time passes when no broker can step. A disk takes time when it
is made to hang. A crash loses what `SimDisk` says, and a broker comes back through the production's recovery.

`Broker.parked` are the batches that wait for an acknowledgement. `judge` knows what was acknowledged and
committed, and fails when two brokers disagree or something is lost. `served` puts a broker's partitions and
coordinators on the groups.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.core.raft.messages import Configuration
from millstream.core.raft.quorum import members
from millstream.errors import MillstreamError
from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset, RaftGroupId
from millstream.model.replication import RaftPosition, ReplicaId, Seed, Term, replica_id
from millstream.raft.shard import TRY_AGAIN_US, RaftShard
from sim.brokers.judge import Checks, History, whole_log
from sim.brokers.wire import Wire
from sim.engine.disk import SimDisk
from sim.engine.local_storage import WRITER_LANE, LocalShard, Stopped, plain_batch, recover_locally
from sim.engine.timeline import Streams, Timeline
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.options import RaftOptions
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.log.log import Log
    from millstream.storage.recovery.recovery import RecoveryReport

GROUP = RaftGroupId(70_007)
"""Far from those of topics that a controller makes."""
BEGIN_US = 1_700_000_000_000_000
SEGMENT_BYTES = 8_000


class Parked(NamedTuple):
    """A batch whose acknowledgement waits."""

    end: RaftPosition
    term: Term
    base_offset: Offset
    value: int


class Broker(Wire):
    """One broker with one group. ``shard`` is None while it is down.

    Lifecycle: `start`, `crash`, `start` …; the disk stays.
    """

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.replica = replica_id(node_id)
        self.disk = SimDisk(cluster.chance(f"disk {node_id}"))
        self.shard: LocalShard | None = None
        self.raft: RaftShard
        self.group: ReplicatedGroup
        self.checks: list[Checks] = []
        """One for each group since the last start."""
        self.parked: list[Parked] = []
        self.life = 0
        self.idle = False
        """Nothing to do until something arrives or time passes."""

    @property
    def log(self) -> Log:
        """The group's log."""
        return self.group.log

    @property
    def is_up(self) -> bool:
        """Whether the broker runs."""
        return self.shard is not None

    def start(self) -> None:
        """Recover and come up."""
        cluster = self.cluster
        report = self.recover()
        shard = self.make_shard(clean=report.clean)
        shard.reactor.advance(cluster.now - shard.reactor.now_us())
        self.shard = shard
        self.raft = RaftShard(shard.reactor, self.replica, self, cluster.draw_seed, cluster.options)
        self.life += 1
        self.parked.clear()
        self.checks = []
        self.open_groups(shard, clean=report.clean)
        self.idle = False

    def make_shard(self, *, clean: bool) -> LocalShard:
        """The storage of a life."""
        return LocalShard(
            self.disk,
            self.cluster.chance(f"steps {self.replica}"),
            now_ms=self.cluster.now // 1000,
            clean=clean,
            settings={"checkpoint_bytes": self.cluster.checkpoint_bytes},
        )

    def recover(self) -> RecoveryReport:
        """Recover the disk."""
        now_ms = self.cluster.now // 1000
        return recover_locally(self.disk, segment_bytes=SEGMENT_BYTES, now_ms=now_ms, replicated=True)

    def open_groups(self, shard: LocalShard, *, clean: bool) -> None:
        """Open what this broker has a replica of, and check it from now on."""
        _ = clean
        log = shard.open(GROUP, replicated=True, **{"segment_bytes": SEGMENT_BYTES, **self.cluster.config})
        self.group = self.raft.open(GROUP, log, self.cluster.first)
        self.group.write_caching = self.cluster.write_caching
        self.group.events.on_resign = self.parked.clear
        self.group.events.on_commit = self._on_commit
        self.group.events.on_install = self._on_install
        self.check(self.cluster.history, self.group)

    def check(self, history: History, group: ReplicatedGroup) -> None:
        """Check a group whose owner has set its events."""
        self.checks.append(Checks(history, self.replica, group))

    def crash(self, *, torn: bool = True) -> None:
        """Lose what is not synced."""
        assert self.shard is not None
        self.shard = None
        self.disk.crash(torn=torn)

    def step(self) -> None:
        """Do one thing."""
        assert self.shard is not None
        self.idle = not self.shard.step()
        for checks in self.checks:
            if checks.log.next_offset > checks.known_end:
                checks.look()

    def wake(self) -> None:
        """Let all timers go off that are due."""
        shard = self.shard
        while shard is not None and self.shard is shard and shard.reactor.sleep(self.cluster.now):
            self.idle = False

    def leads(self, group: int) -> bool:
        """Whether the broker leads a group, of which it may have no replica at the moment."""
        found = self.raft.groups.get(RaftGroupId(group))
        return found is not None and found.core.leads

    def hang_disk(self, duration_us: int) -> None:
        """The write-ahead log gets nothing done for so long."""
        assert self.shard is not None
        self.shard.processes.hang(WRITER_LANE, duration_us)

    def append(self, value: int, count: int = 1, size: int = 0) -> bool:
        """Append a batch; false if it is refused."""
        body = value.to_bytes(8, "big") + bytes(size)
        batch = plain_batch(0, count, body, timestamp=value)
        self.idle = False
        try:
            base = self.group.replicate((memoryview(bytearray(batch)),), len(batch), count, value)
        except (MillstreamError, ArenaFull):
            return False
        self.cluster.history.sent.add(value)
        self.parked.append(Parked(self.group.end_position, self.group.term, base, value))
        return True

    def propose_log_start(self, offset: int) -> None:
        """Ask for another log start; a refusal changes nothing."""
        self.idle = False
        with suppress(MillstreamError, ArenaFull):
            self.group.propose_log_start(Offset(offset))

    def transfer(self, to: ReplicaId) -> None:
        """Ask for another leader; a refusal changes nothing."""
        self.idle = False
        with suppress(MillstreamError):
            self.group.transfer(to)

    def _on_install(self, files: StagedFiles) -> None:
        """Take the replica down, adopt the files, and open it again."""
        shard, log = self.shard, self.log
        assert shard is not None
        self.replaces_files(self.group, files)
        self.raft.close(self.group)

        def adopted() -> None:
            if self.shard is shard:
                self.checks = []
                self.open_groups(shard, clean=False)

        def attempt() -> None:
            if self.shard is not shard:
                return
            try:
                shard.storage.adopt_log(log, files.directory, files.end, files.end_offset, adopted)
            except ArenaFull:
                shard.reactor.call_later(TRY_AGAIN_US, attempt)

        attempt()

    def replaces_files(self, group: ReplicatedGroup, files: StagedFiles) -> None:
        """The log of a group is about to be replaced: of what it had, only what ``files`` have was promised."""
        self.cluster.histories[group.group].seen["install"] += 1
        for checks in self.checks:
            if checks.group is group:
                checks.replaced_by = files.end.position

    def _on_commit(self, high_watermark: int) -> None:
        history = self.cluster.history
        position = self.log.raft.controls.position_of(Offset(high_watermark))
        while self.parked and self.parked[0].end <= position:
            parked = self.parked.pop(0)
            history.on_acknowledged(parked.value, parked.base_offset, parked.base_offset + 1, parked.term)

    def check_whole_logs(self) -> None:
        """Read everything that is committed, from memory or from the segments, and compare it."""
        for checks in self.checks:
            if not checks.group.closed:
                self._check_whole(checks)

    def _check_whole(self, checks: Checks) -> None:
        assert self.shard is not None
        while True:
            start = offset = int(checks.log.start_offset)
            try:
                for data in whole_log(self.shard, checks):
                    offset = checks.compare_whole(data, offset)
                break
            except Violation:
                if checks.log.start_offset == start:
                    raise  # otherwise records were deleted while they were read
        if not checks.history.may_lose:
            checks.history.check_acknowledged(self.replica, checks.log.start_offset, checks.group.high_watermark)


class Cluster:
    """Brokers, their network and time, from one seed.

    Lifecycle: made with all brokers up. Invariant: time passes only when no broker can step.
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        *,
        options: RaftOptions | None = None,
        delay_us: int = 500,
        write_caching: bool = False,
        checkpoint_bytes: int = 64 * 1024,
        make: Callable[[Cluster, int], Broker] | None = None,
        more: Sequence[RaftGroupId] = (),
        config: dict[str, Any] | None = None,
        begin_us: int = BEGIN_US,
    ) -> None:
        """``make(cluster, node id)`` makes a broker that is more than a `Broker`; its clients number their batches.
        ``more`` are the other groups that each such broker has. ``config`` is of the topic.
        """
        self.seed = seed
        self.now = begin_us
        self.options = options
        self.delay_us = delay_us
        self.write_caching = write_caching
        self.checkpoint_bytes = checkpoint_bytes
        self.config = config or {}
        self.loss = 0.0
        self.cut: set[tuple[ReplicaId, ReplicaId]] = set()
        """Ordered pairs between which nothing passes."""
        self.paused: dict[Broker, int] = {}
        """Brokers whose process is stopped, and until when."""
        self.history = History(may_lose=write_caching, numbered=make is not None)
        """Of the group that clients use."""
        self.histories: dict[int, History] = {GROUP: self.history}
        """By group."""
        self.state_hashes: dict[int, bytes] = {}
        """Of the controller's state at each revision, as the first broker that applied it had it."""
        for group in more:
            self.history_of(group)
        self.producer_ids = itertools.count(100_000)
        """What a controller would hand out."""
        self.on_stopped: Callable[[Broker, Stopped], None] | None = None
        """Called when a broker stops by itself; without it that is an error."""
        self.on_turn: Callable[[Broker], None] | None = None
        """Called with the broker that takes the next step."""
        self.steps = 0
        self.operations = 0
        """Requests of clients."""
        self.chance = Streams(seed)
        """The random numbers of one purpose."""
        self._arrivals: Timeline[tuple[ReplicaId | None, Callable[..., None]]] = Timeline()
        self.brokers = {replica_id(node): (make or Broker)(self, node) for node in range(1, nodes + 1)}
        self.first = Configuration(tuple(self.brokers))
        self.trace = seed
        """Hash over everything that arrived, and when; a replay has the same."""
        for broker in self.brokers.values():
            broker.start()

    def draw_seed(self) -> Seed:
        """A seed for the waits of a replica."""
        return Seed(self.chance("waits").getrandbits(64))

    def send(self, sender: ReplicaId, to: ReplicaId, deliver: Callable[[Broker], None]) -> None:
        """Give a message to the network."""
        if (sender, to) in self.cut or (self.loss and self.chance("network").random() < self.loss):
            return
        delay = self.delay_us // 2 + self.chance("network").randrange(self.delay_us)
        self._push(self.now + delay, to, deliver)

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Do something later."""
        self._push(self.now + delay_us, None, do)

    def history_of(self, group: RaftGroupId) -> History:
        """What was seen of a group, maybe a new one."""
        found = self.histories.get(group)
        if found is None:
            found = self.histories[group] = History(may_lose=False, numbered=False)
        return found

    def send_at(self, at_us: int, to: ReplicaId, deliver: Callable[[Broker], None]) -> None:
        """Let a client's message arrive then."""
        self._push(at_us, to, deliver)

    def _push(self, at_us: int, to: ReplicaId | None, deliver: Callable[..., None]) -> None:
        self._arrivals.add(at_us, (to, deliver))

    def leader(self) -> Broker | None:
        """The broker that serves in the newest term."""
        serving = [one for one in self.brokers.values() if one.is_up and one.group.is_serving]
        return max(serving, key=lambda one: one.group.term, default=None)

    def run(self, until: Callable[[], bool] | None = None, limit_us: int = 60_000_000) -> bool:
        """Let things happen until ``until`` holds; false if it does not within ``limit_us``."""
        end_us = self.now + limit_us
        chance = self.chance("schedule")
        while until is None or not until():
            active = [one for one in self.brokers.values() if not one.idle and one.shard is not None]
            if self.paused:
                active = [one for one in active if one not in self.paused]
            if active:
                self.steps += 1
                broker = active[0] if len(active) == 1 else chance.choice(active)
                self._let(broker, broker.step)
            elif not self._advance(end_us):
                return until is None
        return True

    def _advance(self, end_us: int) -> bool:
        """Let time pass to the next event; false if that is after ``end_us``."""
        due = self._arrivals.due_us()
        if due is None:
            due = end_us + 1
        timers: list[tuple[int, Broker]] = []
        for broker in self.brokers.values():
            if broker.shard is not None and broker not in self.paused:
                timer = broker.shard.reactor.next_due_us()
                if timer is not None:
                    timers.append((timer, broker))
                    due = min(due, timer)
        if self.paused:
            due = min([due, *self.paused.values()])
        if due > end_us:
            self._set_time(end_us)
            return False
        self._set_time(max(due, self.now))
        if self.paused:
            self._resume()
        while (due_us := self._arrivals.due_us()) is not None and due_us <= self.now:
            self._deliver(*self._arrivals.pop())
        for timer, broker in timers:
            if timer <= self.now and broker.shard is not None and broker not in self.paused:
                self._let(broker, broker.wake)
        return True

    def _let(self, broker: Broker, do: Callable[[], None]) -> None:
        """Let a broker do something, after which it may have stopped by itself."""
        if self.on_turn is not None:
            self.on_turn(broker)
        try:
            do()
        except Stopped as stopped:
            if self.on_stopped is None:
                raise
            self.on_stopped(broker, stopped)

    def _resume(self) -> None:
        """Resume the processes whose pause is over; their timers may be overdue."""
        for broker, until_us in list(self.paused.items()):
            if until_us <= self.now:
                del self.paused[broker]
                self._set_time(self.now)
                broker.idle = False

    def _deliver(self, to: ReplicaId | None, deliver: Callable[..., None]) -> None:
        self.trace = hash((self.trace, self.now, self.steps, -1 if to is None else to))
        if to is None:
            deliver()
            return
        broker = self.brokers[to]
        if broker in self.paused:
            self._push(self.paused[broker] + 1, to, deliver)
        elif broker.is_up:
            broker.idle = False
            self._let(broker, lambda: deliver(broker))

    def _set_time(self, now: int) -> None:
        self.now = now
        for broker in self.brokers.values():
            if broker.shard is not None and broker not in self.paused:
                broker.shard.reactor.reach(now)

    # Checks

    def heal(self) -> None:
        """End every fault and bring everybody up."""
        self.cut.clear()
        self.loss = 0.0
        self.paused.clear()
        for broker in self.brokers.values():
            if not broker.is_up:
                broker.start()

    def settle(self, limit_us: int = 60_000_000) -> None:
        """Wait until a leader serves and every broker has committed everything; then compare all of it."""
        if not self.run(self._agree, limit_us):
            states = [
                (one.replica, each.group.role, each.group.term, each.announced)
                for one in self.brokers.values()
                for each in one.checks
            ]
            raise Violation(f"G4: no agreement after {limit_us} us: {states}")
        for broker in self.brokers.values():
            broker.check_whole_logs()

    def _agree(self) -> bool:
        return all(map(self._agree_on, self.histories))

    def _agree_on(self, number: int) -> bool:
        found = {one.replica: one.raft.groups[number] for one in self.brokers.values() if number in one.raft.groups}
        groups = found.values()
        if self.histories[number].deleted:
            return not groups
        leader = max((one for one in groups if one.is_serving), key=lambda one: one.term, default=None)
        if leader is None or leader.committed_position != leader.end_position:
            return False
        if set(found) != set(members(leader.configuration)):
            return False  # one of them is adopting files, is down, or has not left yet
        return all(
            one.committed_position == leader.committed_position
            and one.log.next_raft_position == leader.log.next_raft_position
            for one in groups
        )
