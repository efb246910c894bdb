"""Brokers of the simulated world that run the production code: Raft shell, log, recovery, over a disk in memory.

::

    Cluster ── time, network ──► Broker: RaftShard ─ ReplicatedGroup ─ Log ─ ShardStorage ─ SimDisk
                                         (`local_storage` steps writer, worker and reactor)

A `Cluster` has one Raft group on one shard of each broker. Messages go through their bytes on the wire. Steps of a
broker take no time; which broker goes next is drawn, and time goes on when nobody can step. A disk takes time when it
is made to hang. A crash loses what `SimDisk` says, and a broker comes back through the production's recovery.

`Broker.parked` are the batches that wait for an acknowledgement; `History` knows what was acknowledged and committed,
and fails when two brokers disagree or something is lost.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.core.raft.messages import Configuration
from millstream.errors import MillstreamError
from millstream.format.segment import parse_batch
from millstream.iobuf import ArenaFull, IoBuf
from millstream.model.quantities import Offset, RaftGroupId
from millstream.model.replication import RaftPosition, ReplicaId, Seed, Term, replica_id
from millstream.peers.items import decode_items
from millstream.peers.raft_items import RaftItem, encode_raft
from millstream.raft.shard import RaftShard
from millstream.testing.local_storage import WRITER_LANE, LocalShard, plain_batch, recover_locally
from millstream.testing.sim_disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.options import RaftOptions
    from millstream.peers.items import Beat
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.storage.log.log import Log

GROUP = RaftGroupId(7)
BEGIN_US = 1_700_000_000_000_000
SEGMENT_BYTES = 8_000
READ_BYTES = 1 << 20


class Violation(AssertionError):
    """An invariant does not hold."""


class Parked(NamedTuple):
    """A batch whose acknowledgement waits."""

    end: RaftPosition
    term: Term
    base_offset: Offset
    value: int


class Committed(NamedTuple):
    """A batch that a replica announced as committed."""

    last_offset: int
    term: int
    crc: int


class History:
    """What clients of a cluster have seen."""

    def __init__(self, *, may_lose: bool) -> None:
        self.may_lose = may_lose
        """Write caching: what was acknowledged may be lost with a quorum's memory."""
        self.committed: dict[int, Committed] = {}
        """By base offset."""
        self.acknowledged: dict[int, int] = {}
        """Base offset of each value."""
        self.values: dict[int, int] = {}
        """Value of each base offset that was acknowledged."""
        self.leaders: dict[int, ReplicaId] = {}
        self.seen: Counter[str] = Counter()

    def on_lead(self, replica: ReplicaId, term: Term) -> None:
        """A replica leads (A1)."""
        other = self.leaders.setdefault(term, replica)
        if other != replica:
            raise Violation(f"A1: {other} and {replica} lead term {term}")
        self.seen["election"] += 1

    def on_committed(self, replica: ReplicaId, base_offset: int, batch: Committed) -> None:
        """A replica has a committed batch (A3, A5)."""
        before = self.committed.setdefault(base_offset, batch)
        if before != batch:
            raise Violation(f"A5: {replica} has {batch} committed at offset {base_offset}, another one {before}")

    def on_acknowledged(self, batch: Parked) -> None:
        """A client has the answer that its batch is committed."""
        other = self.values.get(batch.base_offset, batch.value)
        if other != batch.value and not self.may_lose:
            raise Violation(f"C1: {other} and {batch.value} are both acknowledged at offset {batch.base_offset}")
        self.acknowledged[batch.value] = batch.base_offset
        self.values[batch.base_offset] = batch.value
        self.seen["acknowledgement"] += 1


