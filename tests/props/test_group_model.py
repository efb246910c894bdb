"""Groups under random interleavings: clients that crash, leave and come back, a log that is slow, fails and crashes.

Clients follow the consumer's protocol; what a schedule decides is who acts next, when time passes, when writes become
durable or fail, when an administrator deletes, and when the coordinator dies and its successor loads the durable log.
What must hold is checked after every step (``group_world``). At the end everything heals: the group must become
stable, with an assignment for everybody, within a bounded time, and every request must have been answered.
"""

import random

from group_world import GROUP, PARTITIONS, REBALANCE_MS, SESSION_MS, Client, World
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.group.outputs import Expire, FetchOffsets
from millstream.core.group.state import GroupState
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup

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
    st.tuples(st.just("outsider"), st.just(0), st.integers(0, 20)),
    st.tuples(st.just("delete group"), st.just(0), st.just(0)),
    st.tuples(st.just("delete offset"), st.just(0), st.integers(0, 20)),
    st.tuples(st.just("all leave"), st.just(0), st.just(0)),
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
    elif kind == "outsider":
        world.outsider(b)
    elif kind == "delete group":
        world.delete_group()
    elif kind == "delete offset":
        world.delete_offset(b % PARTITIONS)
    elif kind == "all leave":
        for leaver in world.clients:
            world.leave(leaver)
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


@settings(max_examples=150)
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
    "outsider": 4,
    "delete group": 3,
    "delete offset": 3,
    "all leave": 2,
}


@settings(max_examples=60)
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
