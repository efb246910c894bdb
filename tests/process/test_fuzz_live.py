"""Bent requests to a running broker, of every API that it serves, while a client that behaves goes about its work.

What the bent ones get does not matter here; that nobody else notices does: the client beside gets every answer, in
time; no process of the broker ends or is replaced; memory stays in its budget; the log has no ERROR line, as nothing
that a client sends is a fault of the broker. Afterwards the broker starts again on what the frames left behind.
"""

import sys
import threading
import time
from pathlib import Path

import pytest
from bench import processes, raw
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import fuzz_live

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 160 << 20
BENT_TOPICS = ("fuzz-1", "fuzz-2", "fuzz-3")
NOTICED_S = 1.0
"""An answer that took longer than this would be noticed; alone, the client waits for 5 ms."""


class Beside:
    """A client that produces one record after another and reads each back; ``stop`` gives the slowest answer."""

    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._failed = None
        self.took_s = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        try:
            with raw.Caller(self._bootstrap) as caller:
                while not self._stop.is_set():
                    self._round(caller, len(self.took_s))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._failed = error

    def _round(self, caller, offset):
        batch = raw.batch([b"value %d" % offset])
        began = time.monotonic()
        assert caller.produce_one("steady", 0, batch) == offset
        request, place = raw.fetch("steady", 0, 1 << 20)
        request[place : place + 8] = offset.to_bytes(8, "big")
        frame = caller.call(request)
        self.took_s.append(time.monotonic() - began)
        answer = raw.FetchAnswer(frame, "steady")
        assert bytes(frame[answer.records_start : answer.records_end])[17:] == batch[17:]
        self._stop.wait(0.003)

    def stop(self):
        self._stop.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return max(self.took_s)


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
        uuid = future.result(20).topic_id
        bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
        ids[name] = b"".join((half % (1 << 64)).to_bytes(8, "big") for half in bits)
    return broker, fuzz_live.World(ids)


def stands(broker, world, seed, frames):
    """Send the frames, with a client beside them, and look at what they did."""
    alive = processes.tree(broker.pid)
    beside = Beside(broker.bootstrap)
    crowd = fuzz_live.Crowd(broker.bootstrap)
    try:
        crowd.send(world.frames(seed, frames))
    finally:
        slowest_s = beside.stop()
    print(f"seed {seed}: {crowd.answered} answered, {crowd.closed} closed, slowest beside {slowest_s * 1000:.0f} ms")
    assert crowd.answered > frames // 4
    assert crowd.closed > frames // 10
    assert processes.tree(broker.pid) == alive
    assert slowest_s < NOTICED_S
    held = processes.pss_bytes(broker.pid)
    assert held <= BUDGET_BYTES + CONSTANT_BYTES, f"{held >> 20} MiB held"
    assert not errors(broker)
    return len(beside.took_s)


def errors(broker):
    return [line for line in broker.log_path.read_text().splitlines() if " ERROR " in line or "Traceback" in line]


def test_nobody_beside_notices_bent_requests_and_what_they_leave_is_read_again(world, request):
    broker, made = world
    seed = request.config.getoption("randomly_seed", default=1)
    offset = stands(broker, made, seed, 3000)
    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("steady", 0, raw.batch([b"after"])) == offset
    assert broker.stop() == 0
    assert not errors(broker)


@pytest.mark.slow
def test_nobody_beside_notices_a_hundred_thousand_bent_requests(world, request):
    broker, made = world
    seed = request.config.getoption("randomly_seed", default=1)
    offset = stands(broker, made, f"long-{seed}", 100_000)
    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("steady", 0, raw.batch([b"after"])) == offset
    assert broker.stop() == 0
    assert not errors(broker)
