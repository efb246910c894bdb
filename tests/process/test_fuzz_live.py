"""Bent requests to a running broker, of every API that it serves, while a client that behaves goes about its work.

What the bent ones get does not matter here; that nobody else notices does: the client beside gets every answer, before
much else is done; no process of the broker ends or is replaced; memory stays in its budget; the log has no ERROR line,
as nothing that a client sends is a fault of the broker. Afterwards the broker starts again on what the frames left.
"""

import sys
from pathlib import Path

import pytest
from bench import processes, raw
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from hostile_support import BUDGET_BYTES, CONSTANT_BYTES, Beside

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import fuzz_live

pytestmark = pytest.mark.process

BENT_TOPICS = ("fuzz-1", "fuzz-2", "fuzz-3")
NOTICED_S = 1.0
"""Work of one process, between a request beside and its answer, that would be noticed: alone it is 2 ms."""


@pytest.fixture
def world(start_broker):
    broker = start_broker(
        topics={"steady": 1, **dict.fromkeys(BENT_TOPICS, 2)},
        settings={"group.initial.rebalance.delay.ms": 0},
        shards=2,
        memory=str(BUDGET_BYTES),
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ids = {}
    for name, future in admin.describe_topics(TopicCollection(list(BENT_TOPICS))).items():
        uuid = future.result(60).topic_id
        bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
        ids[name] = b"".join((half % (1 << 64)).to_bytes(8, "big") for half in bits)
    return broker, fuzz_live.World(ids)


def stands(broker, world, seed, frames):
    """Send the frames, with a client beside them; how many records that client has produced."""
    alive = processes.tree(broker.pid)
    beside = Beside(broker, "steady")
    crowd = fuzz_live.Crowd(broker.bootstrap)
    try:
        crowd.send(world.frames(seed, frames))
    finally:
        most_s = beside.stop()[-1]
    print(f"seed {seed}: {crowd.answered} answered, {crowd.closed} closed, {most_s * 1000:.0f} ms of work at most")
    assert crowd.answered > frames // 4
    assert crowd.closed > frames // 10
    assert processes.tree(broker.pid) == alive
    assert most_s < NOTICED_S
    held = processes.pss_bytes(broker.pid)
    assert held <= BUDGET_BYTES + CONSTANT_BYTES, f"{held >> 20} MiB held"
    assert not errors(broker)
    return len(beside.cost_s) + 1


def errors(broker):
    return [line for line in broker.log_path.read_text().splitlines() if " ERROR " in line or "Traceback" in line]


def test_nobody_beside_notices_bent_requests_and_what_they_leave_is_read_again(world, fresh_seed):
    broker, made = world
    offset = stands(broker, made, fresh_seed, 3000)
    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("steady", 0, raw.batch([b"after"])) == offset
    assert broker.stop() == 0
    assert not errors(broker)


@pytest.mark.slow
def test_nobody_beside_notices_a_hundred_thousand_bent_requests(world, fresh_seed):
    broker, made = world
    offset = stands(broker, made, f"long-{fresh_seed}", 100_000)
    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("steady", 0, raw.batch([b"after"])) == offset
    assert broker.stop() == 0
    assert not errors(broker)
