"""The active controller takes over what dead brokers have in the store: first the seal, then so many at a time."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core" / "controller"))
from controller_bench import Bench

from millstream.cluster.take_overs import AGAIN_US, PATIENCE_US, TakeOvers
from millstream.core.controller.requests import CreateTopic, NoteLogInStore
from millstream.core.controller.restoring import AT_ONCE
from millstream.errors import Retriable, Unavailable
from millstream.telemetry.metrics import StatsSlab

AFTER_MS = 60_000
S = 1_000_000


class Controller:
    """Take-overs in a cluster of three, with a clock, a store and a log that do what the test says."""

    def __init__(self, partitions=2):
        self.bench = Bench(level=5, objects_url="file:///unused")
        for node in (1, 2, 3):
            self.bench.join(node, log_in_store=True)
            self.bench.do(NoteLogInStore(node, self.bench.state.registry.brokers[node].epoch))
        layout = tuple((index, (2,)) for index in range(partitions))
        topic = CreateTopic("t", assignments=layout, configs=(("storage.mode", "shared"),))
        assert not self.bench.create(topic)[0].error
        self.now_us = 0
        self.settings = SimpleNamespace(dead_broker_take_over_after_ms=AFTER_MS)
        self.leaders = True
        self.seals, self.requests = [], []
        self.sealed = None
        self.gauge = StatsSlab().gauge("take_over_waiting")
        cache = SimpleNamespace(
            settings=self.bench.rules.settings, topic_by_id=self.topic_by_id, leader_of=lambda part: part.leader
        )
        self.take_overs = TakeOvers(cache, lambda: self.now_us, self.submit, self.gauge)
        self.take_overs.end_lives = self.end_lives
        self.take_overs.begin()

    def set_after(self, after_ms):
        self.take_overs._cache.settings = SimpleNamespace(dead_broker_take_over_after_ms=after_ms)

    def topic_by_id(self, topic_id):
        topic = self.bench.state.topics.by_id[topic_id]
        parts = [
            SimpleNamespace(replicas=part.replicas, leader=part.replicas[0] if self.leaders else None)
            for part in topic.partitions
        ]
        return SimpleNamespace(partitions=parts)

    def end_lives(self, node, done):
        self.seals.append(node)
        self.sealed = done

    def submit(self, request, done):
        self.requests.append((request, done))

    def tick(self, seconds=0.0):
        self.now_us += int(seconds * S)
        self.take_overs.carry_out(self.bench.state)

    def answer(self):
        """The request is carried out."""
        request, done = self.requests[-1]
        done(self.bench.do(request))

    def die(self, node=2):
        self.bench.fence(node)
        self.tick()

    def left(self):
        return sum(part.replicas == (2,) for part in self.bench.state.topics["t"].partitions)


@pytest.fixture
def controller():
    return Controller()


def test_the_logs_are_sealed_after_the_time_and_partitions_go_after_the_seal(controller):
    controller.die()
    controller.tick(AFTER_MS / 1000 - 1)
    assert (controller.seals, controller.gauge.value) == ([], 0)
    controller.tick(1)
    controller.tick(1)
    assert (controller.seals, controller.requests, controller.gauge.value) == ([2], [], 2)
    controller.sealed(None)
    controller.tick()
    controller.tick()
    assert len(controller.requests) == 1
    controller.answer()
    controller.tick()
    assert (controller.left(), controller.gauge.value) == (0, 0)
    controller.tick(500)
    assert (len(controller.seals), len(controller.requests)) == (1, 1), "it goes on without end"


def test_a_seal_that_fails_is_tried_again_and_nothing_goes_before(controller):
    controller.die()
    controller.tick(60)
    controller.sealed(Unavailable("the store is away"))
    controller.tick(AGAIN_US / S - 1)
    assert len(controller.seals) == 1
    controller.tick(1)
    assert (len(controller.seals), controller.requests) == (2, [])


def test_a_broker_that_comes_back_and_dies_again_is_sealed_again(controller):
    controller.die()
    controller.tick(60)
    controller.sealed(None)
    controller.bench.register(2, log_in_store=True)
    controller.tick()
    assert controller.requests == [], "it has a life that is not sealed"
    controller.tick(60)
    assert controller.seals == [2, 2]
    controller.bench.join(2, log_in_store=True)
    controller.tick(600)
    controller.sealed(None)
    controller.tick(600)
    assert controller.requests == []


def test_a_seal_for_an_earlier_life_that_is_confirmed_late_gives_nothing_away(controller):
    controller.die()
    controller.tick(60)
    late = controller.sealed
    controller.bench.register(2, log_in_store=True)
    controller.tick()
    late(None)
    controller.tick(59)
    assert controller.requests == [] and controller.seals == [2]


def test_the_next_ones_go_when_those_before_are_led_or_after_a_while():
    controller = Controller(partitions=2 * AT_ONCE + 1)
    controller.leaders = False
    controller.die()
    controller.tick(60)
    controller.sealed(None)
    controller.tick()
    controller.answer()
    for _ in range(3):
        controller.tick(1)
    assert (len(controller.requests), controller.left()) == (1, AT_ONCE + 1)
    controller.leaders = True
    controller.tick(1)
    controller.answer()
    controller.leaders = False
    controller.tick(PATIENCE_US / S - 1)
    assert len(controller.requests) == 2
    controller.tick(2)
    controller.answer()
    assert controller.left() == 0


def test_a_request_that_fails_is_made_again(controller):
    controller.die()
    controller.tick(60)
    controller.sealed(None)
    controller.tick()
    controller.requests[-1][1](Retriable("too many requests"))
    controller.tick(1)
    assert len(controller.requests) == 1
    controller.tick(AGAIN_US / S)
    controller.answer()
    assert (len(controller.requests), controller.left()) == (2, 0)


def test_another_controller_counts_the_time_anew_and_the_earlier_one_shows_nothing(controller):
    controller.die()
    controller.tick(60)
    assert controller.gauge.value == 2
    controller.take_overs.end()
    assert controller.gauge.value == 0
    controller.take_overs.begin()
    controller.tick(59)
    assert len(controller.seals) == 1
    controller.tick(60)
    assert len(controller.seals) == 2


def test_it_may_be_turned_off_and_a_broker_without_a_log_in_the_store_is_left_alone(controller):
    controller.set_after(-1)
    controller.die()
    controller.tick(10_000)
    assert (controller.seals, controller.gauge.value) == ([], 0)
    controller.set_after(AFTER_MS)
    controller.bench.register(2)
    controller.tick()
    controller.tick(10_000)
    assert controller.seals == []


def test_a_controller_without_a_log_in_the_store_takes_nothing_over(controller):
    controller.take_overs.end_lives = None
    controller.die()
    controller.tick(60)
    assert (controller.seals, controller.requests, controller.gauge.value) == ([], [], 2)
    controller.take_overs.end_lives = controller.end_lives
    controller.tick(PATIENCE_US / S)
    assert controller.seals == [2]
