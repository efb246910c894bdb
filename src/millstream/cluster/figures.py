"""Gauges of the cluster: brokers, and whether this broker is the controller."""

from collections.abc import Sequence

from millstream.cluster.announce import is_take_over
from millstream.cluster.metadata import MetadataCache
from millstream.core.controller.commands import AnyCommand, ReplicasChanged
from millstream.core.controller.state import ControllerState
from millstream.model.replication import Term
from millstream.telemetry.metrics import StatsSlab


class ClusterFigures:
    """The gauges. Lifecycle: made with the controller. Shard: the controller's."""

    def __init__(self, stats: StatsSlab) -> None:
        self._active = stats.gauge("controller_active")
        self._term = stats.gauge("controller_term")
        self._alive = stats.gauge("cluster_brokers", state="alive")
        self._fenced = stats.gauge("cluster_brokers", state="fenced")
        self._moves = stats.gauge("cluster_moves")
        self._take_overs = stats.counter("take_overs")
        self._restored = stats.counter("take_over_partitions")

    def count(self, commands: Sequence[AnyCommand], cache: MetadataCache) -> None:
        """Count what ``commands``, which were just committed, do; ``cache`` still holds what they change."""
        self._take_overs.inc(sum(is_take_over(command, cache) for command in commands))
        self._restored.inc(
            sum(len(one.changes) for one in commands if isinstance(one, ReplicasChanged) and one.version)
        )

    def show(self, state: ControllerState, term: Term, *, active: bool) -> None:
        """Set them; ``active``: this broker is the controller."""
        registry = state.registry
        self._moves.set(len(state.moves))
        alive = len(registry.alive())
        self._active.set(int(active))
        self._term.set(term)
        self._alive.set(alive)
        self._fenced.set(len(registry.brokers) - alive)
