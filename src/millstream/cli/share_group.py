"""Share groups (KIP-932) for ``millstream group``, by our own client: confluent-kafka lists and moves none."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.client.cluster import Cluster

_LIST_VERSION = 5
"""First version of ListGroups with types."""


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
            "groups", lambda node=node: cluster.connection(node).ask(request, ListGroupsResponse, _LIST_VERSION)
        )
        if answer.error_code:
            raise CommandFailed(f"groups of broker {node}: {ErrorCode(answer.error_code).name}")
        found += answer.groups
    return found


def reset_share_group(cluster: Cluster, name: str, target: Mapping[tuple[str, int], int]) -> None:
    """Let a share group without members start at ``target`` (topic and partition → offset)."""
    topics: dict[str, list[AlterShareOffsetsPartition]] = {}
    for (topic, partition), offset in sorted(target.items()):
        topics.setdefault(topic, []).append(AlterShareOffsetsPartition(partition, offset))
    request = AlterShareGroupOffsetsRequest(name, [AlterShareOffsetsTopic(*one) for one in topics.items()])

    answer = Coordinators(cluster).insist(
        f"group '{name}'", GROUP, name, lambda line: line.ask(request, AlterShareGroupOffsetsResponse)
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
