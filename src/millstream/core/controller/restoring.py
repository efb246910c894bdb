"""Shared partitions that a dead broker has alone, and that live brokers restore from the object store.

::

    dead for long enough ► its logs in the store are sealed (`cluster.take_overs`) ► RestorePartitions(node, epoch)
        ► ReplicasChanged, version 1: each partition has another broker, which restores it
            (`partition.replica.restoring`)

The store has everything that such a broker acknowledged of them: the broker has said so (NoteLogInStore). It says so
again after each change from ``shared.wal=disk``, because what was acknowledged before is at first on its disk alone.
Its disk stays the broker's own. When it comes back, it holds its other partitions as before, and removes the files of
these.

**It comes back at any moment.** Its registration starts a new epoch. A request that comes after it speaks of an earlier
epoch and changes nothing. A request that comes before it takes the partitions away, and the broker learns of that
before it acknowledges anything (`tiers.shared_wal`).

A partition that moves stays: the brokers of before and of then may both be needed. So does one of several replicas. A
move to one broker ends when the store has what that broker has: its vote for the new members waits for that, too.
"""

from collections.abc import Iterator
from typing import Final

from millstream.config.errors import ConfigError
from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import (
    RESTORING_PARTITIONS,
    BrokerLogsInStore,
    PartitionState,
    ReplicaChange,
    ReplicasChanged,
)
from millstream.core.controller.requests import NoteLogInStore, RestorePartitions, Result
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState, TopicState
from millstream.errors import Rejected
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode

AT_ONCE: Final = 50
"""Partitions of one decision. The caller asks again when they are served."""


def held_alone(state: ControllerState, node: NodeId, settings: Settings) -> Iterator[tuple[TopicState, int]]:
    """The shared partitions that ``node`` has alone and that do not move."""
    if not state.load.replicas.get(node):
        return
    for _, topic in sorted(state.topics.items()):
        indexes = [at for at, one in enumerate(topic.partitions) if _is_alone(state, one, node)]
        if indexes and _is_shared(topic, settings):
            for index in indexes:
                yield topic, index


def restorable_partitions(state: ControllerState, settings: Settings) -> int:
    """How many partitions of dead brokers others can restore."""
    brokers = state.registry.brokers.values()
    dead = [broker.node for broker in brokers if broker.fenced and broker.profile.log_in_store]
    return sum(1 for node in dead for _ in held_alone(state, node, settings))


def decide_note_log_in_store(state: ControllerState, request: NoteLogInStore, rules: Rules) -> Decision:
    """Remember that the store has what a broker acknowledged, unless it has registered again since."""
    _ = rules
    broker = state.registry.brokers.get(request.node)
    if broker is None or broker.epoch != request.epoch:
        return Decision((Result(ErrorCode.STALE_BROKER_EPOCH, f"broker {request.node} has registered again"),))
    if state.feature_level < RESTORING_PARTITIONS:
        message = too_low(state, "others restore partitions", RESTORING_PARTITIONS)
        return Decision((Result(ErrorCode.UNSUPPORTED_VERSION, message),))
    noted = () if broker.profile.log_in_store else (BrokerLogsInStore(request.node, request.epoch),)
    return Decision((Result(),), noted)


def decide_restore_partitions(state: ControllerState, request: RestorePartitions, rules: Rules) -> Decision:
    """Give at most `AT_ONCE` partitions to live brokers; the result has their number."""
    try:
        changes = _given(state, request, rules)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    commands = tuple(ReplicasChanged(topic_id, tuple(those), version=1) for topic_id, those in changes.items())
    return Decision((Result(partitions=sum(map(len, changes.values()))),), commands)


def _given(state: ControllerState, request: RestorePartitions, rules: Rules) -> dict[bytes, list[ReplicaChange]]:
    node = request.node
    broker = state.registry.brokers.get(node)
    if broker is None:
        raise Rejected(f"broker {node} is not registered", ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.epoch != request.epoch or not broker.fenced:
        raise Rejected(f"broker {node} has come back", ErrorCode.STALE_BROKER_EPOCH)
    if not broker.profile.log_in_store:
        raise Rejected(f"the disk of broker {node} may alone have what was not uploaded", ErrorCode.INVALID_REQUEST)
    if state.feature_level < RESTORING_PARTITIONS:
        raise Rejected(too_low(state, "others restore partitions", RESTORING_PARTITIONS), ErrorCode.UNSUPPORTED_VERSION)
    load = takers(state)
    if not load:
        raise Rejected("no live broker has shared.wal=object", ErrorCode.INVALID_REPLICATION_FACTOR)
    changes: dict[bytes, list[ReplicaChange]] = {}
    found = 0
    for topic, index in held_alone(state, node, rules.settings):
        stale = state.changes.stale_holders(topic.partitions[index], load, rules)
        taker = min((one for one in load if one not in stale), key=lambda one: (load[one], one), default=None)
        if taker is None:
            continue  # it has yet to remove the replica that it had before
        load[taker] += 1 / state.registry.brokers[taker].profile.shards
        changes.setdefault(topic.topic_id, []).append(ReplicaChange(index, (taker,)))
        found += 1
        if found == AT_ONCE:
            break
    return changes


def takers(state: ControllerState) -> dict[NodeId, float]:
    """The live brokers that can restore a partition, each with its replicas per core."""
    registry = state.registry
    return {
        node: state.load.replicas.get(node, 0) / registry.brokers[node].profile.shards
        for node in registry.alive()
        if registry.mode(node) == "serving" and registry.brokers[node].profile.log_in_store
    }


def _is_alone(state: ControllerState, partition: PartitionState, node: NodeId) -> bool:
    return partition.replicas == (node,) and partition.raft_group not in state.moves


def _is_shared(topic: TopicState, settings: Settings) -> bool:
    try:
        return topic_config(topic.configs, settings).is_shared
    except ConfigError:  # a property of another release
        return topic.configs.get("storage.mode") == "shared"
