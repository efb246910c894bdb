"""Groups under random interleavings: clients that crash, leave and come back, a log that is slow, fails and crashes.

Clients follow the consumer's protocol; what a schedule decides is who acts next, when time passes, when writes become
durable or fail, and when the coordinator dies and its successor loads the durable log. Checked after every step:
bookkeeping of the group, one assignment per generation and one owner per partition in it (D1), stale commits fenced
(D1), commits that were acknowledged never lost or overtaken (D2). At the end everything heals: the group must become
stable, with an assignment for everybody, within a bounded time, and every request must have been answered.
"""

import random
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.group.coordinator import GroupCoordinator
from millstream.core.group.outputs import (
    Commit,
    Expire,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Persisted,
    Sync,
    Tick,
    Write,
)
from millstream.core.group.state import GroupState
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS, REBALANCE_MS, DELAY_MS = 6_000, 9_000, 1_000
PARTITIONS = 6
GROUP = "g"


@dataclass
class Client:
    """A consumer. ``waiting`` is the token of its request, ``step`` what it does next."""

    name: str
    instance: str | None
    old: bool
    member_id: str = ""
    generation: int = -1
    step: str = "join"
    waiting: int | None = None
    request: str = ""
    leader_of: list[str] | None = None
    assignment: bytes | None = None
    protocols: tuple[str, ...] = ("range",)
    version: int = 0

    def reset(self) -> None:
        self.member_id, self.generation, self.step = "", -1, "join"
        self.waiting, self.leader_of, self.assignment = None, None, None


