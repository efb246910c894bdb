"""Which partitions' state each instance of the application has, for interactive queries.

Members get the endpoints of all members whenever these may have changed: the endpoint epoch of the group increases, and
each heartbeat that has another one gets the whole list. It is not stored: a
successor counts from 0, and members with another epoch ask it once.
"""

from collections.abc import Iterable

from millstream.core.group.consumer_state.topics import Topics
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.tasks import Epochs, Tasks
from millstream.core.group.streams_state.topology import source_names
from millstream.wire.messages.streams_group_heartbeat import StreamsEndpointToPartitions, StreamsTopicPartition


def endpoints(streams: StreamsGroup, topics: Topics) -> list[StreamsEndpointToPartitions]:
    """The partitions of each member that has an endpoint."""
    return [
        StreamsEndpointToPartitions(
            member.endpoint,
            list(_partitions(streams, member.assigned.active, topics)),
            list(_partitions(streams, member.assigned.standby, topics)),
        )
        for member in streams.members.values()
        if member.endpoint is not None
    ]


def _partitions(streams: StreamsGroup, tasks: Tasks | Epochs, topics: Topics) -> Iterable[StreamsTopicPartition]:
    """The source partitions of tasks. A smaller topic has none for the last tasks of its subtopology."""
    topology = streams.topology
    for name, indexes in tasks.items():
        subtopology = None if topology is None else topology.subtopologies.get(name)
        for source in () if subtopology is None else source_names(subtopology):
            topic = topics.by_name(source)
            found = sorted(index for index in indexes if topic is not None and index < topic.partitions)
            if found:
                yield StreamsTopicPartition(source, found)
