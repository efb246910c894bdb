"""The states of a group, and their transitions.

::

              first member joins                all joined, or time is up
    Empty ───────────────────────► Preparing ◄──────────────────────────────┐
      ▲                            Rebalance ──────────────► Completing      │ a member joins, leaves,
      │        nobody is left          ▲                      Rebalance ─────┤ fails, or changes
      └────────────────────────────────┤                          │          │
                                       └── Stable ◄───────────────┘──────────┘
                                              the leader's assignment is durable

``Dead`` is a group that this coordinator does not have.
"""

from enum import Enum


class GroupState(Enum):
    """The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"
    """Consumer groups and streams groups: the target assignment must be computed."""
    RECONCILING = "Reconciling"
    """Consumer groups and streams groups: some members do not have their target assignment yet."""
    NOT_READY = "NotReady"
    """Streams groups only: topics of the topology are missing or do not match."""


MAY_FOLLOW: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(
        {
            GroupState.EMPTY,
            GroupState.PREPARING_REBALANCE,
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        },
    ),
}
"""State → the states that may precede it."""
