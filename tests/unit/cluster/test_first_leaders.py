"""Who creates partitions is answered when their first leaders have reported themselves, or after a while."""

from types import SimpleNamespace

import pytest

from millstream.cluster.first_leaders import WAIT_US, FirstLeaders
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.placement import ELSEWHERE
from millstream.config.settings import Settings
from millstream.core.controller.commands import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    TopicCreated,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.model.cluster import UNKNOWN

ID = b"i" * 16
PROFILE = BrokerProfile((ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 33145), "", 1, "0.1.0", 1)
PLACES = ((1, 2), (2, 1), (3,))
LONG_US = 10 * WAIT_US


class Bench:
    """Broker 1 of three, with topic "t": three partitions, led by the brokers 1, 2 and 3 and held by `PLACES`."""

    def __init__(self, places=PLACES, fenced=()):
        state = ControllerState()
        state.apply(ClusterCreated("x", 1))
        state.apply(FeatureLevelRaised(1))
        for node in (1, 2, 3):
            state.apply(BrokerRegistered(node, bytes([node]) * 16, PROFILE))
            state.apply(BrokerUnfenced(node, state.registry.brokers[node].epoch))
        for node in fenced:
            state.apply(BrokerFenced(node, state.registry.brokers[node].epoch))
        parts = tuple(PartitionState(number, nodes, nodes[0]) for number, nodes in enumerate(places, 1))
        state.apply(TopicCreated("t", ID, parts, {}))
        homes = {number: 0 if 1 in nodes else ELSEWHERE for number, nodes in enumerate(places, 1)}
        self.cache = MetadataCache(state, homes, Settings(data_dir="/unused", shards=1, node_id=1))
        self.timers = []
        self.leaders = FirstLeaders(SimpleNamespace(call_later=self.later), self.cache)
        self.answered = 0

    def later(self, delay_us, callback):
        timer = SimpleNamespace(delay_us=delay_us, callback=callback, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append(timer)
        return timer

    def ask(self, timeout_us=LONG_US, names=("t",)):
        def done():
            self.answered += 1

        self.leaders.when_led(names, timeout_us, done)
        return self.answered

    def leads(self, index, node):
        self.cache.set_leader_epochs(ID, [(index, 1, node, ())])
        return self.answered


def test_the_answer_waits_for_each_leader_here_and_elsewhere():
    bench = Bench()
    assert bench.ask() == 0
    assert bench.leads(1, 2) == 0
    assert bench.leads(0, UNKNOWN) == 0, "a replica that hears nobody is no leader"
    assert bench.leads(0, 1) == 0
    assert bench.leads(0, 1) == 0
    assert bench.leads(2, 3) == 1
    assert bench.timers[0].cancelled
    assert bench.ask() == 2, "known already"


@pytest.mark.parametrize(("timeout_us", "waited_us"), [(LONG_US, WAIT_US), (WAIT_US // 2, WAIT_US // 2)])
def test_the_wait_is_bounded(timeout_us, waited_us):
    bench = Bench()
    assert bench.ask(timeout_us) == 0
    (timer,) = bench.timers
    assert timer.delay_us == waited_us
    timer.callback()
    assert bench.answered == 1
    for index, node in enumerate((1, 2, 3)):
        assert bench.leads(index, node) == 1, "answered once"


def test_nothing_is_waited_for_that_cannot_be_known():
    assert Bench().ask(timeout_us=0) == 1, "the client does not wait"
    assert Bench().ask(names=("of before",)) == 1
    assert Bench(((3, 2), (3,)), fenced=(3,)).ask() == 1, "no live leader"
    assert Bench(((1,),)).ask() == 1, "a partition that this broker has alone leads already"
