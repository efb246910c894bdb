"""Who votes on the cluster's metadata: the members of Raft group 0.

Every registered broker is a member. The voters are an odd number, at most seven: with an even number a further broker
must be up for each decision and none more may fail, so a second broker stays a learner until a third joins. Who votes
already keeps its vote, unless its broker leaves the cluster or was declared lost, so that a plan never moves a vote for
the sake of it. Further voters are taken alive ones first, from racks that have the fewest voters, in order of node id.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from millstream.core.controller.state import ControllerState
from millstream.model.cluster import NodeId

VOTERS_MAX: Final = 7


class Members(msgspec.Struct, frozen=True):
    """The desired members of group 0, each in order of node id."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]


def odd_at_most(count: int, limit: int) -> int:
    """The largest odd number that is neither above ``count`` nor above ``limit``; 0 for no brokers."""
    most = min(count, limit)
    return most - 1 + most % 2 if most else 0


def plan_members(state: ControllerState, voters: Collection[NodeId]) -> Members:
    """The members that group 0 should have, given those that vote now."""
    registry = state.registry
    brokers = registry.brokers
    nodes = tuple(node for node in registry.nodes() if registry.mode(node) != "leaving" and not brokers[node].is_lost)
    chosen = [node for node in nodes if node in voters]
    wanted = odd_at_most(len(nodes), VOTERS_MAX)
    while len(chosen) < wanted:
        racks = [registry.brokers[node].profile.rack for node in chosen]
        chosen.append(
            min(
                (node for node in nodes if node not in chosen),
                key=lambda node: (
                    registry.brokers[node].fenced,
                    racks.count(registry.brokers[node].profile.rack),
                    node,
                ),
            )
        )
    if len(chosen) > wanted:  # brokers have left: those that are alive keep their votes
        chosen = sorted(chosen, key=lambda node: (registry.brokers[node].fenced, node))[:wanted]
    return Members(tuple(sorted(chosen)), tuple(node for node in nodes if node not in chosen))
