"""A broker is named as a coordinator once it coordinates: after it has opened the partition and read its log."""

from types import SimpleNamespace

import pytest
from coordinator_fakes import FakeMailbox, FakeMetadata, FakeReactor

from millstream.cluster.placement import ELSEWHERE
from millstream.config.settings import Settings
from millstream.coordinator.finding import ASK_BROKER, WAIT_US, Coordinators
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.state_partition import State
from millstream.coordinator.state_topic import Loads
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.errors import OutcomeUnknown, Rejected, Retriable
from millstream.model.error_code import ErrorCode

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
HOME = 1
"""The home shard of the partition."""


class Calls:
    """The way between two brokers; ``fails`` is what a call ends with instead of an answer."""

    def __init__(self, reactor):
        self.reactor = reactor
        self.handlers = {}
        self.fails = None
        self.peers = {}
        self.count = 0

    def serve(self, method, handler):
        self.handlers[method] = handler

    def call(self, node, method, payload, timeout_ms, done):
        self.count += 1
        assert timeout_ms * 1000 > WAIT_US, "the broker that is asked may wait"
        if self.fails is not None:
            self.reactor.call_soon(done, self.fails)
            return
        handler = self.peers[node].handlers[method]

        def run():
            try:
                handler(7, payload, timeout_ms, lambda answer: self.reactor.call_soon(done, answer))
            except Rejected as error:
                done(error)

        self.reactor.call_soon(run)


class Node:
    """A broker of two shards. Its partition 0 of the topic has its home on shard 1."""

    def __init__(self, node_id, reactor, topic, leader=1):
        self.metadata = FakeMetadata(Settings(node_id=node_id, data_dir="/nowhere"))
        self.topic, self.leader = topic, leader
        self.partitions = {}
        self.loads = [Loads(), Loads()]
        self.calls = Calls(reactor)
        boxes = []
        boxes += [FakeMailbox(shard, reactor, boxes) for shard in range(2)]
        self.boxes = boxes
        self.shards = []
        for shard, box in enumerate(boxes):
            context = SimpleNamespace(id=shard, count=2, reactor=reactor, mailbox=box)
            self.shards.append(Coordinators(context, self.metadata))
            self.shards[-1].add(topic, self.partitions if shard == HOME else {}, self.loads[shard])
        self.shards[0].across(self.calls)

    def create(self, here=True):
        """The creation of the topic arrives."""
        self.metadata.add(self.topic, b"t" * 16, [HOME if here else ELSEWHERE])
        self.follow(self.leader, 0)

    def follow(self, leader, epoch):
        part = self.metadata.topics[self.topic].partitions[0]
        part.leader, part.leader_epoch = leader, epoch

    def turn_to(self, state):
        """The partition opens, or what it loads ends."""
        if 0 not in self.partitions:
            self.loads[HOME].began()
        self.partitions[0] = SimpleNamespace(state=state)
        if state is not State.LOADING:
            self.loads[HOME].ended()


class World:
    """Broker 1 leads, or is taken for the leader; broker 2 asks it, and broker 1 itself."""

    def __init__(self, topic=OFFSETS_TOPIC):
        self.topic = topic
        self.reactor = FakeReactor()
        self.one, self.two = (Node(node, self.reactor, topic) for node in (1, 2))
        self.two.calls.peers[1] = self.one.calls

    def find(self, node):
        answers = []
        node.shards[0].find(self.topic, 0, answers.append)
        self.reactor.turn()
        return answers


@pytest.fixture(params=[OFFSETS_TOPIC, TRANSACTION_STATE])
def world(request):
    return World(request.param)


@pytest.mark.parametrize("asked", ["one", "two"])
def test_a_broker_is_named_when_it_has_opened_and_read_the_partition(world, asked):
    world.one.create()
    world.two.create(here=False)
    answers = world.find(getattr(world, asked))
    assert answers == []
    world.one.turn_to(State.LOADING)
    world.reactor.turn()
    assert answers == []
    world.one.turn_to(State.ACTIVE)
    world.reactor.turn()
    assert answers == [ErrorCode.NONE]


def test_a_broker_that_has_not_heard_of_the_topic_answers_when_it_has(world):
    world.two.create(here=False)
    answers = world.find(world.two)
    assert answers == []
    world.one.create()
    world.one.turn_to(State.ACTIVE)
    world.reactor.turn()
    assert answers == [ErrorCode.NONE]


def test_what_is_confirmed_holds_for_the_epoch(world):
    world.one.create()
    world.two.create(here=False)
    world.one.turn_to(State.ACTIVE)
    assert [world.find(world.two) for _ in range(3)] == [[ErrorCode.NONE]] * 3
    assert world.two.calls.count == 1
    world.two.follow(1, 5)
    assert world.find(world.two) == [ErrorCode.NONE]
    assert world.two.calls.count == 2


@pytest.mark.parametrize(("state", "said"), [(None, AWAY), (State.LOADING, ErrorCode.NONE)])
def test_the_wait_is_bounded_and_a_broker_that_reads_for_long_is_named(world, state, said):
    world.one.create()
    world.two.create(here=False)
    if state is not None:
        world.one.turn_to(state)
    mine, other = world.find(world.one), world.find(world.two)
    world.reactor.advance(WAIT_US // 1000 - 1)
    assert mine == other == []
    world.reactor.advance(2)
    world.reactor.turn()
    assert mine == other == [said]
    if state is None:
        world.one.turn_to(State.ACTIVE)
        world.reactor.turn()
        assert mine == [said], "answered once"


@pytest.mark.parametrize("state", [State.FAILED, State.CLOSED, State.STOPPING])
def test_a_leader_that_does_not_coordinate_is_not_named(world, state):
    world.one.create()
    world.one.turn_to(state)
    assert world.find(world.one) == [AWAY]


def test_without_a_leader_or_its_answer_nobody_is_named(world):
    world.one.create(here=False)
    world.one.follow(None, 0)
    assert world.find(world.one) == [AWAY], "no leader"
    assert world.find(world.two) == [AWAY], "no topic"
    world.two.create(here=False)
    assert world.find(world.two) == [AWAY], "the broker that is taken for the leader is none"
    for error in (Retriable("no connection"), OutcomeUnknown("no answer")):
        world.two.calls.fails = error
        assert world.find(world.two) == [AWAY]


def test_a_broker_of_an_earlier_release_is_named_without_its_answer(world):
    world.two.create(here=False)
    world.two.calls.fails = Rejected(f"this broker knows no request {ASK_BROKER}")
    assert world.find(world.two) == [ErrorCode.NONE]


def test_a_topic_that_nothing_coordinates_is_refused_between_brokers():
    world = World("of the future")
    world.one = Node(1, world.reactor, OFFSETS_TOPIC)
    world.two.calls.peers[1] = world.one.calls
    world.two.create(here=False)
    assert world.find(world.two) == [ErrorCode.NONE], "as an earlier release"
