"""Leaders are told between brokers: each for itself, the newest term wins, everything again after a reconnect."""

import pytest

from millstream.cluster.leader_news import ITEM_LEADERS, LeaderNews
from millstream.cluster.messages import LeaderEpochs
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.placement import ELSEWHERE
from millstream.config.settings import Settings
from millstream.core.controller.commands import (
    MANY_BROKERS,
    BrokerRegistered,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    TopicCreated,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.peers.items import Leadership

ID = bytes(range(16))


class Network:
    def __init__(self):
        self.said = []

    def say(self, node, item):
        self.said.append(
            (node, item.full, [(each.group, each.term, each.leader, each.in_sync) for each in item.leaderships])
        )


class Follower:
    def __init__(self, cache):
        self.cache = cache

    def learn_leaders(self, changed):
        for each in changed:
            self.cache.set_leader_epochs(each.topic_id, each.epochs)


class Bench:
    def __init__(self, partitions=3):
        state = ControllerState()
        state.apply(ClusterCreated("c", 1))
        state.apply(FeatureLevelRaised(MANY_BROKERS))
        for node in (1, 2, 3):
            profile = BrokerProfile(
                (ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 1), "", 1, "0", MANY_BROKERS
            )
            state.apply(BrokerRegistered(node, bytes([node]) * 16, profile))
        created = tuple(PartitionState(1 + index, (1 + index % 3,), 1 + index % 3) for index in range(partitions))
        state.apply(TopicCreated("t", ID, created, {}))
        homes = {part.raft_group: 0 for part in created if part.leader == 1}
        self.cache = MetadataCache(state, homes, Settings(node_id=1))
        self.network = Network()
        self.follower = Follower(self.cache)
        self.news = LeaderNews(self.network, self.cache, self.follower)

    def shown(self):
        return [(part.leader, part.leader_epoch) for part in self.cache.topic("t").partitions]


def test_a_change_is_told_to_every_other_broker():
    bench = Bench()
    bench.follower.on_leaders([LeaderEpochs(ID, [(0, 4, 1, (1,))]), LeaderEpochs(bytes(16), [(0, 9, 1, ())])])
    assert bench.network.said == [(2, False, [(1, 4, 1, 1)]), (3, False, [(1, 4, 1, 1)])]


def test_what_another_broker_leads_is_not_passed_on():
    bench = Bench()
    bench.follower.on_leaders([LeaderEpochs(ID, [(1, 4, 2, ())])])
    assert bench.network.said == []


def test_everything_is_told_again_when_a_connection_opens():
    bench = Bench(partitions=3 * ITEM_LEADERS + 3)
    bench.network.on_opened(2, 1)
    assert bench.network.said == [], "shard 0 of the peer only"
    bench.network.on_opened(2, 0)
    assert [(node, full, len(news)) for node, full, news in bench.network.said] == [
        (2, True, ITEM_LEADERS),
        (2, True, 1),
    ]


def test_the_newest_term_wins_whatever_the_order():
    bench = Bench()
    bench.news.learn(2, [Leadership(2, 7, 2)])
    bench.news.learn(3, [Leadership(2, 6, 3)])
    assert bench.shown() == [(1, 0), (2, 7), (3, 0)]
    bench.news.learn(3, [Leadership(2, 8, 3)])
    assert bench.shown() == [(1, 0), (3, 8), (3, 0)]


@pytest.mark.parametrize("news", [Leadership(99, 7, 2), Leadership(1, 7, 3)])
def test_unknown_groups_and_leaders_that_do_not_tell_for_themselves_are_ignored(news):
    bench = Bench()
    bench.news.learn(2, [news])
    assert bench.shown() == [(1, 0), (2, 0), (3, 0)]


def test_news_of_a_group_is_kept_until_its_topic_is_applied_here():
    bench = Bench()
    bench.news.learn(2, [Leadership(4, 7, 2)])
    bench.news.learn(2, [Leadership(4, 6, 2)])
    bench.news.learn(2, [Leadership(4, 7, 2, 0b10)])
    other = bytes(15) + b"o"
    for _ in bench.cache.apply(TopicCreated("other", other, (PartitionState(4, (2, 3), 2),), {}), iter([ELSEWHERE])):
        pass
    (part,) = bench.cache.topic("other").partitions
    assert (part.leader, part.leader_epoch, part.in_sync) == (2, 7, (3,)), "the last word of the newest term"


def test_a_group_has_a_home_here_only_if_this_broker_holds_it():
    bench = Bench()
    assert [bench.cache.home_of_group(group) for group in (1, 2, 99)] == [0, None, None]
    assert bench.cache.group_place(2) == (ID, 1)
    assert [part.home_shard for part in bench.cache.topic("t").partitions] == [0, ELSEWHERE, ELSEWHERE]
