"""A replica that has failed is offline in the metadata of every broker and shard, until it is served again."""

from types import SimpleNamespace

from millstream.cluster.failed_replicas import AGAIN_LOOKS, FailedReplicas
from millstream.cluster.metadata import MetadataCache
from millstream.config.settings import Settings
from millstream.core.controller.commands import (
    MANY_BROKERS,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    TopicCreated,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.kafka.cluster_view import partition_view
from millstream.model.replication import replica_id

ID = b"t" * 16
GROUP = 7


class Broker:
    """Two shards of one broker, and how it reaches others."""

    def __init__(self, node, others):
        self.node, self.others = node, others
        self.failed = [set(), set()]
        self.timers = []
        self.handlers = [{}, {}]
        self.caches = []
        self.calls = SimpleNamespace(call=self.call, serve=self.serve_call)
        self.on_call = None
        self.cut = False
        self.called = 0
        for shard in (0, 1):
            state = ControllerState()
            state.apply(ClusterCreated("c", 1))
            state.apply(FeatureLevelRaised(MANY_BROKERS))
            for broker in (1, 2):
                profile = BrokerProfile(
                    (ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 1), "", 1, "0", MANY_BROKERS
                )
                state.apply(BrokerRegistered(broker, bytes([broker]) * 16, profile))
                state.apply(BrokerUnfenced(broker, state.registry.brokers[broker].epoch))
            state.apply(TopicCreated("t", ID, (PartitionState(GROUP, (1, 2, 3), 1),), {}))
            cache = MetadataCache(state, {}, Settings(data_dir="/unused", shards=2, node_id=node))
            cache.is_alive = lambda _: True
            self.caches.append(cache)
            mailbox = SimpleNamespace(
                serve=self.handlers[shard].__setitem__,
                tell=lambda to, method, payload, shard=shard: self.handlers[to][method](shard, payload, None),
            )
            reactor = SimpleNamespace(call_later=lambda _, callback: self.timers.append(callback))
            near = SimpleNamespace(id=shard, count=2, reactor=reactor, mailbox=mailbox)
            FailedReplicas(near, lambda shard=shard: self.failed[shard], cache, self.calls).start()

    def serve_call(self, method, handler):
        self.on_call = handler

    def call(self, node, method, payload, timeout_ms, done):
        self.called += 1
        if not self.cut:
            self.others[node].on_call(replica_id(self.node), payload, timeout_ms, done)

    def look(self):
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    @property
    def offline(self):
        views = [partition_view(cache, cache.topic("t").partitions[0]).offline for cache in self.caches]
        assert views[0] == views[1], "the shards differ"
        return views[0]


def two():
    brokers = {}
    brokers[1], brokers[2] = Broker(1, brokers), Broker(2, brokers)
    return brokers[1], brokers[2]


def test_a_failed_replica_of_any_shard_is_offline_everywhere_until_it_is_served():
    one, two_ = two()
    two_.failed[1].add(GROUP)
    two_.look()
    assert one.offline == two_.offline == [2]
    one.failed[0].add(GROUP)
    one.look()
    assert one.offline == two_.offline == [1, 2]
    two_.failed[1].clear()
    two_.look()
    assert one.offline == two_.offline == [1]


def test_what_was_not_heard_is_told_again():
    one, two_ = two()
    one.cut = True
    one.failed[0].add(GROUP)
    one.look()
    assert (one.offline, two_.offline) == ([1], [])
    one.cut = False
    for _ in range(AGAIN_LOOKS):
        one.look()
    assert two_.offline == [1]


def test_a_broker_that_has_started_again_has_no_failed_replica():
    one, two_ = two()
    one.failed[0].add(GROUP)
    one.look()
    assert two_.offline == [1]
    again = one.others[1] = Broker(1, one.others)
    again.cut = True
    again.look()
    assert two_.offline == [1], "the message is lost"
    again.cut = False
    for _ in range(AGAIN_LOOKS):
        again.look()
    assert again.offline == two_.offline == []


def test_groups_that_nobody_knows_are_ignored():
    one, two_ = two()
    one.failed[0].add(99)
    one.look()
    assert one.offline == two_.offline == []
