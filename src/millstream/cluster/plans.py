"""Work that the active controller starts by itself at each of its ticks: members of its own group, moves of replicas.

- Group 0: every registered broker is a member; `core.controller.quorum` says who votes. A broker that leaves the
  cluster is a learner until it is unregistered, so that it learns of its removal.
- Replicas on brokers that leave move away, and those on brokers that have not been alive for
  ``dead.broker.replicas.move.after.ms``. A leaving broker without replicas is unregistered.
- What dead brokers have in the object store is taken over (`take_overs`).

**Crash.** A new controller starts without state, and counts the time that a broker has been dead from then. Nothing
happens below feature level 2: older brokers would not understand it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.take_overs import TakeOvers
from millstream.core.controller.commands import MOVING_REPLICAS
from millstream.core.controller.quorum import plan_members
from millstream.core.controller.requests import EvacuateBrokers
from millstream.model.cluster import NodeId
from millstream.model.replication import node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.metadata import MetadataCache
    from millstream.core.controller.requests import AnyRequest, Results
    from millstream.core.controller.state import ControllerState
    from millstream.errors import MillstreamError
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.telemetry.metrics import StatsSlab


class Plans:
    """The plans of one broker, which carries them out while it is the active controller.

    Shard: the controller's.
    """

    def __init__(
        self,
        group: ReplicatedGroup,
        node: NodeId,
        cache: MetadataCache,
        now_us: Callable[[], int],
        submit: Callable[[AnyRequest, Callable[[Results | MillstreamError], None]], None],
        stats: StatsSlab,
    ) -> None:
        self._group = group
        self._node = node
        self._cache = cache
        self._now_us = now_us
        self._submit = submit
        self._fenced_since_us: dict[NodeId, int] = {}
        self.take_overs = TakeOvers(cache, now_us, submit, stats.gauge("take_over_waiting"))

    def begin(self) -> None:
        """This broker is the active controller from now on."""
        self._fenced_since_us = {}
        self.take_overs.begin()

    def carry_out(self, state: ControllerState) -> None:
        """One tick. ``state`` is that of the leader, which runs ahead of the commit."""
        dead = self._dead(state)
        if state.feature_level < MOVING_REPLICAS:
            return
        self._steer(state)
        if dead or "leaving" in state.registry.modes.values():
            self._submit(EvacuateBrokers(dead), ignore)
        self.take_overs.carry_out(state)

    def _dead(self, state: ControllerState) -> tuple[NodeId, ...]:
        """Brokers that hold replicas and have not been alive for too long."""
        now = self._now_us()
        brokers = state.registry.brokers
        fenced = [node for node, broker in brokers.items() if broker.fenced]
        self._fenced_since_us = {node: self._fenced_since_us.get(node, now) for node in fenced}
        patience_ms = self._cache.settings.dead_broker_replicas_move_after_ms
        if patience_ms < 0:
            return ()
        oldest = now - patience_ms * 1000
        return tuple(node for node in fenced if self._fenced_since_us[node] <= oldest and state.load.replicas.get(node))

    def _steer(self, state: ControllerState) -> None:
        """Take the next step towards the members that group 0 should have."""
        registry = state.registry
        voting = [NodeId(node_of(voter)) for voter in self._group.configuration.voters]
        if any(node not in registry.brokers and not registry.has_left(node) for node in voting):
            return  # a founder that has not registered yet
        plan = plan_members(state, voting)
        brokers = registry.brokers
        voters = tuple(brokers[node].replica for node in plan.voters)
        others = [node for node in registry.nodes() if node not in plan.voters]
        if voters:
            self._group.steer(voters, tuple(brokers[node].replica for node in others))


def ignore(_: Results | MillstreamError) -> None:
    """The decision is tried again at a later tick."""
