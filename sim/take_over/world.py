"""A history from one seed: brokers, the controller's commands, the store, faults and heals."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from uuid import UUID

from millstream.cluster.take_overs import TakeOvers
from millstream.config.settings import Settings
from millstream.core.controller.commands import FEATURE_LEVEL, ClusterCreated, FeatureLevelRaised, ReplicasChanged
from millstream.core.controller.decide import decide
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import CreateTopic, CreateTopics, FenceBroker, RestorePartitions, UnfenceBroker
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import MillstreamError
from millstream.format.manifest import ArchiveId
from millstream.format.segment import parse_batch
from millstream.model.events import PartitionIndex
from millstream.model.shared import SharedPartition
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import stored_entries
from millstream.tiers.sweeping import longest_chain, stored_ranges
from sim.archive.store import JudgedStore, WorldStore, data_of
from sim.brokers.judge import whole_log
from sim.engine.histories import attempt
from sim.engine.local_storage import Stopped
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND, Timeline, stream
from sim.engine.violation import Violation
from sim.take_over.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.core.controller.commands import AnyCommand, PartitionState
    from millstream.core.controller.requests import AnyRequest, Results
    from millstream.model.cluster import NodeId
    from sim.engine.histories import Counts, Finding
    from sim.take_over.broker import Appended, Served

BEGIN_US: Final = 1_700_000_000_000_000
NODES: Final = (1, 2, 3, 4)
AFTER_MS: Final = 2_000
"""``dead.broker.take.over.after.ms``."""

FENCE_US: Final = SECOND
HEAL_US: Final = 120 * SECOND
_BODY: Final = 61
"""Where the records of a batch start: its value."""


class Judge:
    """What was acknowledged, by partition and offset."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[int, dict[int, bytes]] = {}
        self._asked: Counter[int] = Counter()
        """The highest log start that was asked for, by group."""
        self._deleted: Counter[int] = Counter()
        """The highest that was answered."""

    def asked(self, group: int, start: int) -> None:
        """A client asks for a log start."""
        self._asked[group] = max(self._asked[group], start)

    def deleted(self, group: int, start: int) -> None:
        """A broker has answered that everything below it is deleted."""
        self._world.note("deleted")
        self._deleted[group] = max(self._deleted[group], start)

    def acknowledged(self, group: int, record: Appended, node: NodeId) -> None:
        """A broker has acknowledged a record."""
        known = self._known.setdefault(group, {})
        self._world.note("acknowledged")
        if known.setdefault(record.offset, record.value) != record.value:
            raise Violation(f"E4: offset {record.offset} of group {group} is acknowledged twice, now by broker {node}")

    def check(self, group: int, served: Served, broker: Broker) -> None:
        """The partition has everything that was acknowledged."""
        start = served.log.start_offset
        if not self._deleted[group] <= start <= self._asked[group]:
            bounds = f"{self._deleted[group]} was answered and {self._asked[group]} asked for"
            raise Violation(f"A2: the log of {group} starts at {start} on broker {broker.node}, {bounds}")
        found = dict(_archived(self._world, group, served)) | dict(_records(broker, served))
        for offset, value in self._known.get(group, {}).items():
            if offset >= start and found.get(offset) != value:
                there = "another record" if offset in found else "nothing"
                raise Violation(f"A1: broker {broker.node} has {there} at the acknowledged offset {offset} of {group}")


def _archived(world: World, group: int, served: Served) -> Iterable[tuple[int, bytes]]:
    """The same of what is in objects, as a recovery from the store alone finds it."""
    store, owner = world.store.judged, world.owner(group)
    ranges = stored_ranges(store).get(SharedPartition(owner.topic_id.bytes, owner.partition_index), [])
    chain = longest_chain(ranges)
    if served.archived_end > max(chain[-1].segment.end_offset if chain else 0, served.log.start_offset):
        raise Violation(f"F8: the archive of {group} ends at {served.archived_end}, and objects have less")
    for one in chain:
        yield from _batches(data_of(store, owner, one.segment))


def _batches(data: memoryview) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        batch = parse_batch(data, at, at, len(data))
        yield batch.base_offset, bytes(data[at + _BODY : at + batch.size])
        at += batch.size


