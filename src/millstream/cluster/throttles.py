"""Which replicas of this broker are throttled, and how fast they may be filled; a view of the shard's metadata cache.

``leader.replication.throttled.rate`` and ``follower.replication.throttled.rate`` are settings of a broker; the topic
properties ``leader.`` and ``follower.replication.throttled.replicas`` name the replicas, as ``partition:broker`` or
``*`` for all. ``kafka-reassign-partitions --throttle`` sets all four.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from millstream.cluster.metadata import MetadataCache, MetadataListener
from millstream.cluster.topic_table import TopicMeta
from millstream.config.forms import INT64_MAX

if TYPE_CHECKING:
    from millstream.config.settings import Settings
    from millstream.raft.throttle import Throttle

_ALL: Final = ("*",)


class Throttles(MetadataListener):
    """Keeps the throttle of one shard in step with the metadata.

    Lifecycle: made with the shard, after the cache has its topics. Shard: one each.
    """

    def __init__(self, metadata: MetadataCache, throttle: "Throttle", shards: int) -> None:
        self._metadata = metadata
        self._throttle = throttle
        self._shards = shards
        self._sending: set[int] = set()
        self._receiving: set[int] = set()
        metadata.subscribe(self)
        for topic in metadata.topics():
            self.configs_changed(topic)
        self.settings_changed(metadata.settings)

    def settings_changed(self, settings: "Settings") -> None:
        self._throttle.limit(
            self._share(settings.leader_replication_throttled_rate),
            self._share(settings.follower_replication_throttled_rate),
        )

    def topic_created(self, topic: TopicMeta) -> None:
        self.configs_changed(topic)

    def partitions_added(self, topic: TopicMeta, first_index: int) -> None:
        _ = first_index
        self.configs_changed(topic)

    def replicas_changed(self, topic: TopicMeta, indexes: Sequence[int]) -> None:
        _ = indexes
        self.configs_changed(topic)

    def topic_deleted(self, topic: TopicMeta) -> None:
        gone = {part.raft_group for part in topic.partitions}
        self._sending -= gone
        self._receiving -= gone
        self._throttle.name(self._sending, self._receiving)

    def configs_changed(self, topic: TopicMeta) -> None:
        config = topic.config
        for groups, named in (
            (self._sending, config.leader_throttled_replicas),
            (self._receiving, config.follower_throttled_replicas),
        ):
            for part in topic.partitions:
                if named == _ALL or f"{part.index}:{self._metadata.node_id}" in named:
                    groups.add(part.raft_group)
                else:
                    groups.discard(part.raft_group)
        self._throttle.name(self._sending, self._receiving)

    def _share(self, bytes_per_s: int) -> float:
        return inf if bytes_per_s == INT64_MAX else bytes_per_s / self._shards
