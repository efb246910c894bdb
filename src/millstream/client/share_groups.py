"""Share groups (KIP-932) as their coordinator describes them: confluent-kafka does not.

A share group has no committed offsets. In each partition it has a start, before which every record is finished, and a
lag: the records from there on that are not finished yet. The coordinator is asked again while it moves or loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.client.cluster import error_of, refuse
from millstream.client.coordinators import GROUP, Coordinators
from millstream.client.group_offsets import ask_once
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareOffsetsTopic,
)
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsTopic,
)
from millstream.wire.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from millstream.client.cluster import Cluster

SHARE_GROUP_DESCRIBE: Final = 77


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


def share_group(cluster: Cluster, name: str) -> ShareGroup | None:
    """A share group; None if the group is of another kind, or does not exist, or brokers know no share groups.

    Raises:
        Rejected: a right is missing.
        Unavailable: its coordinator does not answer in time.
    """
    if SHARE_GROUP_DESCRIBE not in cluster.any_connection().versions:
        return None
    coordinators = Coordinators(cluster)
    request = ShareGroupDescribeRequest([name])
    (described,) = coordinators.insist(
        f"group '{name}'", GROUP, name, lambda line: line.ask(request, ShareGroupDescribeResponse, lowest=1).groups
    )
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if described.error_code:
        raise error_of(described.error_code, f"group '{name}'", described.error_message)
    return ShareGroup(described, coordinators.node(GROUP, name), _positions(coordinators, name, described))


def share_offsets(coordinators: Coordinators, name: str) -> list[ShareOffsetsTopic]:
    """The partitions that a share group has a state of, by topic. A start of -1 is not known, or cannot be read."""
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(name)])
    (group,) = coordinators.insist(
        f"offsets of group '{name}'",
        GROUP,
        name,
        lambda line: line.ask(request, DescribeShareGroupOffsetsResponse).groups,
    )
    if group.error_code:
        raise error_of(group.error_code, f"offsets of group '{name}'", group.error_message)
    return group.topics


def set_starts(cluster: Cluster, name: str, starts: Mapping[tuple[str, int], int]) -> None:
    """Let a share group without members start there (topic and partition → offset). Sent once.

    Raises:
        Rejected: the group has members, or a right is missing; some starts may be set.
        OutcomeUnknown: the connection was lost.
    """
    topics: dict[str, list[AlterShareOffsetsPartition]] = {}
    for (topic, partition), offset in sorted(starts.items()):
        topics.setdefault(topic, []).append(AlterShareOffsetsPartition(partition, offset))
    request = AlterShareGroupOffsetsRequest(name, [AlterShareOffsetsTopic(*one) for one in topics.items()])
    answer = ask_once(cluster, name, lambda line: line.ask(request, AlterShareGroupOffsetsResponse))
    refuse(answer.error_code, f"group {name}", answer.error_message)
    for topic in answer.responses:
        for one in topic.partitions:
            refuse(one.error_code, f"start of {name} in {topic.topic_name}-{one.partition_index}", one.error_message)


def forget_topics(cluster: Cluster, name: str, topics: Collection[str]) -> None:
    """Let a share group without members forget where it starts in topics. Raises as ``set_starts``."""
    request = DeleteShareGroupOffsetsRequest(name, [DeleteShareOffsetsTopic(topic) for topic in sorted(topics)])
    answer = ask_once(cluster, name, lambda line: line.ask(request, DeleteShareGroupOffsetsResponse))
    refuse(answer.error_code, f"group {name}", answer.error_message)
    for one in answer.responses:
        refuse(one.error_code, f"starts of {name} in {one.topic_name}", one.error_message)


def _positions(coordinators: Coordinators, name: str, described: DescribedShareGroup) -> list[SharePosition]:
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
        for topic in share_offsets(coordinators, name)
        for one in topic.partitions
    )
