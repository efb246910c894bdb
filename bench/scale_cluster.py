"""What grows with the brokers and partitions of a cluster, without the brokers: the production's cores, simulated.

    make bench-scale ARGS="--only clusters --brokers 30,100"

=================  ==================================================================================================
controller's log   each request is decided by `core.controller.decide` and its commands are encoded and applied, as on
                   every broker: bytes of the log, of a snapshot, and of what a shard keeps (`cluster.metadata`)
messages at rest   ordered pairs of brokers of which one leads a group that the other follows. Each pair exchanges
                   two items an interval, however many groups it has (`raft.contacts`)
elections          a simulated Raft group for each partition that the dead broker led, each from its own seed: messages
                   but heartbeats, and the time until a leader serves; then what leaders tell all brokers
moves              the dead broker is evacuated by `core.controller.balancing`, round after round, each move completed
=================  ==================================================================================================

Times are CPU of this process, single-threaded. Nothing is sent and nothing is synced: what the network and disks add is
measured with real brokers by ``python -m bench.members``.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.cluster.leader_news import ITEM_LEADERS
from millstream.cluster.metadata import MetadataCache
from millstream.config.settings import Settings
from millstream.core.controller.balancing import MOVES_MAX
from millstream.core.controller.commands import FEATURE_LEVEL, encode_command
from millstream.core.controller.decide import decide
from millstream.core.controller.leaders import LeaderView, plan_transfers
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import (
    CompleteMoves,
    CreateCluster,
    CreateTopic,
    CreateTopics,
    EvacuateBrokers,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
)
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState, decode_state, encode_state
from millstream.core.raft.messages import Heartbeat, HeartbeatReply
from millstream.core.raft.options import RaftOptions
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.replication import Term, replica_id
from millstream.peers.contact_items import Followed, LedAgain, Session
from millstream.peers.items import Leaders, Leadership, encode_item
from sim.engine.timeline import SECOND
from sim.raft.knobs import draw_knobs
from sim.raft.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.controller.requests import AnyRequest, Results
    from millstream.core.raft.messages import Message

PARTITIONS: Final = 100_000
TOPIC_PARTITIONS: Final = 1_000
FACTOR: Final = 3
DEAD: Final = NodeId(2)
OPTIONS: Final = RaftOptions()
ELECTIONS_MAX: Final = 400
"""Groups whose elections are simulated; the others are counted like them."""

Figures = dict[str, float]


class Controller:
    """The state that every broker has, and the log that led to it."""

    def __init__(self, brokers: int) -> None:
        self.state = ControllerState()
        self.log_bytes = 0
        self.commands = 0
        self.cpu_s = 0.0
        ids = itertools.count(1)
        settings = Settings(data_dir="/unused", shards=1, node_id=1)
        self._rules = Rules(1, settings, settings, lambda: next(ids).to_bytes(16, "big"))
        self.ask(CreateCluster("MkU3OEVBNTcwNTJENDM2Qk"))
        for node in range(1, brokers + 1):
            name = f"broker-{node}.example.org"
            profile = BrokerProfile(
                (ListenerAddress("PLAINTEXT", name, 9092),), PeerAddress(name, 33145), "", 2, "0.1.0", FEATURE_LEVEL
            )
            registered = RegisterBroker("", NodeId(node), Incarnation(node.to_bytes(16, "big")), profile)
            self.ask(UnfenceBroker(NodeId(node), self.ask(registered)[0].broker_epoch))
        assert self.state.feature_level == FEATURE_LEVEL

    def ask(self, request: AnyRequest) -> Results:
        """A request is decided and comes true."""
        begun = time.process_time()
        decision = decide(self.state, request, self._rules)
        for command in decision.commands:
            self.log_bytes += len(encode_command(command))
            self.commands += 1
            self.state.apply(command)
        self.cpu_s += time.process_time() - begun
        refused = [result.message for result in decision.results if result.error]
        assert not refused, refused[0]
        return decision.results

    def since(self) -> Callable[[str], Figures]:
        """Gives the figures of what is done from now on."""
        log, commands, cpu_s = self.log_bytes, self.commands, self.cpu_s

        def figures(name: str) -> Figures:
            return {
                f"{name}: commands": self.commands - commands,
                f"{name}: log, MB": (self.log_bytes - log) / 1e6,
                f"{name}: CPU of each broker, s": self.cpu_s - cpu_s,
            }

        return figures


def _memory_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def created(controller: Controller, partitions: int) -> Figures:
    """All partitions in topics of a thousand; what the log, a snapshot and a shard's metadata take."""
    since = controller.since()
    for begin in range(0, partitions, TOPIC_PARTITIONS):
        count = min(TOPIC_PARTITIONS, partitions - begin)
        controller.ask(CreateTopics((CreateTopic(f"topic-{begin // TOPIC_PARTITIONS:04d}", count, FACTOR),)))
    figures = since("create")
    begun = time.process_time()
    snapshot = encode_state(controller.state)
    encoded = time.process_time()
    decode_state(snapshot)
    figures |= {
        "snapshot: MB": len(snapshot) / 1e6,
        "snapshot: encode, s": encoded - begun,
        "snapshot: decode, s": time.process_time() - encoded,
    }
    before = _memory_bytes()
    cache = MetadataCache(decode_state(snapshot), {}, Settings(data_dir="/unused", shards=1, node_id=1))
    figures["metadata of a shard: MB"] = (_memory_bytes() - before) / 1e6
    assert len(cache.names()) == len(controller.state.topics)
    return figures


