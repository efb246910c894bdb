"""Decisions about moves: which brokers shall hold a partition, and when that is so.

::

    ReassignPartitions, SetReplicationFactor ──► ReplicasMoving     old and new brokers hold the partition
           leader of the group: learner, catch up, joint members, new members (`core.raft.membership`)
    CompleteMoves, from that leader ──────────► ReplicasChanged     the new ones alone; the others remove their files

A move that is asked for again with another target continues to that one; cancelled, it returns to the brokers that held
the partition before. Both are moves themselves, because a broker may have become a member in between. A completion that
speaks of another target than that of now came too late and changes nothing.

A broker gets a partition back only after it has learnt that the partition left it. Until then its former replica may
still answer the group's leader, and would count as the new one, whose files are deleted when the broker learns of the
departure.

Codes and words are Kafka's where Kafka has them (KIP-455, KIP-860).
"""

from collections.abc import Iterable

from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import (
    MOVING_REPLICAS,
    ReplicaChange,
    ReplicasChanged,
    ReplicasMoving,
)
from millstream.core.controller.placement import Placer, RoomRule, assignment_problem, candidates
from millstream.core.controller.requests import (
    CompleteMoves,
    ReassignPartition,
    ReassignPartitions,
    Result,
    SetReplicationFactor,
)
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState, TopicState
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

Targets = dict[tuple[str, int], tuple[int, ...]]
"""Replicas by topic and partition."""


def decide_reassign(state: ControllerState, request: ReassignPartitions, rules: Rules) -> Decision:
    """Start the moves that can be started; one result for each partition."""
    results: list[Result] = []
    targets: Targets = {}
    placer = Placer(candidates(state), state.load, RoomRule.of(rules))
    for asked in request.partitions:
        try:
            target = _target(state, asked, rules, allow_factor_change=request.allow_factor_change)
            if target is not None and asked.replicas is not None:
                holds = state.topics[asked.topic].partitions[asked.index].replicas
                placer.count([tuple(node for node in target if node not in holds)])
        except Rejected as error:
            results.append(Result(error.code, error.message or None, asked.topic))
            continue
        results.append(Result(name=asked.topic))
        if target is not None:
            targets[asked.topic, asked.index] = target
    return Decision(tuple(results), begun(state, targets, rules))


def _target(
    state: ControllerState, asked: ReassignPartition, rules: Rules, *, allow_factor_change: bool
) -> tuple[int, ...] | None:
    """The replicas that a partition shall have; None if it has them. Rejected if it must not have them."""
    topic = state.topics.get(asked.topic)
    if topic is None:
        raise Rejected(f"Unable to find a topic named {asked.topic}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not 0 <= asked.index < len(topic.partitions):
        raise Rejected(f"Unable to find partition {asked.topic}:{asked.index}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[asked.index]
    move = state.moves.get(partition.raft_group)
    if asked.replicas is None:
        if move is None:
            raise Rejected("", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return move.before if move.target != move.before else None
    registered = state.registry.nodes() or (rules.node,)
    problem = assignment_problem(asked.replicas, registered)
    if problem is not None:
        raise Rejected(f"The manual partition assignment {problem}", ErrorCode.INVALID_REPLICATION_ASSIGNMENT)
    before = move.target if move is not None else partition.replicas
    if not allow_factor_change and len(asked.replicas) != len(before):
        raise Rejected(
            f"The replication factor is changed from {len(before)} to {len(asked.replicas)}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if asked.replicas == before:
        return None
    _check_level(state)
    leaving = [node for node in asked.replicas if node not in {each.node for each in candidates(state)}]
    if leaving:
        raise Rejected(
            f"The manual partition assignment includes broker {leaving[0]}, which is leaving the cluster or lost.",
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
        )
    stale = state.changes.stale_holders(partition, asked.replicas, rules)
    if stale:
        raise Rejected(
            f"The manual partition assignment includes broker {stale[0]}, which has yet to remove the replica that it "
            "held before; ask again soon.",
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
        )
    return asked.replicas


def decide_replication_factor(state: ControllerState, request: SetReplicationFactor, rules: Rules) -> Decision:
    """Give each partition of a topic more replicas, or fewer: those at the end of the order go."""
    try:
        targets = _resized(state, request, rules)
    except Rejected as error:
        return Decision((Result(error.code, error.message, request.topic),))
    commands = begun(state, targets, rules)
    result = Result(name=request.topic, partitions=sum(len(one.changes) for one in commands))
    return Decision((result,), commands)


def _resized(state: ControllerState, request: SetReplicationFactor, rules: Rules) -> Targets:
    topic = state.topics.get(request.topic)
    if topic is None:
        raise Rejected(f"Unable to find a topic named {request.topic}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if request.factor < 1:
        raise Rejected("Replication factor must be larger than 0.", ErrorCode.INVALID_REPLICATION_FACTOR)
    placer = Placer(candidates(state), state.load, RoomRule.of(rules))
    targets: Targets = {}
    for index, partition in enumerate(topic.partitions):
        move = state.moves.get(partition.raft_group)
        before = move.target if move is not None else partition.replicas
        if len(before) > request.factor:
            alive = state.registry.alive()
            kept = sorted(before, key=lambda node: (node not in alive, before.index(node)))[: request.factor]
            targets[topic.name, index] = tuple(node for node in before if node in kept)
        elif len(before) < request.factor:
            targets[topic.name, index] = placer.extend(before, request.factor)
    if targets:
        _check_level(state)
    return targets


def _check_level(state: ControllerState) -> None:
    if state.feature_level < MOVING_REPLICAS:
        raise Rejected(too_low(state, "replicas move"), ErrorCode.UNSUPPORTED_VERSION)


def begun(state: ControllerState, targets: Targets, rules: Rules) -> tuple[ReplicasMoving, ...]:
    """The commands that start moves, but for those to brokers that may not know of an earlier departure yet."""
    targets = {
        place: nodes
        for place, nodes in targets.items()
        if not state.changes.stale_holders(state.topics[place[0]].partitions[place[1]], nodes, rules)
    }
    return tuple(ReplicasMoving(topic.topic_id, changes) for topic, changes in _by_topic(state, targets))


def _by_topic(state: ControllerState, targets: Targets) -> Iterable[tuple[TopicState, tuple[ReplicaChange, ...]]]:
    for name in dict.fromkeys(topic for topic, _ in targets):
        changes = tuple(ReplicaChange(index, nodes) for (topic, index), nodes in targets.items() if topic == name)
        yield state.topics[name], changes


def decide_complete_moves(state: ControllerState, request: CompleteMoves, rules: Rules) -> Decision:
    """Moves are done, as the leaders of the groups say; a result for each."""
    _ = rules
    targets: Targets = {}
    for group, replicas in request.moves:
        move = state.moves.get(group)
        if move is not None and move.target == replicas:
            targets[state.topics.by_id[move.topic_id].name, move.index] = replicas
    commands = tuple(ReplicasChanged(topic.topic_id, changes) for topic, changes in _by_topic(state, targets))
    return Decision(tuple(Result() for _ in request.moves), commands)
