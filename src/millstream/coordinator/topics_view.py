"""The cluster's topics for group decisions: a view of the shard's metadata cache."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.cluster.metadata import MetadataListener
from millstream.cluster.topic_table import TopicMeta
from millstream.core.group.topics import Topic

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache


MayDescribe = Callable[[str, str, str], bool]
"""Whether a principal, from an address, may describe the topic of a name."""


def everybody_may(principal: str, host: str, name: str) -> bool:
    """Access is not controlled."""
    _ = principal, host, name
    return True


class MetadataTopics(MetadataListener):
    """``core.group.topics.Topics`` over the metadata cache.

    Lifecycle: one per shard. It subscribes to the cache, to know when a topic was last created.
    """

    def __init__(self, metadata: "MetadataCache", may_describe: "MayDescribe | None" = None) -> None:
        self._metadata = metadata
        self._may_describe = may_describe or everybody_may
        self.created_revision = metadata.revision

    def topic_created(self, topic: TopicMeta) -> None:
        """Note the creation, because regular expressions may match the topic."""
        _ = topic
        self.created_revision = self._metadata.revision

    @property
    def revision(self) -> int:
        return self._metadata.revision

    def by_name(self, name: str) -> Topic | None:
        return _topic(self._metadata.topic(name))

    def by_id(self, topic_id: bytes) -> Topic | None:
        return _topic(self._metadata.topic_by_id(topic_id))

    def names(self) -> Iterable[str]:
        return self._metadata.names()

    def may_describe(self, principal: str, client_host: str, name: str) -> bool:
        """Whether a client may know of a topic. ``client_host`` is an address after a slash, as groups keep it."""
        return self._may_describe(principal, client_host.removeprefix("/"), name)


def _topic(topic: TopicMeta | None) -> Topic | None:
    return None if topic is None else Topic(topic.name, topic.topic_id, len(topic.partitions))