def at_rest(state: ControllerState) -> Figures:
    """Messages an interval while nobody writes, by who leads what."""
    pairs: set[tuple[int, int]] = set()
    led: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for topic in state.topics.values():
        for partition in topic.partitions:
            leader, *followers = partition.replicas
            led[leader] += 1
            held.update(partition.replicas)
            pairs.update((leader, follower) for follower in followers)
    a_second = 1e6 / OPTIONS.heartbeat_us
    session = Session(1 << 40)
    item_bytes = len(encode_item(LedAgain(session, 1))) + len(
        encode_item(Followed(session, 1, known=True, left_out=()))
    )
    of_one: Counter[int] = Counter()
    for leader, follower in pairs:
        of_one.update((leader, follower))
    return {
        "at rest: partitions led by a broker, most": max(led.values()),
        "at rest: replicas of a broker, most": max(held.values()),
        "at rest: pairs of leader and follower": len(pairs),
        "at rest: items a second, whole cluster": 2 * len(pairs) * a_second,
        "at rest: items a second, sent by a broker": max(of_one.values()) * a_second,
        "at rest: kB a second, sent by a broker": max(of_one.values()) * a_second * item_bytes / 2 / 1000,
    }


class _Election(World):
    """One group whose leader dies: what is sent until another one serves."""

    def __init__(self, seed: int) -> None:
        plain = draw_knobs(seed, 3, harsh=False)
        knobs = msgspec.structs.replace(
            plain, options=OPTIONS, spares=0, delay_us=500, loss=0.0, duplicate=0.0, sync_us=1_000, cold_reads=0.0,
            send_units=1_000, fold_units=0, write_caching=False, assigned=False, fifo=True,
        )  # fmt: skip
        super().__init__(seed, knobs)
        self.sent: Counter[str] = Counter()

    def send(self, sender: Any, to: Any, message: Message, units: Any = ()) -> None:
        """Counts what is not a heartbeat."""
        if not isinstance(message, Heartbeat | HeartbeatReply):
            self.sent[type(message).__name__] += 1
        super().send(sender, to, message, units)

    def until_led(self) -> int:
        """Microseconds until a leader serves."""
        begun = self.now
        while self.leader() is None:
            assert self.now - begun < 60 * SECOND, "no leader after a minute"
            self.run_until(self.now + 1_000)
        return self.now - begun

    def fail_over(self) -> int:
        """Microseconds from the leader's death to another one that serves."""
        self.until_led()
        self.run_until(self.now + 3 * OPTIONS.election_timeout_us)
        leader = self.leader()
        assert leader is not None
        leader.crash()
        self.sent.clear()
        return self.until_led()