class Broker:
    """One broker. ``shard`` is None while it is down.

    Lifecycle: `start`, `crash`, `start` …; the disk stays.
    """

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.replica = replica_id(node_id)
        self.disk = SimDisk(cluster.chance(f"disk {node_id}"))
        self.shard: LocalShard | None = None
        self.raft: RaftShard
        self.group: ReplicatedGroup
        self.parked: list[Parked] = []
        self.announced = 0
        """End of what was announced as committed, as an offset."""
        self.durable: RaftPosition = RaftPosition(0)
        """End of what the log reported as synced in this life."""
        self.clean_stop = False
        self.idle = False
        """Nothing to do before something arrives or time goes on."""

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
        report = recover_locally(self.disk, segment_bytes=SEGMENT_BYTES, now_ms=cluster.now // 1000, replicated=True)
        shard = LocalShard(
            self.disk,
            cluster.chance(f"steps {self.replica}"),
            now_ms=cluster.now // 1000,
            clean=report.clean,
            settings={"checkpoint_bytes": cluster.checkpoint_bytes},
        )
        shard.reactor.advance(cluster.now - shard.reactor.now_us())
        self.shard = shard
        self.raft = RaftShard(shard.reactor, self.replica, self, cluster.draw_seed, cluster.options)
        log = shard.open(GROUP, replicated=True, segment_bytes=SEGMENT_BYTES)
        if log.next_raft_position < self.durable:
            raise Violation(f"A10: {self.replica} comes up at {log.next_raft_position}, was durable to {self.durable}")
        self.group = self.raft.open(GROUP, log, cluster.first)
        self.group.write_caching = cluster.write_caching
        self.announced = self.group.high_watermark
        events = self.group.events
        events.on_commit = self._on_commit
        events.on_lead = lambda term: cluster.history.on_lead(self.replica, term)
        events.on_resign = self.parked.clear
        events.on_truncate = self._on_truncate
        self.idle = False

    def crash(self, *, torn: bool = True) -> None:
        """Lose what is not synced."""
        assert self.shard is not None
        self.durable = self.log.durable_end.raft_position
        self.shard = None
        self.parked.clear()
        self.disk.crash(torn=torn)

    def step(self) -> None:
        """Do one thing."""
        assert self.shard is not None
        self.idle = not self.shard.step()

    def hang_disk(self, duration_us: int) -> None:
        """The write-ahead log gets nothing done for so long."""
        assert self.shard is not None
        self.shard.helpers.hang(WRITER_LANE, duration_us)

    def append(self, value: int, count: int = 1, size: int = 0) -> bool:
        """Append a batch; false if it is refused."""
        body = value.to_bytes(8, "big") + bytes(size)
        batch = plain_batch(0, count, body, timestamp=value)
        self.idle = False
        try:
            base = self.group.replicate((memoryview(bytearray(batch)),), len(batch), count, value)
        except (MillstreamError, ArenaFull):
            return False
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

    # Transport

    def send(self, to: ReplicaId, item: RaftItem, body: IoBuf | None = None) -> bool:
        """Put a message on the wire."""
        data = body.copy(0, len(body)) if body is not None else b""
        if body is not None:
            body.release()
        assert len(data) == item.body_bytes
        head = encode_raft(item.group, item.message, len(data))
        self.cluster.send(self.replica, to, lambda broker: broker.receive(self.replica, head, data))
        return True

    def beats(self, to: ReplicaId, beats: Sequence[Beat], *, reply: bool) -> None:
        """Put heartbeats on the wire."""
        beats = tuple(beats)
        self.cluster.send(self.replica, to, lambda broker: broker.raft.on_beats(self.replica, beats, reply))

    def receive(self, sender: ReplicaId, head: bytes, body: bytes) -> None:
        """Messages have arrived."""
        for item in decode_items(head, len(body)):
            assert isinstance(item, RaftItem)
            self.raft.on_raft(sender, item, (memoryview(body),) if body else ())

    # What the group announces

    def _on_commit(self, high_watermark: int) -> None:
        history = self.cluster.history
        found = self.log.read(Offset(self.announced), Offset(high_watermark), 1 << 30, minimum_one=True)
        if found is not None:
            self._compare(found)
        self.announced = high_watermark
        position = self.log.controls.position_of(Offset(high_watermark))
        while self.parked and self.parked[0].end <= position:
            history.on_acknowledged(self.parked.pop(0))

    def _on_truncate(self, offset: Offset) -> None:
        self.cluster.history.seen["truncation"] += 1
        if offset < self.announced and not self.cluster.write_caching:
            raise Violation(f"A9: {self.replica} cuts to {offset} below its committed end {self.announced}")
        self.announced = min(self.announced, offset)

    def _compare(self, found: IoBuf) -> int:
        """Hold committed batches against what others have; the offset at which they end."""
        data = memoryview(found.copy(0, len(found)))
        found.release()
        at, end = 0, self.announced
        while at < len(data):
            batch = parse_batch(data, at, at, len(data))
            if not self.cluster.write_caching:
                committed = Committed(batch.last_offset, batch.leader_epoch, batch.crc)
                self.cluster.history.on_committed(self.replica, batch.base_offset, committed)
            at += batch.size
            end = batch.last_offset + 1
        return end

    def check_whole_log(self) -> None:
        """Read everything that is committed, from memory or from the segments, and compare it."""
        shard = self.shard
        assert shard is not None
        offset, end = int(self.log.start_offset), self.group.high_watermark
        batches: dict[int, int] = {}
        while offset < end:
            found: Any = self.log.read(Offset(offset), Offset(end), READ_BYTES, minimum_one=True)
            if found is None:
                found = shard.call(self.log.read_cold, Offset(offset), Offset(end), READ_BYTES, True)
                if isinstance(found, MillstreamError):
                    raise Violation(f"{self.replica} can't read offset {offset} of {end}: {found}")
            data = memoryview(found.copy(0, len(found)))
            found.release()
            if not data:
                raise Violation(f"A5: {self.replica} has announced {end}, and its log ends at {offset}")
            at = 0
            while at < len(data):
                batch = parse_batch(data, at, at, len(data))
                if not batch.base_offset <= offset <= batch.last_offset or (at and batch.base_offset != offset):
                    raise Violation(f"{self.replica} has offset {batch.base_offset} after the end {offset}")
                committed = Committed(batch.last_offset, batch.leader_epoch, batch.crc)
                self.cluster.history.on_committed(self.replica, batch.base_offset, committed)
                batches[batch.base_offset] = batch.max_timestamp
                at += batch.size
                offset = batch.last_offset + 1
        if not self.cluster.history.may_lose:
            self._check_acknowledged(batches, end)

    def _check_acknowledged(self, batches: dict[int, int], end: int) -> None:
        history = self.cluster.history
        for base, value in history.values.items():
            if self.log.start_offset <= base < end and batches.get(base) != value:
                raise Violation(f"C1: the acknowledged batch {value} at offset {base} is lost on {self.replica}")
        if history.values and end <= max(history.values):
            raise Violation(f"C1: {self.replica} has {end} committed, {max(history.values)} is acknowledged")


class Cluster:
    """Brokers, their network and time, from one seed.

    Lifecycle: made with all brokers up. Invariant: time goes on only when no broker can step.
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
    ) -> None:
        self.seed = seed
        self.now = BEGIN_US
        self.options = options
        self.delay_us = delay_us
        self.write_caching = write_caching
        self.checkpoint_bytes = checkpoint_bytes
        self.loss = 0.0
        self.cut: set[tuple[ReplicaId, ReplicaId]] = set()
        """Ordered pairs between which nothing passes."""
        self.paused: dict[Broker, int] = {}
        """Brokers whose process is stopped, and until when."""
        self.history = History(may_lose=write_caching)
        self.steps = 0
        self._streams: dict[str, random.Random] = {}
        self._arrivals: list[tuple[int, int, ReplicaId | None, Callable[..., None]]] = []
        self._count = 0
        self.brokers = {replica_id(node): Broker(self, node) for node in range(1, nodes + 1)}
        self.first = Configuration(tuple(self.brokers))
        for broker in self.brokers.values():
            broker.start()

    def chance(self, stream: str) -> random.Random:
        """The random numbers of one purpose."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = self.stream(self.seed, stream)
        return found

    @staticmethod
    def stream(seed: int, name: str) -> random.Random:
        """Random numbers of a seed for one purpose."""
        return random.Random(f"{seed}/{name}")

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

    def _push(self, at_us: int, to: ReplicaId | None, deliver: Callable[..., None]) -> None:
        self._count += 1
        heapq.heappush(self._arrivals, (at_us, self._count, to, deliver))

    def leader(self) -> Broker | None:
        """The broker that serves in the newest term."""
        serving = [one for one in self.brokers.values() if one.is_up and one.group.is_serving]
        return max(serving, key=lambda one: one.group.term, default=None)

    def run(self, until: Callable[[], bool] | None = None, limit_us: int = 60_000_000) -> bool:
        """Let things happen until ``until`` holds; false if it does not within ``limit_us``."""
        end_us = self.now + limit_us
        chance = self.chance("schedule")
        while until is None or not until():
            active = [one for one in self.brokers.values() if one.is_up and not one.idle and one not in self.paused]
            if active:
                self.steps += 1
                (active[0] if len(active) == 1 else chance.choice(active)).step()
            elif not self._advance(end_us):
                return until is None
        return True

    def _advance(self, end_us: int) -> bool:
        """Let time go on to the next thing that happens; false if that is after ``end_us``."""
        due = self._arrivals[0][0] if self._arrivals else end_us + 1
        for broker in self.brokers.values():
            if broker.shard is not None and broker not in self.paused:
                timer = broker.shard.reactor.next_due_us()
                due = min(due, timer) if timer is not None else due
        due = min([due, *self.paused.values()])
        if due > end_us:
            self._set_time(end_us)
            return False
        self._set_time(max(due, self.now))
        for broker, until_us in list(self.paused.items()):
            if until_us <= self.now:
                del self.paused[broker]
                self._set_time(self.now)
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, _, to, deliver = heapq.heappop(self._arrivals)
            self._deliver(to, deliver)
        for broker in self.brokers.values():
            if broker.shard is not None and broker not in self.paused:
                while broker.shard.reactor.sleep(self.now):
                    broker.idle = False
        return True

    def _deliver(self, to: ReplicaId | None, deliver: Callable[..., None]) -> None:
        if to is None:
            deliver()
            return
        broker = self.brokers[to]
        if broker in self.paused:
            self._push(self.paused[broker] + 1, to, deliver)
        elif broker.is_up:
            deliver(broker)
            broker.idle = False

    def _set_time(self, now: int) -> None:
        self.now = now
        for broker in self.brokers.values():
            if broker.shard is not None and broker not in self.paused:
                reactor = broker.shard.reactor
                reactor.advance(max(0, now - reactor.now_us()))

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
            states = [(one.replica, one.group.role, one.group.term, one.announced) for one in self.brokers.values()]
            raise Violation(f"G4: no agreement after {limit_us} us: {states}")
        for broker in self.brokers.values():
            broker.check_whole_log()

    def _agree(self) -> bool:
        leader = self.leader()
        if leader is None or leader.group.committed_position != leader.group.end_position:
            return False
        return all(
            one.group.committed_position == leader.group.committed_position
            and one.log.next_raft_position == leader.log.next_raft_position
            for one in self.brokers.values()
        )
