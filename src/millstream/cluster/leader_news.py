"""Brokers tell each other which partitions they lead and which replicas are in sync, so that each answers Metadata for
all.

::

    partition leads ──report_leader──► shard 0's follower ──Leaders──► every other broker's shard 0 ──► its shards
    a connection opens, or takes items again ──all that this broker leads──► that broker

A leader speaks for itself, once for each change, together with the others of the same turn. It says everything again
after a reconnect, and to a slow peer once its full queue is sent: what was said in between is lost. Of two leaderships
of one group the one of the newer term wins, in every order of arrival.

News of a group that this broker does not know is kept, up to `EARLY_MAX` groups: a broker that has just started learns
of leaders before it has applied the creation of their topics. Overload: a full exchange travels in items of
`ITEM_LEADERS`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from millstream.cluster.follower import Follower
from millstream.cluster.messages import LeaderEpochs, LeaderFact
from millstream.cluster.metadata import MetadataCache, MetadataListener
from millstream.cluster.topic_table import PartitionMeta, TopicMeta
from millstream.model.cluster import NodeId
from millstream.model.replication import ReplicaId, Term, node_of, replica_id
from millstream.peers.items import PLACES_MAX, Leaders, Leadership
from millstream.peers.network import Network

ITEM_LEADERS: Final = 4_096


EARLY_MAX: Final = 100_000


class LeaderNews(MetadataListener):
    """Both directions on the controller's shard.

    Lifecycle: made with shard 0's controller. Shard: 0. Invariant: no group in ``_early`` was known when its news came.
    """

    def __init__(self, network: Network, cache: MetadataCache, follower: Follower) -> None:
        self._network = network
        self._cache = cache
        self._follower = follower
        self._node = NodeId(cache.node_id)
        self._early: dict[int, Leadership] = {}
        follower.on_leaders = self._tell
        cache.subscribe(self)
        network.on_opened = self._tell_all

    def learn(self, sender: ReplicaId, leaderships: Sequence[Leadership]) -> None:
        """Another broker leads these groups."""
        node = node_of(sender)
        changed: dict[bytes, list[LeaderFact]] = {}
        for each in leaderships:
            place = self._cache.group_place(each.group)
            if node_of(each.leader) != node:
                continue
            if place is None:
                self._keep(each)
            else:
                topic_id, index = place
                topic = self._cache.topic_by_id(topic_id)
                assert topic is not None
                in_sync = _nodes(topic.partitions[index].replicas, each.in_sync)
                changed.setdefault(topic_id, []).append((index, each.term, node, in_sync))
        if changed:
            self._follower.learn_leaders([LeaderEpochs(topic_id, epochs) for topic_id, epochs in changed.items()])

    def topic_created(self, topic: TopicMeta) -> None:
        """Apply the news about the topic that arrived before its creation."""
        self._recall(topic)

    def partitions_added(self, topic: TopicMeta, first_index: int) -> None:
        """The same for new partitions."""
        _ = first_index
        self._recall(topic)

    def _keep(self, news: Leadership) -> None:
        before = self._early.get(news.group)
        if (before is None or before.term <= news.term) and len(self._early) < EARLY_MAX:
            self._early[news.group] = news

    def _recall(self, topic: TopicMeta) -> None:
        for part in topic.partitions if self._early else ():
            news = self._early.pop(part.raft_group, None)
            if news is not None:
                self.learn(news.leader, [news])

    def _tell(self, changed: Iterable[LeaderEpochs]) -> None:
        """This broker leads partitions from now on."""
        news: list[Leadership] = []
        for each in changed:
            topic = self._cache.topic_by_id(each.topic_id)
            if topic is not None:
                news += [
                    self._leadership(topic.partitions[index], epoch, in_sync)
                    for index, epoch, leader, in_sync in each.epochs
                    if leader == self._node and index < len(topic.partitions)
                ]
        if news:
            for node in self._cache.state.registry.nodes():
                if node != self._node:
                    self._say(node, news, full=False)

    def _tell_all(self, node: NodeId, shard: int) -> None:
        if shard == 0:
            mine = [
                self._leadership(part, part.leader_epoch, part.in_sync)
                for topic in self._cache.topics()
                for part in topic.partitions
                if part.leader == self._node
            ]
            self._say(node, mine, full=True)

    def _say(self, node: NodeId, news: list[Leadership], *, full: bool) -> None:
        for begin in range(0, len(news), ITEM_LEADERS):
            self._network.say(node, Leaders(full, tuple(news[begin : begin + ITEM_LEADERS])))

    def _leadership(self, part: PartitionMeta, epoch: int, in_sync: tuple[int, ...]) -> Leadership:
        return Leadership(part.raft_group, Term(epoch), replica_id(self._node), _places(part.replicas, in_sync))


def _places(replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> int:
    """The replicas that are in sync by their places; see ``Leadership.in_sync``."""
    return sum(1 << place for place, node in enumerate(replicas[:PLACES_MAX]) if node in in_sync)


def _nodes(replicas: tuple[int, ...], places: int) -> tuple[int, ...]:
    """The node ids that ``_places`` made a number of."""
    return tuple(node for place, node in enumerate(replicas[:PLACES_MAX]) if places >> place & 1)
