"""For which partitions of a share group the share state exists: the content of record 15.

A partition is *initializing* from the moment that its state is asked for until the share coordinator has confirmed it,
and *initialized* from then on. A topic is *deleting* while its state is being removed. Only initialized partitions are
assigned to members.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from millstream.wire.messages.share_group_storage import (
    ShareGroupStatePartitionMetadataValue,
    StateTopic,
    StateTopicPartitions,
)


class Named(msgspec.Struct, frozen=True):
    """Partitions of a topic, with its name when they were noted. ``partitions`` is never empty."""

    name: str
    partitions: frozenset[int]


NamedPartitions: TypeAlias = Mapping[bytes, Named]
"""Topic id → partitions."""


class ShareStates(msgspec.Struct, frozen=True):
    """A record's content; a value."""

    initializing: NamedPartitions = {}
    initialized: NamedPartitions = {}
    deleting: Mapping[bytes, str] = {}
    """Topic id → name."""

    def begun(self, wanted: NamedPartitions, *, is_whole: bool) -> "ShareStates":
        """``wanted`` are being initialized. ``is_whole``: every other partition of their topics has been or is being
        initialized, too, so that nothing of them is left to delete.
        """
        gone = wanted if is_whole else {}
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone}
        return ShareStates(_joined(self.initializing, wanted), self.initialized, deleting)

    def confirmed(self, there: NamedPartitions) -> "ShareStates":
        """The state of these partitions exists."""
        return ShareStates(_without(self.initializing, there), _joined(self.initialized, there), self.deleting)

    def deleted(self, topics: Mapping[bytes, str]) -> "ShareStates":
        """The state of whole topics is being deleted."""
        return ShareStates(
            {topic_id: named for topic_id, named in self.initializing.items() if topic_id not in topics},
            {topic_id: named for topic_id, named in self.initialized.items() if topic_id not in topics},
            {**self.deleting, **topics},
        )

    def without(self, topic_ids: Iterable[bytes]) -> "ShareStates":
        """Nothing is known of these topics any longer."""
        gone = frozenset(topic_ids)
        return ShareStates(
            {topic_id: named for topic_id, named in self.initializing.items() if topic_id not in gone},
            {topic_id: named for topic_id, named in self.initialized.items() if topic_id not in gone},
            {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone},
        )

    def knows(self, topic_id: bytes) -> bool:
        return topic_id in self.initializing or topic_id in self.initialized or topic_id in self.deleting

    @property
    def all(self) -> NamedPartitions:
        """All partitions whose state exists or may come into being."""
        return _joined(self.initializing, self.initialized)

    # As a record

    def value(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            initializing_topics=_stored(self.initializing),
            initialized_topics=_stored(self.initialized),
            deleting_topics=[StateTopic(topic_id, name) for topic_id, name in self.deleting.items()],
        )


NO_STATES = ShareStates()


def states_of(value: ShareGroupStatePartitionMetadataValue) -> ShareStates:
    """The content of a record."""
    return ShareStates(
        _restored(value.initializing_topics),
        _restored(value.initialized_topics),
        {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )


def _joined(one: NamedPartitions, other: NamedPartitions) -> NamedPartitions:
    joined = dict(one)
    for topic_id, named in other.items():
        known = joined.get(topic_id)
        joined[topic_id] = named if known is None else Named(named.name, known.partitions | named.partitions)
    return joined


def _without(those: NamedPartitions, gone: NamedPartitions) -> NamedPartitions:
    rest: dict[bytes, Named] = {}
    for topic_id, named in those.items():
        left = named.partitions - gone[topic_id].partitions if topic_id in gone else named.partitions
        if left:
            rest[topic_id] = Named(named.name, left)
    return rest


def _stored(those: NamedPartitions) -> list[StateTopicPartitions]:
    return [StateTopicPartitions(topic_id, named.name, sorted(named.partitions)) for topic_id, named in those.items()]


def _restored(topics: Iterable[StateTopicPartitions]) -> NamedPartitions:
    return {
        topic.topic_id: Named(topic.topic_name, frozenset(topic.partitions)) for topic in topics if topic.partitions
    }
