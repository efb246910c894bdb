"""Share groups (KIP-932) for ``millstream group``, by our own client: confluent-kafka lists none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cli.failure import CommandFailed
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

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