def elections(state: ControllerState) -> Figures:
    """One broker dies: the groups that it led elect, and their new leaders tell all brokers."""
    lost = sum(part.replicas[0] == DEAD for topic in state.topics.values() for part in topic.partitions)
    seconds: list[float] = []
    sent: Counter[str] = Counter()
    played = min(lost, ELECTIONS_MAX)
    for seed in range(played):
        group = _Election(seed)
        seconds.append(group.fail_over() / SECOND)
        sent += group.sent
    brokers = len(state.registry.nodes())
    survivors = brokers - 1
    news = tuple(
        Leadership(group, Term(2), replica_id(1), 3) for group in range(1_000_000, 1_000_000 + lost // survivors)
    )
    news_bytes = sum(
        len(encode_item(Leaders(False, news[i : i + ITEM_LEADERS]))) for i in range(0, len(news), ITEM_LEADERS)
    )
    seconds.sort()
    return {
        "death: groups that elect": lost,
        "death: groups simulated": played,
        "death: messages a group": sum(sent.values()) / played,
        "death: vote requests a group": sent["VoteRequest"] / played,
        "death: s until led, median": seconds[played // 2],
        "death: s until led, longest": seconds[-1],
        "death: messages, whole cluster": sum(sent.values()) / played * lost,
        "death: kB of news to each broker": news_bytes * survivors / 1000,
        "death: kB of news, whole cluster": news_bytes * survivors * survivors / 1000,
    }


def transfers(state: ControllerState) -> Figures:
    """CPU of one look of the controller at who should lead, while all is as it should be."""
    views = {
        part.raft_group: LeaderView(NodeId(part.replicas[0]), part.replicas)
        for topic in state.topics.values()
        for part in topic.partitions
    }
    begun = time.process_time()
    assert not plan_transfers(state, views.get)
    return {"a look at all leaders: CPU of the controller, ms": 1000 * (time.process_time() - begun)}


def moves(controller: Controller) -> Figures:
    """The dead broker's replicas move to others, `MOVES_MAX` at a time."""
    state = controller.state
    held = state.load.replicas[DEAD]
    since = controller.since()
    controller.ask(FenceBroker(DEAD, state.registry.brokers[DEAD].epoch))
    rounds, slowest = 0, 0.0
    while state.load.replicas.get(DEAD):
        begun = controller.cpu_s
        controller.ask(EvacuateBrokers((DEAD,)))
        controller.ask(CompleteMoves(tuple((group, move.target) for group, move in state.moves.items())))
        slowest = max(slowest, controller.cpu_s - begun)
        rounds += 1
        assert rounds <= held, "a round moves nothing"
    counts = [state.load.replicas[node] for node in state.registry.nodes() if node != DEAD]
    return {
        "moves: replicas of the dead broker": held,
        f"moves: rounds of {MOVES_MAX}": rounds,
        "moves: slowest round, CPU ms": 1000 * slowest,
        "moves: fullest broker after, to the emptiest": max(counts) / min(counts),
    } | since("moves")


def measure(brokers: int, partitions: int, say: Callable[[str], None]) -> Figures:
    """The figures of one cluster."""
    say(f"{brokers} brokers, {partitions:,} partitions: creating")
    controller = Controller(brokers)
    figures: Figures = created(controller, partitions)
    figures |= at_rest(controller.state) | transfers(controller.state)
    say(f"{brokers} brokers: the death of one")
    figures |= elections(controller.state)
    say(f"{brokers} brokers: its replicas move")
    return figures | moves(controller)
