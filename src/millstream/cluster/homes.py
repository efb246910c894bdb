"""The home shards that a broker of a cluster chooses for the partitions that a committed command gives it.

Each broker decides for itself, on its controller's shard, and keeps it on its own disk (`placement`). A partition that
moves keeps its home as long as this broker holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.placement import ELSEWHERE
from millstream.core.controller.commands import (
    PartitionsAdded,
    ReplicasChanged,
    ReplicasMoving,
    TopicCreated,
    TopicDeleted,
)

if TYPE_CHECKING:
    from millstream.cluster.placement import Placement
    from millstream.core.controller.commands import AnyCommand, PartitionState
    from millstream.core.controller.state import ControllerState
    from millstream.model.cluster import NodeId


def homes_after(command: AnyCommand, state: ControllerState, placement: Placement, node: NodeId) -> list[int]:
    """Home shards for the partitions that ``command`` creates or moves, in order. Updates `placement`, which drops the
    partitions that this broker, ``node``, no longer holds. ``state`` is that before the command.
    """
    if isinstance(command, TopicCreated):
        return _placed(command.partitions, (), placement, node)
    if isinstance(command, PartitionsAdded):
        siblings = state.topics.by_id[command.topic_id].partitions
        return _placed(command.partitions, siblings, placement, node)
    if isinstance(command, ReplicasMoving | ReplicasChanged):
        return _moved(command, state.topics.by_id[command.topic_id].partitions, placement, node)
    if isinstance(command, TopicDeleted):
        partitions = state.topics.by_id[command.topic_id].partitions
        placement.forget(part.raft_group for part in partitions if part.raft_group in placement.homes)
    return []


def _placed(
    partitions: tuple[PartitionState, ...], siblings: tuple[PartitionState, ...], placement: Placement, node: NodeId
) -> list[int]:
    here = [part.raft_group for part in partitions if node in part.replicas]
    homes = placement.homes
    placed = placement.place(here, [part.raft_group for part in siblings if part.raft_group in homes])
    by_group = dict(zip(here, placed, strict=True))
    return [by_group.get(part.raft_group, ELSEWHERE) for part in partitions]


def _moved(
    command: ReplicasMoving | ReplicasChanged,
    partitions: tuple[PartitionState, ...],
    placement: Placement,
    node: NodeId,
) -> list[int]:
    homes = placement.homes
    found: list[int] = []
    for change in command.changes:
        group = partitions[change.index].raft_group
        if node in change.replicas and group not in homes:
            placement.place([group], [part.raft_group for part in partitions if part.raft_group in homes])
        elif node not in change.replicas and group in homes and isinstance(command, ReplicasChanged):
            placement.forget([group])
        found.append(homes.get(group, ELSEWHERE))
    return found
