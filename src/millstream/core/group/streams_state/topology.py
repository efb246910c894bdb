"""The topology of an application: subtopologies, the topics that each reads and writes, and what must match.

``topology_of`` checks a topology that a member brings. Kafka runs into exceptions with some invalid ones (an index of a
copartition group that names no topic, two subtopologies of one name); here each is refused in words, with
STREAMS_INVALID_TOPOLOGY.
"""

from collections.abc import Iterable

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_heartbeat import StreamsSubtopology, StreamsTopicInfo
from millstream.wire.messages.streams_group_heartbeat import StreamsTopology as RequestedTopology
from millstream.wire.messages.streams_group_storage import StreamsGroupTopologyValue


class Topology(msgspec.Struct, frozen=True):
    """A valid topology. ``sources``: source topic → the subtopology that reads it."""

    epoch: int
    subtopologies: dict[str, StreamsSubtopology]
    sources: dict[str, str]

    @property
    def required_topics(self) -> set[str]:
        """Every topic that has to exist before a task can run."""
        return {
            name
            for one in self.subtopologies.values()
            for name in (*one.source_topics, *names(one.repartition_source_topics), *names(one.state_changelog_topics))
        }

    def value(self) -> StreamsGroupTopologyValue:
        """As its record has it."""
        return StreamsGroupTopologyValue(self.epoch, list(self.subtopologies.values()))


def names(topics: Iterable[StreamsTopicInfo]) -> list[str]:
    """The names of topics."""
    return [topic.name for topic in topics]


def source_names(one: StreamsSubtopology) -> list[str]:
    """The topics that a subtopology reads, internal ones included."""
    return [*one.source_topics, *names(one.repartition_source_topics)]


def copartitioned(one: StreamsSubtopology) -> list[set[str]]:
    """The groups of source topics of a subtopology that must have equal numbers of partitions."""
    return [
        {one.source_topics[index] for index in group.source_topics}
        | {one.repartition_source_topics[index].name for index in group.repartition_source_topics}
        for group in one.copartition_groups
    ]


def restored(value: StreamsGroupTopologyValue) -> Topology:
    """The topology of a record."""
    return _topology(value.epoch, value.subtopologies)


def topology_of(requested: RequestedTopology) -> Topology:
    """The topology that a member brings. Rejected if it is invalid."""
    if requested.epoch < 0:
        raise _invalid(f"The topology epoch {requested.epoch} is negative.")
    seen: set[str] = set()
    for one in requested.subtopologies:
        if one.subtopology_id in seen:
            raise _invalid(f"There are two subtopologies {one.subtopology_id}.")
        seen.add(one.subtopology_id)
        _check(one)
    return _topology(requested.epoch, requested.subtopologies)


def _topology(epoch: int, subtopologies: Iterable[StreamsSubtopology]) -> Topology:
    by_id = {one.subtopology_id: one for one in subtopologies}
    return Topology(epoch, by_id, {name: key for key, one in by_id.items() for name in source_names(one)})


def _check(one: StreamsSubtopology) -> None:
    for topic in one.state_changelog_topics:
        if topic.partitions:
            raise _invalid(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}."
            )
    for topic in one.repartition_source_topics:
        if topic.partitions < 0:
            raise _invalid(f"Repartition topic {topic.name} has {topic.partitions} partitions.")
    if not source_names(one):
        raise _invalid(f"No source topics found for subtopology {one.subtopology_id}")
    for group in one.copartition_groups:
        for indexes, topics in (
            (group.source_topics, one.source_topics),
            (group.repartition_source_topics, one.repartition_source_topics),
        ):
            if any(not 0 <= index < len(topics) for index in indexes):
                raise _invalid(f"A copartition group of subtopology {one.subtopology_id} names a topic that it lacks.")


def _invalid(message: str) -> Rejected:
    return Rejected(message, ErrorCode.STREAMS_INVALID_TOPOLOGY)
