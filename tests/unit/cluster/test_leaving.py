"""A broker that stops asks the controller to fence it, and waits no longer than that can help."""

from collections import deque
from heapq import heappop, heappush
from itertools import count

import pytest

from millstream.cluster.own_registration import (
    CONTROLLER_REQUEST,
    LEAVE_ANSWER_US,
    LEAVE_RETRY_US,
    LEAVE_US,
    tell_leaving,
)
from millstream.core.controller.requests import FenceBroker, decode_request
from millstream.errors import OutcomeUnknown, Rejected, Retriable
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.model.error_code import ErrorCode

ME, OTHER = NodeId(1), NodeId(2)
EPOCH = BrokerEpoch(7)
NEW_CONTROLLER = Retriable("it does not lead the controller's log", ErrorCode.NOT_CONTROLLER)
NO_CONNECTION = Retriable("there is no connection", ErrorCode.BROKER_NOT_AVAILABLE)


class World:
    """A clock, calls that answer at once with what ``answers`` has (the last one again and again), and a leader."""

    def __init__(self, *answers, leaders=(OTHER,)):
        self.us = 1
        self.answers, self.leaders = deque(answers), deque(leaders)
        self.timers, self.order = [], count()
        self.calls = self
        self.asked = []
        self.done_us = None

    def now_us(self):
        return self.us

    def call_later(self, delay_us, callback):
        heappush(self.timers, (self.us + delay_us, next(self.order), callback))

    def call(self, node, method, payload, timeout_ms, done):
        assert (method, decode_request(payload)) == (CONTROLLER_REQUEST, FenceBroker(ME, EPOCH))
        assert timeout_ms * 1000 == LEAVE_ANSWER_US
        self.asked.append(node)
        done(self.answers.popleft() if len(self.answers) > 1 else self.answers[0])

    def leader(self):
        return self.leaders.popleft() if len(self.leaders) > 1 else self.leaders[0]

    def leave(self, epoch=EPOCH):
        """How long it took, in µs."""
        began_us = self.us

        def done():
            assert self.done_us is None, "once"
            self.done_us = self.us

        tell_leaving(self, self, CONTROLLER_REQUEST, ME, epoch, self.leader, done)
        while self.timers:
            self.us, _, callback = heappop(self.timers)
            callback()
        return self.done_us - began_us


def test_a_controller_that_answers_ends_the_wait():
    world = World(b"fenced")
    assert world.leave() == 0
    assert world.asked == [OTHER]


def test_a_new_controller_is_asked_until_it_decides():
    """It needs a sync on a majority first, which takes longer than a leader is searched for when disks are busy."""
    tries = 2 * LEAVE_US // LEAVE_RETRY_US
    world = World(*[NEW_CONTROLLER] * tries, b"fenced")
    assert world.leave() == tries * LEAVE_RETRY_US
    assert len(world.asked) == tries + 1


def test_the_broker_that_this_one_handed_over_to_is_waited_for():
    world = World(b"fenced", leaders=[None, None, OTHER])
    assert world.leave() == 2 * LEAVE_RETRY_US
    assert world.asked == [OTHER]


@pytest.mark.parametrize(
    ("answer", "leader", "limit_us"),
    [
        (NEW_CONTROLLER, OTHER, LEAVE_ANSWER_US),
        (NO_CONNECTION, OTHER, LEAVE_US),
        (OutcomeUnknown("the connection ended"), OTHER, LEAVE_US),
        (Rejected("unknown"), OTHER, LEAVE_US),
        (b"", None, LEAVE_US),
    ],
)
def test_the_stop_goes_on_without_a_controller(answer, leader, limit_us):
    assert limit_us <= World(answer, leaders=[leader]).leave() <= limit_us + LEAVE_RETRY_US


@pytest.mark.parametrize(("epoch", "leader"), [(None, OTHER), (EPOCH, ME)])
def test_a_broker_that_never_registered_or_that_decides_alone_asks_nobody(epoch, leader):
    world = World(b"", leaders=[leader])
    assert world.leave(epoch) == 0
    assert world.asked == []