@dataclass
class World:
    clients: list[Client]
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(
            initial_rebalance_delay_ms=DELAY_MS, new_member_join_timeout_ms=20_000, offsets_retention_ms=10**12
        )
    )
    ms: int = 1_000

    def __post_init__(self) -> None:
        self.coordinator = GroupCoordinator(self.settings)
        self.log: list[tuple] = []
        self.held: list[Write] = []
        self.tokens = count(1)
        self.suffixes = count(1)
        self.offsets = count(1)
        self.open: dict[int, Client | None] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}  # generation -> member id -> assignment that was told
        self.commits: dict[int, tuple[int, int]] = {}  # token -> (partition, offset)
        self.acked: dict[int, int] = {}  # partition -> last acknowledged offset
        self.told_generation = 0
        self.told_group = None
        self.identities: list[tuple[str, int, str | None]] = []

    # The coordinator and its log

    def step(self, given) -> None:
        self.take(self.coordinator.step(given, self.ms * 1000, self.ms))

    def take(self, out) -> None:
        self.held += out.writes
        for token, response in out.answers:
            client = self.open.pop(token)  # KeyError: answered twice
            self.settle(token, response)
            if client is not None and client.waiting == token:
                client.waiting = None
                getattr(self, f"on_{client.request}")(client, response)
        self.check()

    def persist(self, writes: int, error: ErrorCode = ErrorCode.NONE) -> None:
        for _ in range(min(writes, len(self.held))):
            write = self.held.pop(0)
            if error is ErrorCode.NONE:
                self.log += write.records
            self.step(Persisted(write.receipt, error))

    def advance(self, ms: int) -> None:
        end = self.ms + ms
        while (due := self.coordinator.deadline_us) is not None and due <= end * 1000:
            self.ms = max(self.ms, -(-due // 1000))
            self.step(Tick())
        self.ms = end

    def crash(self) -> None:
        """The coordinator dies; what was not durable is gone, and so is every connection."""
        self.held.clear()
        self.open.clear()
        self.commits.clear()
        self.coordinator = GroupCoordinator(self.settings)
        for key, value in self.log:
            self.coordinator.replay(key, value)
        for client in self.clients:
            if client.waiting is not None:
                client.waiting = None  # the client sends its request again
                if client.request == "leave":
                    client.reset()
        self.take(self.coordinator.loaded(self.ms * 1000, self.ms))
        durable = self.durable_offsets()
        for partition, offset in self.acked.items():
            assert durable.get(partition, -1) >= offset, "an acknowledged commit is lost"

    def durable_offsets(self) -> dict[int, int]:
        group = self.coordinator.groups.get(GROUP)
        return {} if group is None else {p: o.offset for _, p, o in group.offsets}

    # What must hold

    def check(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        census = self.coordinator.census
        assert sum(census.states.values()) == len(self.coordinator.groups)
        if group is None:
            return
        members = group.members
        assert census.members == len(members)
        assert group.awaiting_join == sum(m.join_token is not None for m in members.values())
        assert (group.leader_id is None) == (not members)
        assert group.leader_id is None or group.leader_id in members
        assert group.statics == {m.instance_id: i for i, m in members.items() if m.instance_id is not None}
        supporters: dict[str, int] = {}
        for member in members.values():
            for name, _ in member.protocols:
                supporters[name] = supporters.get(name, 0) + 1
        assert group.supporters == supporters
        assert group.pending_syncs <= set(members)
        assert not set(group.pending_joins) & set(members)
        if group.state is GroupState.EMPTY:
            assert not members
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            assert all(m.sync_token is None for m in members.values())
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert group.sync_deadline.at_us or not group.pending_syncs
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.join_deadline.at_us, "a gathering without an end"
        for member in members.values():
            assert member.session.at_us or member.satisfies_heartbeat, "a member that can never fail"

    def settle(self, token: int, response) -> None:
        commit = self.commits.pop(token, None)
        if commit is not None and response.topics[0].partitions[0].error_code == 0:
            partition, offset = commit
            assert offset > self.acked.get(partition, 0), "answers of commits out of the order of the log"
            self.acked[partition] = offset
            assert self.durable_offsets()[partition] >= offset

    def told_assignment(self, generation: int, member_id: str, assignment: bytes) -> None:
        told = self.assigned.setdefault(generation, {})
        assert told.get(member_id, assignment) == assignment, "two assignments for one member in one generation"
        told[member_id] = assignment
        owned = [p for member, each in self.current(generation).items() for p in each]
        assert len(owned) == len(set(owned)), "a partition with two owners in one generation"

    def current(self, generation: int) -> dict[str, bytes]:
        """Assignments told in ``generation``, without former incarnations of static members."""
        group = self.coordinator.groups[GROUP]
        return {m: a for m, a in self.assigned[generation].items() if m in group.members}

    # Clients

    def send(self, client: Client | None, request: str, make) -> int:
        token = next(self.tokens)
        self.open[token] = client
        if client is not None:
            client.waiting, client.request = token, request
        self.step(make(token))
        return token

    def act(self, client: Client, choice: int) -> None:
        if client.waiting is not None:
            return
        if client.step == "join":
            self.join(client)
        elif client.step == "sync":
            self.sync(client)
        elif choice % 3 == 0:
            self.commit(client, choice)
        else:
            self.beat(client)

    def join(self, client: Client) -> None:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=n, metadata=bytes([client.version])) for n in client.protocols],
        )
        version = 3 if client.old else 9
        self.send(client, "join", lambda t: Join(t, request, version, client.name, "/h", str(next(self.suffixes))))

    def on_join(self, client: Client, response) -> None:
        error = response.error_code
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif error == ErrorCode.NONE:
            group = self.coordinator.groups[GROUP]
            assert response.generation_id == group.generation
            if group is not self.told_group:  # forgotten when it was empty, and made anew
                self.told_group, self.told_generation = group, 0
            assert response.generation_id >= self.told_generation, "generations went back"
            self.told_generation = response.generation_id
            client.member_id, client.generation = response.member_id, response.generation_id
            client.step = "sync"
            leads = response.leader == response.member_id and not response.skip_assignment
            client.leader_of = [m.member_id for m in response.members] if leads else None
            if leads:
                assert client.leader_of == list(group.members)
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        else:
            client.reset()

    def sync(self, client: Client) -> None:
        assignments = []
        if client.leader_of:
            parts = [bytes(range(i, PARTITIONS, len(client.leader_of))) for i in range(len(client.leader_of))]
            # A leader may change its mind between two tries of one generation.
            first = next(self.offsets) % len(parts)
            parts = parts[first:] + parts[:first]
            assignments = [
                SyncGroupRequestAssignment(member_id=m, assignment=p)
                for m, p in zip(client.leader_of, parts, strict=True)
            ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocol_name=self.coordinator.groups[GROUP].protocol_name if GROUP in self.coordinator.groups else "range",
            assignments=assignments,
        )
        self.send(client, "sync", lambda t: Sync(t, request, 4 if request.protocol_name is None else 5))

    def on_sync(self, client: Client, response) -> None:
        if response.error_code == ErrorCode.NONE:
            client.step, client.assignment = "work", response.assignment
            self.identities.append((client.member_id, client.generation, client.instance))
            self.told_assignment(client.generation, client.member_id, response.assignment)
        elif response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        else:
            client.reset()

    def beat(self, client: Client) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        self.send(client, "beat", lambda t: Heartbeat(t, request))

    def on_beat(self, client: Client, response) -> None:
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        elif response.error_code:
            client.reset()

    def commit(self, client: Client, choice: int) -> None:
        partition = client.assignment[choice % len(client.assignment)] if client.assignment else choice % PARTITIONS
        self.send_commit(client, (client.member_id, client.generation, client.instance), partition)

    def zombie(self, choice: int) -> None:
        """A former incarnation of somebody wakes up and commits."""
        if self.identities:
            self.send_commit(None, self.identities[choice % len(self.identities)], choice % PARTITIONS)

    def send_commit(self, client: Client | None, identity: tuple[str, int, str | None], partition: int) -> None:
        """Commit; the coordinator must only take it from a current member in the current generation."""
        member_id, generation, instance = identity
        group = self.coordinator.groups.get(GROUP)
        fresh = (
            group is not None
            and group.generation == generation
            and member_id in group.members
            and group.members[member_id].instance_id == instance
            and group.state is not GroupState.COMPLETING_REBALANCE
        )
        offset = next(self.offsets)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
                )
            ],
        )
        before = len(self.held)
        token = next(self.tokens)
        self.commits[token] = (partition, offset)
        self.open[token] = client
        if client is not None:
            client.waiting, client.request = token, "commit"
        self.step(Commit(token, request, 9))
        assert (len(self.held) > before) == fresh, "a stale commit was taken, or a fresh one refused"

    def on_commit(self, client: Client, response) -> None:
        error = response.topics[0].partitions[0].error_code
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        elif error not in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            client.reset()

    def leave(self, client: Client) -> None:
        if client.waiting is None and client.member_id:
            who = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance)
            request = LeaveGroupRequest(group_id=GROUP, members=[who])
            self.send(client, "leave", lambda t: Leave(t, request, 5))

    def on_leave(self, client: Client, response) -> None:
        client.reset()


