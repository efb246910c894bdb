"""The topics that one shard knows, by name, by id and by Raft group.

An event topic has a second entry, for its data as a topic (``TopicMeta.data_of``). Readers find it by name and id; it
is in no list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.events import data_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.cluster.metadata import TopicMeta


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
