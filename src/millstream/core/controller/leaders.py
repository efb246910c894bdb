"""Who should lead: the preferred leaders of partitions, and the transfers that bring leadership there.

The replicas of a partition are in order of preference: the leader should be the first of them that is alive, not
drained, and in sync. Placement spreads the first places evenly over the brokers, and the second ones too, so that this
rule alone balances leadership, with all brokers up and with one down, and a broker that returns gets back what it led.
Raft's election priorities follow the same order.

``plan_transfers`` is a pure plan. The caller carries it out, and calls again later with the leaders of that time. The
caller decides how long it waits between two plans (Redpanda: the first one comes 30 s after it became the controller,
a group that refused rests 5 min).
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from millstream.core.controller.state import ControllerState
from millstream.model.cluster import NodeId

TRANSFERS_MAX: Final = 512
"""Transfers in flight at once in the whole cluster; each costs its partition a few milliseconds without a leader."""


class LeaderTransfer(msgspec.Struct, frozen=True, gc=False):
    """One leadership that should move."""

    raft_group: int
    topic_id: bytes
    index: int
    leader: NodeId
    target: NodeId


class LeaderView(msgspec.Struct, frozen=True, gc=False):
    """What is known of one Raft group: its leader, and the replicas that are caught up with it."""

    leader: NodeId
    in_sync: Collection[int]


def preferred_leader(replicas: tuple[int, ...], view: LeaderView, alive: Collection[int]) -> NodeId | None:
    """The first replica that may lead; None when the present leader is the only one, or none is alive."""
    return next(
        (NodeId(node) for node in replicas if node in alive and (node in view.in_sync or node == view.leader)), None
    )


def plan_transfers(
    state: ControllerState,
    view: Callable[[int], LeaderView | None],
    *,
    resting: Collection[int] = (),
    limit: int = TRANSFERS_MAX,
) -> list[LeaderTransfer]:
    """The transfers to start now, at most ``limit``; those that relieve the fullest leaders come first.

    ``view`` gives what is known of a Raft group, None for a group that elects; groups in ``resting`` are left alone.
    """
    registry = state.registry
    alive = frozenset(node for node in registry.alive() if registry.mode(node) == "serving")
    wanted = list(_misplaced(state, view, alive, resting))
    if len(wanted) <= limit:
        return wanted
    excess: dict[NodeId, int] = {}
    for transfer in wanted:
        excess[transfer.leader] = excess.get(transfer.leader, 0) + 1
        excess[transfer.target] = excess.get(transfer.target, 0) - 1
    wanted.sort(key=lambda transfer: excess[transfer.target] - excess[transfer.leader])
    return wanted[:limit]


def _misplaced(
    state: ControllerState,
    view: Callable[[int], LeaderView | None],
    alive: frozenset[NodeId],
    resting: Collection[int],
) -> Iterator[LeaderTransfer]:
    for _, topic in sorted(state.topics.items()):
        for index, partition in enumerate(topic.partitions):
            if len(partition.replicas) < 2 or partition.raft_group in resting:
                continue
            seen = view(partition.raft_group)
            if seen is None:
                continue
            target = preferred_leader(partition.replicas, seen, alive)
            if target is not None and target != seen.leader:
                yield LeaderTransfer(partition.raft_group, topic.topic_id, index, seen.leader, target)
