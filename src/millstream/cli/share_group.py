"""Share groups (KIP-932) for ``millstream group``, by our own client: confluent-kafka does not describe them.

A share group has no committed offsets. In each partition it has a start, before which every record is finished, and a
lag: the records from there on that are not finished yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.failure import CommandFailed
from millstream.client.coordinators import GROUP, Coordinators
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.client.cluster import Cluster

SHARE_GROUP_DESCRIBE, _OFFSETS = 77, 90
_LIST_VERSION = 5
"""First version of ListGroups with types."""


class SharePosition(NamedTuple):
    """A share group in one partition; None where it is not known."""

    topic: str
    partition: int
    start: int | None
    lag: int | None
    members: int
    """How many members are assigned the partition."""


class ShareGroup(NamedTuple):
    """A share group, as its coordinator describes it."""

    described: DescribedShareGroup
    coordinator: int
    positions: list[SharePosition]


def list_groups_of(cluster: Cluster, kind: str, api: int, states: Sequence[str]) -> list[ListedGroup]:
    """The groups of one kind on all brokers, in one of ``states`` (none: in any). None where brokers do not know
    ``api``, which describes them.
    """
    if api not in cluster.any_connection().versions:
        return []
    request = ListGroupsRequest(list(states), [kind])
    found: list[ListedGroup] = []
    for node in cluster.metadata([]).brokers:
        answer = cluster.insist(
            "groups", lambda node=node: cluster.connection(node).call(request, ListGroupsResponse, _LIST_VERSION)
        )
        if answer.error_code:
            raise CommandFailed(f"groups of broker {node}: {ErrorCode(answer.error_code).name}")
        found += answer.groups
    return found


def share_group(cluster: Cluster, name: str) -> ShareGroup | None:
    """A share group; None if the group is of another kind, or does not exist, or brokers know no share groups."""
    if SHARE_GROUP_DESCRIBE not in cluster.any_connection().versions:
        return None
    coordinators = Coordinators(cluster)
    request = ShareGroupDescribeRequest([name])
    (described,) = coordinators.insist(
        f"group '{name}'", GROUP, name, lambda line: line.call(request, ShareGroupDescribeResponse, 1).groups
    )
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if described.error_code:
        raise CommandFailed(f"group '{name}': {described.error_message or ErrorCode(described.error_code).name}")
    return ShareGroup(described, coordinators.node(GROUP, name), _positions(coordinators, name, described))


def _positions(coordinators: Coordinators, name: str, described: DescribedShareGroup) -> list[SharePosition]:
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(name)])
    (group,) = coordinators.insist(
        f"offsets of group '{name}'",
        GROUP,
        name,
        lambda line: line.call(request, DescribeShareGroupOffsetsResponse, line.version_of(_OFFSETS)).groups,
    )
    if group.error_code:
        raise CommandFailed(f"offsets of group '{name}': {group.error_message or ErrorCode(group.error_code).name}")
    members: dict[tuple[str, int], int] = {}
    for member in described.members:
        for topic in member.assignment.topic_partitions:
            for index in topic.partitions:
                members[topic.topic_name, index] = members.get((topic.topic_name, index), 0) + 1
    return sorted(
        SharePosition(
            topic.topic_name,
            one.partition_index,
            None if one.start_offset < 0 else one.start_offset,
            None if one.lag < 0 else one.lag,
            members.get((topic.topic_name, one.partition_index), 0),
        )
        for topic in group.topics
        for one in topic.partitions
    )


def reset_share_group(cluster: Cluster, name: str, target: Mapping[tuple[str, int], int]) -> None:
    """Let a share group without members start at ``target`` (topic and partition → offset)."""
    topics: dict[str, list[AlterShareOffsetsPartition]] = {}
    for (topic, partition), offset in sorted(target.items()):
        topics.setdefault(topic, []).append(AlterShareOffsetsPartition(partition, offset))
    request = AlterShareGroupOffsetsRequest(name, [AlterShareOffsetsTopic(*one) for one in topics.items()])

    answer = Coordinators(cluster).insist(
        f"group '{name}'", GROUP, name, lambda line: line.call(request, AlterShareGroupOffsetsResponse, 0)
    )
    if answer.error_code:
        raise Rejected(f"group '{name}': {answer.error_message or ErrorCode(answer.error_code).name}")
    for topic in answer.responses:
        for one in topic.partitions:
            if one.error_code:
                why = one.error_message or ErrorCode(one.error_code).name
                raise CommandFailed(
                    f"group '{name}' was not moved in {topic.topic_name} partition {one.partition_index}: {why}"
                )
