"""Decisions about brokers: who may join under which id, who is fenced, and what a joining broker changes for others.

A broker is its *node id* to clients and its *incarnation* (the identity of its disk) to Raft. The two stay together:

- An id that is registered with another disk is refused: two brokers would be one, or an empty disk would vote with the
  promises of the lost one. ``replace`` says that the old disk is lost permanently; a broker that is alive cannot
  be replaced, and a disk that was replaced never comes back.
- A disk that is registered under another id, or that belongs to another cluster, is refused.

Every refusal is one sentence with the remedy, for the person who starts the broker.

When a broker becomes alive, internal topics that had too few brokers for their replication factor get the replicas that
they lack. The feature level rises as soon as every registered broker knows a higher one; below `MOVING_REPLICAS`
nothing moves, and the brokers are those that formed the cluster.

A broker may be *drained*, which leads nothing, or *leave*: it holds nothing then, and is forgotten when that is so.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    MANY_BROKERS,
    MOVING_REPLICAS,
    AnyCommand,
    BrokerFenced,
    BrokerModeChanged,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    BrokerUnregistered,
    FeatureLevelRaised,
    ReplicaChange,
    ReplicasMoving,
)
from millstream.core.controller.placement import Placer, candidates
from millstream.core.controller.profile import profile_problem
from millstream.core.controller.quorum import odd_at_most
from millstream.core.controller.requests import (
    FenceBroker,
    RegisterBroker,
    Result,
    SetBrokerMode,
    UnfenceBroker,
    UnregisterBroker,
)
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.topic_names import GROUP_METADATA, INTERNAL_TOPICS, SHARE_GROUP_STATE, TRANSACTION_STATE
from millstream.errors import Rejected
from millstream.model.cluster import INCARNATION_BYTES, BrokerEpoch, FeatureLevel, NodeId
from millstream.model.error_code import ErrorCode

NODE_ID_MAX: Final = 2**31 - 1

INTERNAL_FACTOR: Final = 3
"""Replicas of an internal topic where there are enough brokers; Kafka's default of offsets.topic.replication.factor."""


def decide_register_broker(state: ControllerState, request: RegisterBroker, rules: Rules) -> Decision:
    """Register a broker, or say why it cannot be.

    The broker that decides is alive by that: it is unfenced in the same batch. Others are unfenced later, by their
    beats. A registration that changes nothing (the answer to the first one was lost) still starts a new epoch.
    """
    try:
        commands = _registered(state, request)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    after = state.copy()
    for command in commands:
        after.apply(command)
    epoch = after.registry.brokers[request.node].epoch
    commands += _raised_level(after)
    if request.node == rules.node:
        commands += _unfenced(after, request.node, epoch, rules)
    return Decision((Result(broker_epoch=epoch, feature_level=after.feature_level),), tuple(commands))