def _records(broker: Broker, served: Served) -> Iterable[tuple[int, bytes]]:
    """Offsets and values of all that is announced and in files."""
    shard, log = broker.shard, served.log
    assert shard is not None
    checks: Any = SimpleNamespace(log=log, group=served.group, replica=broker.node)
    for data in whole_log(shard, checks, max(log.first_local_offset, log.start_offset)):
        yield from _batches(data)


class World:
    """One history. Lifecycle: made from a seed; `run` once."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.seed = seed
        self.chance = chance = stream(seed, "take-overs")
        self.now = BEGIN_US
        self.trace: deque[str] = deque(maxlen=120)
        self._seen = seen
        self._events: Timeline[tuple[Callable[..., None], tuple[Any, ...]]] = Timeline()
        self._delay_us = chance.choice((1_000, 20_000, 400_000))
        self._upload_share: float = chance.choice((0.0, 0.02, 0.2))
        self._deletions = stream(seed, "deletions")
        self._quiet_until: dict[int, int] = {}
        """No client writes to a group until then, so that no batch carries the start of its log."""
        self._deletes = self._deletions.random() < 0.7
        self._haste = chance.choice((0.3, 0.02))
        """Chance per step that a broker applies a command."""
        judged = JudgedStore((), lambda: self.now // 1000)
        self.store = WorldStore(judged, chance, Faults(), self.later)
        self.judge = Judge(self)
        self.state = ControllerState()
        self.commands: list[AnyCommand] = []
        self._settings = Settings(
            data_dir="/data", objects_url="s3://world", dead_broker_take_over_after_ms=AFTER_MS, shared_wal="object"
        )
        self._left_revision = 0
        self._terms: Counter[int] = Counter()
        self._value = 0
        self.leaders: dict[int, NodeId] = {}
        self._append(ClusterCreated("world", 1))
        self._append(FeatureLevelRaised(FEATURE_LEVEL))
        self.brokers = {node: Broker(self, node) for node in NODES}
        self.groups: tuple[int, ...] = ()
        self.take_overs: TakeOvers | None = None
        self._decides: tuple[Broker, int] | None = None
        self._silent_since: dict[int, int] = {}
        self._kinds = (self._kill,) * 4 + (self._pause,) * 3 + (self._away,)
        self._switches = chance.random() < 0.3
        if self._switches:
            for broker in self.brokers.values():
                broker.in_store = chance.random() < 0.5

    # Time

    def after(self, delay_us: int, do: Callable[..., None], *arguments: Any) -> None:
        """Do something then."""
        self._events.add(self.now + delay_us, (do, arguments))

    def later(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something in a while."""
        self.after(int(self.chance.expovariate(1.0) * self._delay_us) + 1, do, *arguments)

    def note(self, what: str, about: str = "") -> None:
        """Remember that something happened."""
        self._seen[what] += 1
        self.trace.append(f"{(self.now - BEGIN_US) / SECOND:9.3f} {what}{about}")

    def _step(self) -> None:
        """Every broker does some things, and time goes by."""
        for broker in self.brokers.values():
            for _ in range(self.chance.randrange(12)):
                if broker.up and not broker.paused:
                    broker.step()
        self.now += self.chance.choice((200, 2_000, 10_000))
        while (due_us := self._events.due_us()) is not None and due_us <= self.now:
            do, arguments = self._events.pop()
            do(*arguments)
        for broker in self.brokers.values():
            if broker.up and not broker.paused:
                broker.wait(self.now)
                if broker.applied < len(self.commands) and self.chance.random() < self._haste:
                    broker.apply()

    # The controller

    def _append(self, command: AnyCommand) -> None:
        self.state.apply(command)
        self.commands.append(command)
        if isinstance(command, ReplicasChanged):
            self._left_revision = len(self.commands)

    def decide(self, request: AnyRequest) -> Results:
        """The controller decides at once; the commands are committed."""
        node = 0 if self._decides is None else self._decides[0].node
        rules = Rules(node, self._settings, self._settings, lambda: self.chance.randbytes(16), 1, self._is_behind)
        decision = decide(self.state, request, rules)
        for command in decision.commands:
            self._append(command)
            self.note(type(command).__name__, f" {command}"[:200])
        return decision.results

    def _is_behind(self, node: NodeId) -> bool:
        return self.brokers[node].applied < self._left_revision

    def _tick(self) -> None:
        """The controller fences, unfences and takes over; another broker is it when that one is not there."""
        decides = self._decides
        if decides is None or decides[0].life != decides[1] or (decides[0].paused and self.chance.random() < 0.1):
            self._choose()
        self._watch()
        if self._decides is not None and self.take_overs is not None and not self._decides[0].paused:
            self.take_overs.carry_out(self.state)
        self.after(100_000, self._tick)

    def _choose(self) -> None:
        self._decides = None
        able = [one for one in self.brokers.values() if one.ready and not one.paused and one.link is not None]
        if not able:
            return
        broker = self.chance.choice(able)
        self._decides = broker, broker.life
        cache: Any = SimpleNamespace(settings=self._settings, topic_by_id=self._topic_by_id, leader_of=_leader)
        self.take_overs = TakeOvers(cache, lambda: self.now, self._submit, StatsSlab().gauge("take_over_waiting"))
        assert broker.link is not None
        self.take_overs.end_lives = broker.link.end_lives
        self.take_overs.begin()
        self.note(f"broker {broker.node} decides")

    def _submit(self, request: AnyRequest, done: Callable[[Results | MillstreamError], None]) -> None:
        """Of the controller itself: decided now, answered when it is applied."""
        results = self.decide(request)
        if isinstance(request, RestorePartitions) and results[0].partitions > 0:
            self.note("taken over")
        self.later(done, results)

    def _topic_by_id(self, topic_id: bytes) -> Any:
        topic = self.state.topics.by_id[topic_id]
        parts = [
            SimpleNamespace(replicas=part.replicas, leader=self.leaders.get(part.raft_group))
            for part in topic.partitions
        ]
        return SimpleNamespace(partitions=parts)

    def _watch(self) -> None:
        for node, state in self.state.registry.brokers.items():
            broker = self.brokers[node]
            speaks = broker.up and not broker.paused and broker.epoch == state.epoch
            if speaks:
                self._silent_since.pop(node, None)
                if state.fenced:
                    self.decide(UnfenceBroker(node, state.epoch))
            elif self.now - self._silent_since.setdefault(node, self.now) > FENCE_US and not state.fenced:
                self.decide(FenceBroker(node, state.epoch))

    # What brokers know

    def profile(self, node: NodeId, *, log_in_store: bool) -> BrokerProfile:
        """What a broker says of itself."""
        listeners = (ListenerAddress("PLAINTEXT", f"host-{node}", 9092),)
        peer = PeerAddress(f"host-{node}", 7070)
        return BrokerProfile(listeners, peer, "", 1, "0.1.0", FEATURE_LEVEL, log_in_store)

    def number(self) -> int:
        """Another one each time."""
        self._value += 1
        return self._value

    def next_term(self, group: int) -> int:
        """A term in which no broker has led the partition."""
        self._terms[group] += 1
        return self._terms[group]

    def place_in(self, state: ControllerState, group: int) -> PartitionState | None:
        """The partition of a group, as a state has it."""
        parts = (one for topic in state.topics.values() for one in topic.partitions)
        return next((one for one in parts if one.raft_group == group), None)

    def index(self, group: int) -> PartitionIndex:
        """Of the partition of a group."""
        return PartitionIndex(self.groups.index(group))

    def owner(self, group: int) -> ArchiveId:
        """The archive of a group."""
        (topic,) = self.state.topics.values()
        return ArchiveId(UUID(bytes=topic.topic_id), self.index(group))

    # A history

    def run(self) -> None:
        """Play it; raises Violation."""
        for broker in self.brokers.values():
            broker.start()
        self._tick()
        self._until(lambda: all(one.ready for one in self.brokers.values()), "the brokers do not form a cluster")
        self._create()
        for _ in range(self.chance.choice((2, 4))):
            self._faults(self.chance.choice((10, 40)) * SECOND)
            self._heal()

    def _create(self) -> None:
        count = self.chance.choice((1, 2, 4))
        layout = tuple((index, (self.chance.choice(NODES),)) for index in range(count))
        configs = (("storage.mode", "shared"), ("retention.ms", "-1"))
        (result,) = self.decide(CreateTopics((CreateTopic("t", assignments=layout, configs=configs),)))
        assert not result.error, result.message
        (topic,) = self.state.topics.values()
        self.groups = tuple(part.raft_group for part in topic.partitions)
        self._until(lambda: all(one.applied == len(self.commands) for one in self.brokers.values()), "a lag")

    def _faults(self, duration_us: int) -> None:
        chance = self.chance
        self.store.chances = Faults(
            error=chance.choice((0, 0.02, 0.2)), lost_answer=chance.choice((0, 0.05, 0.2)), throttled=0.02
        )
        self.store.late = chance.choice((0.0, 0.1))
        end = self.now + duration_us
        while self.now < end:
            self._step()
            self._produce()
            if chance.random() < 0.003:
                chance.choice(self._kinds)()

    def _produce(self) -> None:
        if self.groups and self.chance.random() < 0.3:
            group = self.chance.choice(self.groups)
            if self._quiet_until.get(group, 0) > self.now:
                return
            self._value += 1
            for broker in self.brokers.values():
                if broker.up and not broker.paused and self.chance.random() < 0.7:
                    broker.produce(group, b"%d/%d" % (broker.node, self._value))
                    if self.chance.random() < self._upload_share:
                        broker.upload(group)
        if self._deletes:
            self._delete()

    def _delete(self) -> None:
        """A client deletes records now and then, and brokers save where their logs start."""
        chance = self._deletions
        for broker in self.brokers.values():
            if not broker.up or broker.paused:
                continue
            if chance.random() < 0.003:
                group = chance.choice(self.groups)
                broker.delete(group, chance.random())
                if self.leaders.get(group) == broker.node and chance.random() < 0.1:
                    self._quiet_until[group] = self.now + 3 * SECOND
            if chance.random() < 0.0005:
                for served in broker.served.values():
                    broker.save_start(served)

    def _kill(self) -> None:
        broker = self.chance.choice(list(self.brokers.values()))
        if broker.up:
            safe = broker.in_store and self._is_safe(broker)
            self.note(f"broker {broker.node} is killed")
            broker.die(torn=self.chance.random() < 0.5)
            if safe and self.chance.random() < 0.4:
                self.note(f"broker {broker.node} loses its disk")
                broker.lose_disk()
            elif self._switches and self.chance.random() < 0.5:
                broker.in_store = not broker.in_store
                self.note(f"broker {broker.node} is switched")
            self.after(int(self.chance.expovariate(1 / 6) * SECOND), self._start, broker)

    def _is_safe(self, broker: Broker) -> bool:
        """Whether the cluster knows that the store has what the broker acknowledged."""
        own = self.state.registry.brokers.get(broker.node)
        return own is not None and own.profile.log_in_store

    def _start(self, broker: Broker) -> None:
        if not broker.up:
            self.note(f"broker {broker.node} is started")
            broker.start()

    def _pause(self) -> None:
        broker = self.chance.choice(list(self.brokers.values()))
        if broker.up and not broker.paused:
            self.note(f"broker {broker.node} is paused")
            broker.paused = True
            self.after(int(self.chance.expovariate(1 / 5) * SECOND), self._go_on, broker, broker.life)

    def _go_on(self, broker: Broker, life: int) -> None:
        if broker.life == life and broker.paused:
            self.note(f"broker {broker.node} goes on")
            broker.paused = False

    def _away(self) -> None:
        self.note("the store is away")
        self.store.is_away = True
        self.after(int(self.chance.expovariate(1 / 3) * SECOND), self._back)

    def _back(self) -> None:
        self.store.is_away = False

    def _heal(self) -> None:
        self.store.calm(Faults())
        for broker in self.brokers.values():
            broker.paused = False
            if broker.up and not broker.in_store:
                broker.die(torn=False)
            broker.in_store = True
            self._start(broker)
        self._until(self._is_healed, "a partition is not served")
        self.note("healed")
        for group in self.groups:
            place = self.place_in(self.state, group)
            assert place is not None
            broker = self.brokers[place.replicas[0]]
            self.judge.check(group, broker.served[group], broker)

    def _is_healed(self) -> bool:
        return all(one.is_settled for one in self.brokers.values())

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        end = self.now + HEAL_US
        while not holds():
            if self.now > end:
                states = "; ".join(map(str, self.brokers.values()))
                raise Violation(f"liveness: {otherwise}: {states}")
            self._step()


def _leader(part: Any) -> Any:
    return part.leader


def play(seed: int, counts: Counts) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    with patch.object(stored_entries, "_CLOSED_US", 2 * SECOND):
        world = World(seed, counts.seen)
        finding = attempt(
            seed, counts, world.run, (AssertionError, MillstreamError, Stopped), events=lambda: world.trace
        )
    counts.simulated_us += world.now - BEGIN_US
    return finding
