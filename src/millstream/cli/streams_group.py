"""Streams groups (KIP-1071) for ``millstream group``, by our own client: confluent-kafka does not know them.

A streams group has committed offsets as a consumer group has. Its members run tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.failure import CommandFailed
from millstream.client.coordinators import GROUP, Coordinators
from millstream.client.streams_tasks import sources_of
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
        return {
            place: (member.member_id, member.client_id, member.client_host)
            for member in self.described.members
            for place in sources_of(self.described, member)
        }


def streams_group(cluster: Cluster, name: str) -> StreamsGroup | None:
    """A streams group; None if the group is of another kind, or does not exist, or brokers know no streams groups."""
    if STREAMS_GROUP_DESCRIBE not in cluster.any_connection().versions:
        return None
    coordinators = Coordinators(cluster)
    request = StreamsGroupDescribeRequest([name])
    (described,) = coordinators.insist(
        f"group '{name}'", GROUP, name, lambda line: line.ask(request, StreamsGroupDescribeResponse).groups
    )
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if described.error_code:
        raise CommandFailed(f"group '{name}': {described.error_message or ErrorCode(described.error_code).name}")
    return StreamsGroup(described, coordinators.node(GROUP, name))