def _registered(state: ControllerState, request: RegisterBroker) -> list[AnyCommand]:
    """The commands that register the broker; Rejected if it must not be."""
    _check_request(state, request)
    node, incarnation, registry = request.node, request.incarnation, state.registry
    shown = incarnation.hex()
    before = registry.brokers.get(node)
    in_store = request.profile.log_in_store and before is not None and before.profile.log_in_store
    profile = msgspec.structs.replace(request.profile, log_in_store=in_store)
    owner = registry.owner(incarnation)
    if incarnation in registry.retired:
        raise Rejected(
            f"{registry.why_retired(incarnation)} (the directory has incarnation {shown})",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if owner is not None and owner != node:
        raise Rejected(
            f"this data directory (incarnation {shown}) belongs to broker {owner}, not {node}: start it with "
            f"--node-id {owner}, or give broker {node} a directory of its own",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if before is None:
        first = [] if state.feature_level else [FeatureLevelRaised(MANY_BROKERS)]
        version = int(request.replacement > 0)
        if version and state.feature_level < MOVING_REPLICAS:
            raise Rejected(too_low(state, "brokers can join"), ErrorCode.UNSUPPORTED_VERSION)
        if request.replace:
            raise Rejected(
                f"there is no broker {node} to be replaced: start this broker without --replace",
                ErrorCode.BROKER_ID_NOT_REGISTERED,
            )
        registered = BrokerRegistered(node, incarnation, profile, replacement=request.replacement, version=version)
        return [*first, registered]
    if before.incarnation == incarnation:
        return [BrokerRegistered(node, incarnation, profile)]
    if not request.replace and before.is_lost:
        raise Rejected(
            f"broker {node} was declared lost: start it once with an empty directory and --replace, or with a free id",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if not request.replace:
        raise Rejected(
            f"broker {node} is registered with another data directory (incarnation {before.incarnation.hex()}): give "
            "this broker the directory that it had, or a free node id; if the directory is permanently lost, start it "
            "once with --replace",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if not before.fenced:
        raise Rejected(
            f"broker {node} is alive with its other data directory (incarnation {before.incarnation.hex()}) and cannot "
            "be replaced: stop it and wait until it is fenced, or give this broker a free node id",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if state.feature_level < MOVING_REPLICAS:
        raise Rejected(too_low(state, "a broker can be replaced"), ErrorCode.UNSUPPORTED_VERSION)
    return [BrokerReplaced(node, before.incarnation, incarnation, profile, replacement=request.replacement, version=1)]


def too_low(state: ControllerState, what: str, level: FeatureLevel = MOVING_REPLICAS) -> str:
    """Why something is refused in a cluster that is being upgraded."""
    return (
        f"the cluster has feature level {state.feature_level}, and {what} from level {level} on: finish the "
        "upgrade of every broker first"
    )


def _check_request(state: ControllerState, request: RegisterBroker) -> None:
    node = request.node
    if not 0 <= node <= NODE_ID_MAX:
        raise Rejected(f"a node id is a number from 0 to {NODE_ID_MAX}, not {node}", ErrorCode.INVALID_REQUEST)
    if len(request.incarnation) != INCARNATION_BYTES:
        raise Rejected(
            f"an incarnation has {INCARNATION_BYTES} bytes, not {len(request.incarnation)}", ErrorCode.INVALID_REQUEST
        )
    problem = profile_problem(request.profile)
    if problem is not None:
        raise Rejected(f"broker {node} {problem}", ErrorCode.INVALID_REQUEST)
    if request.cluster_id not in ("", state.cluster_id):
        raise Rejected(
            f"the data directory of broker {node} belongs to cluster {request.cluster_id}, this is cluster "
            f"{state.cluster_id}: start it with seeds of its own cluster, or with an empty directory",
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
    needed = max(state.feature_level, MANY_BROKERS)
    if request.profile.feature_level < needed:
        raise Rejected(
            f"broker {node} runs release {request.profile.release}, which knows feature level "
            f"{request.profile.feature_level}; this cluster needs {needed}: install a newer release on it",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if not state.registry.brokers and node != state.first_node:
        raise Rejected(
            f"broker {state.first_node}, which created the cluster, has to register before broker {node}: try again",
            ErrorCode.BROKER_NOT_AVAILABLE,
        )


def _raised_level(state: ControllerState) -> list[AnyCommand]:
    """The level that every registered broker knows, if it is higher than that of the cluster."""
    known = min(broker.profile.feature_level for broker in state.registry.brokers.values())
    level = FeatureLevel(min(known, FEATURE_LEVEL))
    return [FeatureLevelRaised(level)] if level > state.feature_level else []


def decide_fence_broker(state: ControllerState, request: FenceBroker, rules: Rules) -> Decision:
    """Fence a broker, unless the request speaks of an earlier life of it."""
    refused = _stale(state, request)
    if refused is None and request.node == rules.node:
        refused = Result(ErrorCode.INVALID_REQUEST, f"broker {request.node} is the active controller, so it is alive")
    if refused is not None:
        return Decision((refused,))
    if state.registry.brokers[request.node].fenced:
        return Decision((Result(),))
    return Decision((Result(),), (BrokerFenced(request.node, request.epoch),))


def decide_unfence_broker(state: ControllerState, request: UnfenceBroker, rules: Rules) -> Decision:
    """Lift a broker's fence, and give internal topics the replicas that they can have now."""
    refused = _stale(state, request)
    if refused is not None:
        return Decision((refused,))
    if not state.registry.brokers[request.node].fenced:
        return Decision((Result(),))
    return Decision((Result(),), tuple(_unfenced(state.copy(), request.node, request.epoch, rules)))


def _stale(state: ControllerState, request: FenceBroker | UnfenceBroker) -> Result | None:
    broker = state.registry.brokers.get(request.node)
    if broker is None:
        return Result(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.node} is not registered")
    if broker.epoch != request.epoch:
        return Result(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {request.node} has epoch {broker.epoch} now, not {request.epoch}"
        )
    return None


def _unfenced(state: ControllerState, node: NodeId, epoch: BrokerEpoch, rules: Rules) -> list[AnyCommand]:
    """The commands that make a broker alive; ``state``, a copy, has them applied then."""
    unfenced = BrokerUnfenced(node, epoch)
    state.apply(unfenced)
    return [unfenced, *(_raised_factors(state, rules) if state.feature_level >= MOVING_REPLICAS else ())]


def internal_factor(state: ControllerState, rules: Rules, name: str) -> int:
    """The replication factor of an internal topic: what its setting says, if there are so many brokers. With fewer it
    is odd, because two brokers that must both be up are less than one. A founder counts before it is registered: until
    then the factor is refused, and the client asks again.
    """
    alive = sum(broker.alive for broker in candidates(state))
    lost = sum(broker.is_lost for broker in state.registry.brokers.values())
    brokers = max(alive, rules.founders - lost)
    settings = rules.settings
    wanted = {
        GROUP_METADATA: settings.offsets_topic_replication_factor,
        TRANSACTION_STATE: settings.transaction_state_log_replication_factor,
        SHARE_GROUP_STATE: settings.share_coordinator_state_topic_replication_factor,
    }.get(name, INTERNAL_FACTOR)
    return wanted if wanted <= brokers else max(odd_at_most(brokers, wanted), 1)


def _raised_factors(state: ControllerState, rules: Rules) -> Iterator[ReplicasMoving]:
    """Replicas for the internal topics that have fewer than they can have. A partition that would get one on a broker
    which may not have applied an earlier departure yet waits for the next broker that becomes alive.
    """
    placer = Placer(candidates(state), state.load)
    for name in sorted(INTERNAL_TOPICS & state.topics.keys()):
        factor = internal_factor(state, rules, name)
        topic = state.topics[name]
        changes: list[ReplicaChange] = []
        for index, partition in enumerate(topic.partitions):
            if len(partition.replicas) < factor and partition.raft_group not in state.moves:
                replicas = placer.extend(partition.replicas, factor)
                if not state.changes.stale_holders(partition, replicas, rules):
                    changes.append(ReplicaChange(index, replicas))
        if changes:
            yield ReplicasMoving(topic.topic_id, tuple(changes))


def decide_broker_mode(state: ControllerState, request: SetBrokerMode, rules: Rules) -> Decision:
    """Let a broker serve, lead nothing, or leave, if the others can hold what there is."""
    _ = rules
    registry = state.registry
    node = request.node
    try:
        if node not in registry.brokers:
            raise Rejected(f"broker {node} is not registered", ErrorCode.BROKER_ID_NOT_REGISTERED)
        if state.feature_level < MOVING_REPLICAS:
            raise Rejected(too_low(state, "brokers are drained and leave"), ErrorCode.UNSUPPORTED_VERSION)
        if request.mode == "leaving":
            _check_may_leave(state, node)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    if registry.mode(node) == request.mode:
        return Decision((Result(),))
    return Decision((Result(),), (BrokerModeChanged(node, request.mode),))


def _check_may_leave(state: ControllerState, node: NodeId) -> None:
    """Raise Rejected if the brokers that stay are too few for the replicas of some partition."""
    others = sum(broker.node != node for broker in candidates(state))
    for name, topic in sorted(state.topics.items()):
        for index, partition in enumerate(topic.partitions):
            move = state.moves.get(partition.raft_group)
            wanted = len(move.target if move is not None else partition.replicas)
            if node in partition.replicas and wanted > others:
                raise Rejected(
                    f"{name}/{index} has {wanted} replicas, and without broker {node} there are {others} brokers: add "
                    f"a broker, or lower the factor ('millstream topic alter {name} --replication {max(others, 1)}')",
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                )
    if not others:
        raise Rejected(f"broker {node} is the only one that stays", ErrorCode.INVALID_REQUEST)


def decide_unregister_broker(state: ControllerState, request: UnregisterBroker, rules: Rules) -> Decision:
    """Forget a broker that is not alive and holds nothing."""
    _ = rules
    node = request.node
    broker = state.registry.brokers.get(node)
    try:
        if broker is None:
            raise Rejected(f"Broker ID {node} is not currently registered", ErrorCode.BROKER_ID_NOT_REGISTERED)
        if state.feature_level < MOVING_REPLICAS:
            raise Rejected(too_low(state, "brokers leave"), ErrorCode.UNSUPPORTED_VERSION)
        held = state.load.replicas.get(node, 0)
        if not broker.fenced or held:
            what = f"holds {held} replicas" if held else "is alive"
            raise Rejected(
                f"broker {node} {what}: 'millstream cluster decommission {node}' moves its replicas and lets it go",
                ErrorCode.INVALID_REQUEST,
            )
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    return Decision((Result(),), (BrokerUnregistered(node, broker.epoch),))
