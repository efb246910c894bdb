"""Moves that the controller starts by itself: away from leaving and dead brokers, and towards an even spread.

A plan keeps at most ``MOVES_MAX`` moves in flight, earlier ones included, so that catching up takes a bounded
part of disks and network; the caller asks again when some are done. A partition that moves already is left alone, and
so is one without a living majority: its move could not continue, and its brokers may come back.

The spread goes by replicas per core. It ends where no move would bring two brokers nearer to each other. A move for the
spread never puts the replicas of a partition into fewer racks.

Sources: Redpanda's members backend and partition balancer for what triggers moves, and for the order of the
constraints.
"""

from collections.abc import Iterator
from typing import Final

from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import MOVING_REPLICAS, AnyCommand, BrokerUnregistered, PartitionState
from millstream.core.controller.moves import Targets, begun
from millstream.core.controller.placement import Candidate, Placer, candidates
from millstream.core.controller.requests import BalanceReplicas, EvacuateBrokers, Result
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode

MOVES_MAX: Final = 50
"""Moves in flight at once in the whole cluster that the controller has started by itself; Redpanda's limit."""


def decide_evacuate_brokers(state: ControllerState, request: EvacuateBrokers, rules: Rules) -> Decision:
    """Start moves away from leaving and dead brokers; unregister those that no longer hold a replica."""
    registry = state.registry
    if state.feature_level < MOVING_REPLICAS:
        return Decision((Result(),))
    leaving = [node for node in registry.nodes() if registry.mode(node) == "leaving"]
    dead = [node for node in request.dead if node in registry.brokers and registry.brokers[node].fenced]
    targets = _evacuated(state, {*leaving, *dead})
    begin = begun(state, targets, rules)
    commands: list[AnyCommand] = [*begin]
    commands += [
        BrokerUnregistered(node, registry.brokers[node].epoch)
        for node in leaving
        if not state.load.replicas.get(node) and node != rules.node
    ]
    return Decision((Result(partitions=sum(len(one.changes) for one in begin)),), tuple(commands))


def _evacuated(state: ControllerState, gone: set[NodeId]) -> Targets:
    targets: Targets = {}
    if not gone:
        return targets
    placer = Placer(tuple(one for one in candidates(state) if one.node not in gone), state.load)
    room = MOVES_MAX - len(state.moves)
    if room <= 0:
        return targets
    alive = set(state.registry.alive())
    for name, index, partition in _held_by(state, gone):
        if room <= len(targets):
            break
        replicas = partition.replicas
        standing = [node for node in replicas if not state.registry.brokers[NodeId(node)].is_lost]
        if 2 * sum(node in alive for node in replicas) <= len(standing):
            continue
        kept = tuple(node for node in replicas if node not in gone)
        try:
            extended = placer.extend(kept, len(replicas))
        except Rejected:
            continue  # fewer brokers than replicas: it stays as it is until there are more
        fresh = iter(extended[len(kept) :])
        targets[name, index] = tuple(next(fresh) if node in gone else node for node in replicas)
    return targets


def _held_by(state: ControllerState, nodes: set[NodeId]) -> Iterator[tuple[str, int, PartitionState]]:
    """The partitions with a replica on one of ``nodes`` that do not move. Each look costs a set operation for every
    partition of the cluster: 10 ms for 100,000.
    """
    elsewhere, moves = nodes.isdisjoint, state.moves
    for name, topic in sorted(state.topics.items()):
        for index, partition in enumerate(topic.partitions):
            if not elsewhere(partition.replicas) and partition.raft_group not in moves:
                yield name, index, partition


def _resting(state: ControllerState) -> Iterator[tuple[str, int, PartitionState]]:
    """The partitions that do not move."""
    for name, topic in sorted(state.topics.items()):
        for index, partition in enumerate(topic.partitions):
            if partition.raft_group not in state.moves:
                yield name, index, partition


def decide_balance_replicas(state: ControllerState, request: BalanceReplicas, rules: Rules) -> Decision:
    """Start the moves that spread replicas evenly; the result has their number."""
    _ = request
    if state.feature_level < MOVING_REPLICAS:
        return Decision((Result(ErrorCode.UNSUPPORTED_VERSION, too_low(state, "replicas move")),))
    targets = _balanced(state)
    moves = begun(state, targets, rules)
    return Decision((Result(partitions=sum(len(one.changes) for one in moves)),), moves)


def _balanced(state: ControllerState) -> Targets:
    brokers: dict[int, Candidate] = {one.node: one for one in candidates(state) if not one.fenced}
    held: dict[int, int] = dict.fromkeys(brokers, 0)
    for topic in state.topics.values():
        for partition in topic.partitions:
            move = state.moves.get(partition.raft_group)
            for node in move.target if move is not None else partition.replicas:
                if node in held:
                    held[node] += 1
    by_holder: dict[int, list[tuple[str, int, PartitionState]]] = {node: [] for node in brokers}
    for name, index, partition in _resting(state):
        for node in partition.replicas:
            if node in by_holder:
                by_holder[node].append((name, index, partition))
    targets: Targets = {}
    while len(state.moves) + len(targets) < MOVES_MAX:
        step = _next_step(brokers, held, by_holder, targets)
        if step is None:
            break
        (name, index, partition), source, goal = step
        targets[name, index] = tuple(goal if node == source else node for node in partition.replicas)
        held[source] -= 1
        held[goal] += 1
    return targets


_Step = tuple[tuple[str, int, PartitionState], int, int]


def _next_step(
    brokers: dict[int, Candidate],
    held: dict[int, int],
    by_holder: dict[int, list[tuple[str, int, PartitionState]]],
    targets: Targets,
) -> _Step | None:
    """The partition to move next, from where to where; None if no move would make the spread more even."""
    by_load = sorted(brokers, key=lambda node: (held[node] / brokers[node].cores, node))
    for source in reversed(by_load):
        for goal in by_load:
            after = (held[goal] + 1) / brokers[goal].cores
            if after > (held[source] - 1) / brokers[source].cores:
                break
            for place in by_holder[source]:
                name, index, partition = place
                if (name, index) not in targets and _may_go(brokers, partition.replicas, source, goal):
                    return place, source, goal
    return None


def _may_go(brokers: dict[int, Candidate], replicas: tuple[int, ...], source: int, goal: int) -> bool:
    """Whether a replica may go from ``source`` to ``goal``: not twice on one broker, not into fewer racks."""
    if goal in replicas:
        return False
    racks = {brokers[node].rack for node in replicas if node in brokers}
    after = {brokers[node].rack for node in replicas if node in brokers and node != source} | {brokers[goal].rack}
    return len(after) >= len(racks)