actions = st.one_of(
    st.tuples(st.just("act"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("act"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("act"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("round"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("round"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("zombie"), st.just(0), st.integers(0, 20)),
    st.tuples(st.just("churn"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("persist"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("persist"), st.just(9), st.just(0)),
    st.tuples(st.just("fail"), st.integers(1, 2), st.just(0)),
    st.tuples(st.just("pass"), st.integers(1, 2_500), st.just(0)),
    st.tuples(st.just("pass"), st.sampled_from([SESSION_MS, REBALANCE_MS, 25_000]), st.just(0)),
    st.tuples(st.just("forget"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("change"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("crash"), st.just(0), st.just(0)),
    st.tuples(st.just("expire"), st.just(0), st.just(0)),
)

PROTOCOLS = (("range",), ("range", "sticky"), ("sticky", "range"))


def perform(world: World, kind: str, a: int, b: int) -> None:
    client = world.clients[a % len(world.clients)]
    if kind == "act":
        world.act(client, b)
    elif kind == "round":
        for offset in range(len(world.clients)):
            world.act(world.clients[(a + offset) % len(world.clients)], b)
    elif kind == "churn":
        perform(world, "change", a, b)
        heal(world, 5)
    elif kind == "zombie":
        world.zombie(b)
    elif kind == "persist":
        world.persist(a)
    elif kind == "fail":
        world.persist(a, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif kind == "pass":
        world.advance(a)
    elif kind == "forget":
        client.reset()  # the process died; a new one takes its place
    elif kind == "repeat":
        client.waiting = None  # the connection broke; it sends the request again, on another one
        if client.request == "leave":
            client.reset()
    elif kind == "leave":
        world.leave(client)
    elif kind == "change":
        client.protocols, client.version = PROTOCOLS[b], client.version ^ 1
        if client.waiting is None and client.step == "work":
            client.step = "join"  # such as a new subscription
    elif kind == "crash":
        world.crash()
    else:
        world.step(Expire((GROUP,)))


def heal(world: World, rounds: int = 120) -> None:
    """Everybody behaves and the log works: how does it end?"""
    world.persist(1 << 30)
    for _ in range(rounds):
        for client in world.clients:
            for _ in range(3):
                world.act(client, 1)
                world.persist(1 << 30)
        world.advance(500)
        world.persist(1 << 30)


KINDS = ("dynamic", "dynamic", "old", "static", "static")


def run(kinds: list[str], settled_rounds: int, schedule) -> None:
    clients = [Client(f"c{i}", f"i{i}" if kind == "static" else None, kind == "old") for i, kind in enumerate(kinds)]
    world = World(clients)
    heal(world, settled_rounds)
    for kind, a, b in schedule:
        perform(world, kind, a, b)
    heal(world)
    judge(world)


def judge(world: World) -> None:
    """After healing: the group is stable, everybody has a share, nobody waits, and a crash changes nothing."""
    clients = world.clients
    group = world.coordinator.groups[GROUP]
    assert group.state is GroupState.STABLE, "the rebalance is stuck"
    assert {c.member_id for c in clients} == set(group.members), "a member that nobody is, or a client that is none"
    assert all(c.step == "work" and c.waiting is None and c.generation == group.generation for c in clients)
    assert sorted(p for c in clients for p in c.assignment) == list(range(PARTITIONS))
    assert world.open == {}, "requests that were never answered"
    token = next(world.tokens)
    world.open[token] = None
    world.step(FetchOffsets(token, OffsetFetchRequestGroup(group_id=GROUP, topics=None), True))
    assert world.open == {}
    durable = world.durable_offsets()
    assert all(durable[p] >= offset for p, offset in world.acked.items())
    world.crash()
    assert world.durable_offsets() == durable
    assert {m: x.assignment for m, x in world.coordinator.groups[GROUP].members.items()} == {
        c.member_id: c.assignment for c in clients
    }


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.sampled_from([0, 12]), st.lists(actions, max_size=60)
)
def test_groups_keep_their_promises_and_settle(kinds, settled_rounds, schedule):
    run(kinds, settled_rounds, schedule)


WEIGHTS = {
    "act": 30,
    "round": 20,
    "zombie": 15,
    "persist": 15,
    "fail": 3,
    "pass": 12,
    "long": 1,
    "forget": 2,
    "repeat": 3,
    "leave": 1,
    "change": 3,
    "crash": 1,
    "expire": 3,
    "churn": 1,
}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_groups_keep_their_promises_through_long_histories(seed):
    rng = random.Random(seed)
    amounts = {"persist": (1, 2, 9), "fail": (1, 2), "pass": (1, 300, 1_100, 2_500), "long": (6_000, 9_000, 25_000)}
    schedule = []
    for kind in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=300):
        a = rng.choice(amounts[kind]) if kind in amounts else rng.randrange(4)
        b = rng.randrange(3) if kind in ("change", "churn") else rng.randrange(20)
        schedule.append(("pass" if kind == "long" else kind, a, b))
    run(rng.choices(KINDS, k=rng.randint(2, 4)), rng.choice((0, 12)), schedule)
