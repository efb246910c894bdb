"""Which source partitions the members of a streams group (KIP-1071) read.

The active task of a partition reads that partition of every source topic of its subtopology that has it.
"""

from millstream.wire.messages.streams_group_describe import DescribedStreamsGroup, DescribedStreamsMember


def sources_of(group: DescribedStreamsGroup, member: DescribedStreamsMember) -> list[tuple[str, int]]:
    """The source partitions of a member's active tasks, in order."""
    subtopologies = () if group.topology is None else group.topology.subtopologies or ()
    topics = {
        one.subtopology_id: [*one.source_topics, *(topic.name for topic in one.repartition_source_topics)]
        for one in subtopologies
    }
    return sorted(
        (topic, partition)
        for tasks in member.assignment.active_tasks
        for topic in topics.get(tasks.subtopology_id, ())
        for partition in tasks.partitions
    )
