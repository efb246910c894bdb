"""The topics that one shard knows, by name, by id and by Raft group.

An event topic has a second entry, for its data as a topic (``TopicMeta.data_of``). Readers find it by name and id; it
is in no list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.config.errors import ConfigError
from millstream.config.topic_resolution import topic_config
from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.model.cluster import LOST
from millstream.model.events import data_topic_name
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.config.settings import Settings
    from millstream.config.topic_properties import TopicConfig
    from millstream.core.controller.state import TopicState


class PartitionMeta(msgspec.Struct, frozen=True, gc=False):
    """One partition. ``home_shard`` is its shard on this node, ``placement.ELSEWHERE`` without a replica here.
    ``in_sync`` are the replicas that its leader reported last as in sync. ``heard``: a broker has reported since the
    start of this one that it leads; before that ``leader`` is the one that the creation assigned.
    """

    index: int
    raft_group: int
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    home_shard: int
    in_sync: tuple[int, ...]
    heard: bool = False
    failed: tuple[int, ...] = ()
    """Node ids of replicas that have failed (`failed_replicas`)."""


class TopicMeta:
    """One topic as of one revision. Not changed once made.

    ``data_of`` is the event topic whose data this topic is, "" for every other one: such a topic is read by its
    name and id, and is in no list.

    ``encoded`` belongs to the Kafka handlers: pieces of responses by a key of theirs, good as long as this object is
    the topic's current one.
    """

    __slots__ = (
        "_config",
        "_settings",
        "configs",
        "data_of",
        "encoded",
        "internal",
        "lost",
        "name",
        "partitions",
        "topic_id",
    )

    def __init__(
        self, topic: TopicState, partitions: tuple[PartitionMeta, ...], settings: Settings, data_of: str = ""
    ) -> None:
        self.name = topic.name
        self.data_of = data_of
        self.topic_id = topic.topic_id
        self.configs = topic.configs
        """The topic's own properties, by Kafka name."""
        self.partitions = partitions
        self.internal = topic.name in INTERNAL_TOPICS
        self.lost = any(part.leader == LOST for part in partitions)
        """Whether a replica here has had no leader for some seconds."""
        self.encoded: dict[int, bytes] = {}
        self._settings = settings
        self._config: TopicConfig | None = None

    @property
    def config(self) -> TopicConfig:
        """The resolved configuration; made on first use."""
        if self._config is None:
            self._config = resolved_config(self.name, self.configs, self._settings)
        return self._config


class TopicTable:
    """Invariant: each topic is in ``by_name`` and ``by_id``, and each of its partitions in ``places``."""

    __slots__ = ("_names", "by_id", "by_name", "data_by_id", "data_by_name", "places")

    def __init__(self) -> None:
        self.by_name: dict[str, TopicMeta] = {}
        self.by_id: dict[bytes, TopicMeta] = {}
        self.data_by_name: dict[str, TopicMeta] = {}
        """The data of each event topic as a topic."""
        self.data_by_id: dict[bytes, TopicMeta] = {}
        self.places: dict[int, tuple[bytes, int]] = {}
        """Topic id and partition index of every Raft group."""
        self._names: tuple[str, ...] | None = None

    def put(self, topic: TopicMeta, data: TopicMeta | None) -> None:
        """Add a topic, or its new value, with more partitions perhaps. ``data`` is that of an event topic."""
        before = self.by_name.get(topic.name)
        if before is None:
            self._names = None
        for part in topic.partitions[len(before.partitions) if before is not None else 0 :]:
            self.places[part.raft_group] = (topic.topic_id, part.index)
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        if data is not None:
            self.data_by_name[data.name] = data
            self.data_by_id[data.topic_id] = data

    def remove(self, topic: TopicMeta) -> None:
        """Remove a topic and its data."""
        del self.by_name[topic.name]
        del self.by_id[topic.topic_id]
        data = self.data_by_name.pop(data_topic_name(topic.name), None)
        if data is not None:
            del self.data_by_id[data.topic_id]
        for part in topic.partitions:
            del self.places[part.raft_group]
        self._names = None

    def names(self) -> tuple[str, ...]:
        """Every topic's name, sorted."""
        if self._names is None:
            self._names = tuple(sorted(self.by_name))
        return self._names

    def all(self) -> Iterator[TopicMeta]:
        """Every topic, and the data of event topics."""
        yield from self.by_name.values()
        yield from self.data_by_name.values()


def resolved_config(name: str, configs: dict[str, str], settings: Settings) -> TopicConfig:
    """A topic's configuration. Properties of another release that this one refuses are left out, with a log line."""
    try:
        return topic_config(configs, settings)
    except ConfigError:
        good: dict[str, str] = {}
        for key, value in configs.items():
            try:
                topic_config({**good, key: value}, settings)
            except ConfigError as error:
                operator_log.warning("topic %s: a stored property is ignored: %s", name, error.message)
            else:
                good[key] = value
        return topic_config(good, settings)
