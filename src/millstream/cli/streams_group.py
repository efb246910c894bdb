"""Streams groups (KIP-1071) for ``millstream group``, by our own client: confluent-kafka does not know them.

A streams group has committed offsets as a consumer group has. Its members run tasks; the active task of a partition
reads that partition of every source topic of its subtopology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.failure import CommandFailed
from millstream.client.coordinators import GROUP, Coordinators
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_describe import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

STREAMS_GROUP_DESCRIBE = 89


class StreamsGroup(NamedTuple):
    """A streams group, as its coordinator describes it."""

    described: DescribedStreamsGroup
    coordinator: int

    @property
    def owners(self) -> dict[tuple[str, int], tuple[str, str, str]]:
        """Source partition → member id, client id and host of the active task that reads it."""
        topology = self.described.topology
        subtopologies = () if topology is None else topology.subtopologies or ()
        sources = {
            one.subtopology_id: [*one.source_topics, *(topic.name for topic in one.repartition_source_topics)]
            for one in subtopologies
        }
        return {
            (topic, partition): (member.member_id, member.client_id, member.client_host)
            for member in self.described.members
            for tasks in member.assignment.active_tasks
            for topic in sources.get(tasks.subtopology_id, ())
            for partition in tasks.partitions
        }


def streams_group(cluster: Cluster, name: str) -> StreamsGroup | None:
    """A streams group; None if the group is of another kind, or does not exist, or brokers know no streams groups."""
    if STREAMS_GROUP_DESCRIBE not in cluster.any_connection().versions:
        return None
    coordinators = Coordinators(cluster)
    request = StreamsGroupDescribeRequest([name])
    (described,) = coordinators.insist(
        f"group '{name}'", GROUP, name, lambda line: line.call(request, StreamsGroupDescribeResponse, 0).groups
    )
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if described.error_code:
        raise CommandFailed(f"group '{name}': {described.error_message or ErrorCode(described.error_code).name}")
    return StreamsGroup(described, coordinators.node(GROUP, name))
