"""The controller's state: the result of applying its commands in order.

::

    commands ──apply──► ControllerState ──encode──► snapshot ──decode──► the same state
                             ▲
              decide(state, request) reads it, never changes it

Every shard and every restart must reach the same state from the same commands, so there is nothing here but commands:
no clock, no random number, no default that could differ between two nodes. ``revision`` counts the commands applied
since the cluster exists; as each is one record, it is also the offset of the next record of the controller's log.

A command that contradicts the state (a topic created twice, partitions that leave a gap), or that needs a higher
feature level than the cluster has, cannot have been decided by this code: it is ``Corruption``, and the caller
must stop. A snapshot that does not decode is ``Corruption`` too.

``state_hash`` is how brokers compare: equal at equal revisions, or one of them has gone wrong.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    MANY_BROKERS,
    UNREADABLE,
    AclsCreated,
    AclsDeleted,
    AnyCommand,
    BrokerFenced,
    BrokerLogsInStore,
    BrokerMode,
    BrokerModeChanged,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientMetricsChanged,
    ClusterCreated,
    FeatureLevelRaised,
    GroupConfigsChanged,
    NodeConfigsChanged,
    PartitionCut,
    PartitionCutDone,
    PartitionsAdded,
    PartitionState,
    ProducerIdsAllocated,
    QuotasChanged,
    ReplicasChanged,
    ReplicasMoving,
    SecretSet,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    UserRemoved,
    UserSet,
    level_of,
)
from millstream.core.controller.cuts import Cut, apply_cut
from millstream.core.controller.load import Load
from millstream.core.controller.registry import BrokerState, Registry
from millstream.core.controller.replicas import Changes, Move, Origin
from millstream.core.controller.security import SecurityState, StoredSecurity
from millstream.errors import Corruption
from millstream.model.cluster import BrokerEpoch, FeatureLevel, Incarnation, NodeId
from millstream.model.quantities import RaftGroupId

K = TypeVar("K", int, str)

FIRST_GROUP: Final = 1
"""Raft groups of partitions are numbered from here; 0 is the controller."""

SNAPSHOT_VERSION: Final = 5
"""Version 1 has no brokers and no feature level, version 2 no moves of replicas and no modes of brokers, version 3 no
users, access control and quotas, version 4 no unclean cuts. A state without these things is still written in the
version of its level.
"""

_LEVEL_0_VERSION: Final = 1
_LEVEL_1_VERSION: Final = 2
_LEVEL_2_VERSION: Final = 3
_SECURITY_VERSION: Final = 4


class TopicState(msgspec.Struct, frozen=True):
    """One topic. A changed topic is a new value, so holders may compare by identity."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: dict[str, str]
    revision: int
    """The state's revision after the last change of this topic."""


class Configs:
    """Properties that were set while the cluster runs: of brokers, subscriptions to clients' metrics and groups.

    A resource without a property has no entry.
    """

    __slots__ = ("client_metrics", "groups", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[int, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        """By the name of the subscription."""
        self.groups: dict[str, dict[str, str]] = {}
        """By the group's id."""

    def copy(self) -> "Configs":
        """Configs of their own with the same content."""
        other = Configs()
        other.nodes, other.client_metrics, other.groups = dict(self.nodes), dict(self.client_metrics), dict(self.groups)
        return other


class Topics(dict[str, TopicState]):
    """Topics by name. ``by_id`` has the same ones. Changed by ``put`` and ``remove`` only."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[bytes, TopicState] = {}
        self.colliding: dict[str, set[str]] = {}
        """Names with ``.`` or ``_``, by the one name that Kafka's metrics would give them."""

    def copy(self) -> "Topics":
        """Topics of their own with the same content; a topic itself never changes."""
        other = Topics()
        other.update(self)
        other.by_id.update(self.by_id)
        other.colliding = {key: set(names) for key, names in self.colliding.items()}
        return other

    def put(self, topic: TopicState) -> None:
        """Hold ``topic`` under its name and id."""
        self[topic.name] = self.by_id[topic.topic_id] = topic
        if "." in topic.name or "_" in topic.name:
            self.colliding.setdefault(collision_key(topic.name), set()).add(topic.name)

    def remove(self, topic: TopicState) -> None:
        """Hold ``topic`` no longer."""
        del self[topic.name]
        del self.by_id[topic.topic_id]
        key = collision_key(topic.name)
        names = self.colliding.get(key, set())
        names.discard(topic.name)
        if not names:
            self.colliding.pop(key, None)


class ControllerState:
    """Brokers, topics, configurations, counters. Changed by ``apply`` only.

    Invariants: every Raft group is below ``next_raft_group``,
    every producer id handed out below ``next_producer_id``; both only grow, and so does ``feature_level``, which every
    registered broker knows. ``load`` counts the replicas of all topics.
    """

    __slots__ = (
        "cluster_id",
        "changes",
        "configs",
        "feature_level",
        "first_node",
        "load",
        "next_producer_id",
        "next_raft_group",
        "registry",
        "revision",
        "security",
        "topics",
    )

    def __init__(self) -> None:
        """The state before the first command: no cluster."""
        self.revision = 0
        self.cluster_id = ""
        self.first_node = -1
        self.feature_level = FeatureLevel(0)
        self.registry = Registry()
        self.load = Load()
        self.next_raft_group = FIRST_GROUP
        self.next_producer_id = 0
        self.topics = Topics()
        self.configs = Configs()
        self.changes = Changes()
        self.security = SecurityState()

    @property
    def moves(self) -> dict[int, Move]:
        """Partitions that move, by Raft group."""
        return self.changes.moves

    @property
    def origins(self) -> dict[int, Origin]:
        """By Raft group, for those whose members have changed."""
        return self.changes.origins

    @property
    def cuts(self) -> dict[int, Cut]:
        """The newest unclean cut of each partition that had one, by Raft group."""
        return self.changes.cuts

    @property
    def exists(self) -> bool:
        """Whether the cluster was created."""
        return bool(self.cluster_id)

    def apply(self, command: AnyCommand) -> None:
        """Make ``command`` true.

        Raises:
            Corruption: the command contradicts the state, which is left as it was.
        """
        needed = level_of(command)
        if needed > self.feature_level:
            _require(False, f"a command of feature level {needed} in a cluster of level {self.feature_level}")
        _APPLY[type(command)](self, command)
        self.revision += 1

    def copy(self) -> "ControllerState":
        """A state of its own with the same content; the topics, which never change, are shared."""
        other = ControllerState()
        for name in ControllerState.__slots__:
            value = getattr(self, name)
            setattr(other, name, value if isinstance(value, int | str) else value.copy())
        return other

    def groups(self) -> dict[int, tuple[TopicState, int]]:
        """Every Raft group with the topic and the partition index that it replicates. Built for recovery, not kept."""
        return {
            partition.raft_group: (topic, index)
            for topic in self.topics.values()
            for index, partition in enumerate(topic.partitions)
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ControllerState) and encode_state(self) == encode_state(other)

    __hash__ = None  # type: ignore[assignment]

    def put_topic(self, topic: TopicState) -> None:
        """Hold ``topic`` under its name and id. For ``apply`` and ``decode_state``."""
        before = self.topics.get(topic.name)
        if before is None:
            self.load.add(topic.partitions)
        elif before.partitions is not topic.partitions:
            self.load.change(before.partitions, topic.partitions)
        self.topics.put(topic)


def collision_key(name: str) -> str:
    """The name that metrics give to a topic: ``a.b`` and ``a_b`` would share it, so Kafka allows only one of them."""
    return name.replace(".", "_")


def _cluster_created(state: ControllerState, command: ClusterCreated) -> None:
    _require(not state.exists, "a cluster that exists cannot be created")
    _require(bool(command.cluster_id), "a cluster needs an id")
    state.cluster_id = command.cluster_id
    state.first_node = command.node


def _topic_created(state: ControllerState, command: TopicCreated) -> None:
    _require(command.name not in state.topics, f"topic {command.name} exists already")
    _require(command.topic_id not in state.topics.by_id, f"the id of topic {command.name} is taken")
    _require(bool(command.partitions), f"topic {command.name} has no partitions")
    _take_groups(state, command.partitions)
    configs = dict(command.configs)
    state.put_topic(TopicState(command.name, command.topic_id, command.partitions, configs, state.revision + 1))


def _topic_deleted(state: ControllerState, command: TopicDeleted) -> None:
    topic = _topic(state, command.topic_id)
    state.load.remove(topic.partitions)
    for partition in topic.partitions:
        state.changes.forget(RaftGroupId(partition.raft_group))
    state.topics.remove(topic)


def _partitions_added(state: ControllerState, command: PartitionsAdded) -> None:
    topic = _topic(state, command.topic_id)
    _require(command.first_index == len(topic.partitions), f"the partitions of topic {topic.name} would leave a gap")
    _require(bool(command.partitions), f"no partitions to add to topic {topic.name}")
    _take_groups(state, command.partitions)
    partitions = topic.partitions + command.partitions
    state.put_topic(msgspec.structs.replace(topic, partitions=partitions, revision=state.revision + 1))


def _topic_configs_changed(state: ControllerState, command: TopicConfigsChanged) -> None:
    topic = _topic(state, command.topic_id)
    configs = merged(topic.configs, command.changes)
    state.put_topic(msgspec.structs.replace(topic, configs=configs, revision=state.revision + 1))


def _node_configs_changed(state: ControllerState, command: NodeConfigsChanged) -> None:
    _change(state.configs.nodes, command.node, command.changes)


def _client_metrics_changed(state: ControllerState, command: ClientMetricsChanged) -> None:
    _change(state.configs.client_metrics, command.name, command.changes)


def _group_configs_changed(state: ControllerState, command: GroupConfigsChanged) -> None:
    _change(state.configs.groups, command.group, command.changes)


def _change(resources: dict[K, dict[str, str]], name: K, changes: dict[str, str | None]) -> None:
    """Change the settings of one resource; a resource without settings is removed."""
    configs = merged(resources.get(name, {}), changes)
    if configs:
        resources[name] = configs
    else:
        resources.pop(name, None)


def _producer_ids_allocated(state: ControllerState, command: ProducerIdsAllocated) -> None:
    _require(command.count > 0, "an empty block of producer ids")
    _require(command.start >= state.next_producer_id, f"producer id {command.start} was handed out before")
    state.next_producer_id = command.start + command.count


def _feature_level_raised(state: ControllerState, command: FeatureLevelRaised) -> None:
    _require(
        command.level > state.feature_level, f"feature level {command.level} is no more than {state.feature_level}"
    )
    if command.level > FEATURE_LEVEL:
        raise Corruption(
            f"this cluster has feature level {command.level}, this release knows {FEATURE_LEVEL}: start a newer release"
        )
    for broker in state.registry.brokers.values():
        _require(
            broker.profile.feature_level >= command.level,
            f"feature level {command.level} is not known to broker {broker.node}",
        )
    state.feature_level = command.level


def _broker_registered(state: ControllerState, command: BrokerRegistered) -> None:
    _require_level(state, command)
    state.registry.register(command, BrokerEpoch(state.revision + 1))


def _broker_replaced(state: ControllerState, command: BrokerReplaced) -> None:
    _require_level(state, command)
    if command.version and command.node in state.registry.brokers:
        for topic in state.topics.values():
            for partition in topic.partitions:
                if command.node in partition.replicas:
                    state.changes.note_origin(state.registry.brokers, partition)
    state.registry.replace(command, BrokerEpoch(state.revision + 1))


def _require_level(state: ControllerState, command: BrokerRegistered | BrokerReplaced) -> None:
    level = command.profile.feature_level
    _require(level >= state.feature_level, f"broker {command.node} does not know feature level {state.feature_level}")


def _broker_fenced(state: ControllerState, command: BrokerFenced | BrokerUnfenced) -> None:
    state.registry.fence(command)


def _broker_logs_in_store(state: ControllerState, command: BrokerLogsInStore) -> None:
    state.registry.log_in_store(command)


def _broker_mode_changed(state: ControllerState, command: BrokerModeChanged) -> None:
    state.registry.change_mode(command)


def _broker_unregistered(state: ControllerState, command: BrokerUnregistered) -> None:
    _require(
        not state.load.replicas.get(command.node), f"broker {command.node} leaves, but partitions are to be held by it"
    )
    state.registry.unregister(command)


def _replicas_of_topic(state: ControllerState, command: ReplicasMoving | ReplicasChanged) -> None:
    topic = _topic(state, command.topic_id)
    brokers = state.registry.brokers
    if isinstance(command, ReplicasMoving):
        partitions = state.changes.begin_moves(brokers, topic.name, topic.partitions, command)
    else:
        partitions = state.changes.end_moves(brokers, topic.name, topic.partitions, command)
    state.put_topic(msgspec.structs.replace(topic, partitions=partitions, revision=state.revision + 1))


def _partition_cut(state: ControllerState, command: PartitionCut | PartitionCutDone) -> None:
    topic = _topic(state, command.topic_id)
    _require(0 <= command.index < len(topic.partitions), f"topic {topic.name} has no partition {command.index}")
    if isinstance(command, PartitionCut):
        known = any(broker.replica == command.replica for broker in state.registry.brokers.values())
        _require(known, f"{topic.name}:{command.index} is cut to a replica of an unknown broker")
    apply_cut(state.changes.cuts, topic.partitions[command.index], command)


def _user_set(state: ControllerState, command: UserSet) -> None:
    state.security.set_user(command)


def _user_removed(state: ControllerState, command: UserRemoved) -> None:
    state.security.remove_user(command)


def _secret_set(state: ControllerState, command: SecretSet) -> None:
    state.security.set_secret(command)


def _acls_created(state: ControllerState, command: AclsCreated) -> None:
    state.security.create_acls(command)


def _acls_deleted(state: ControllerState, command: AclsDeleted) -> None:
    state.security.delete_acls(command)


def _quotas_changed(state: ControllerState, command: QuotasChanged) -> None:
    state.security.limits.change(command.entity, command.changes)


_APPLY: Final[dict[type, Callable[[ControllerState, Any], None]]] = {
    ClusterCreated: _cluster_created,
    TopicCreated: _topic_created,
    TopicDeleted: _topic_deleted,
    PartitionsAdded: _partitions_added,
    TopicConfigsChanged: _topic_configs_changed,
    NodeConfigsChanged: _node_configs_changed,
    ClientMetricsChanged: _client_metrics_changed,
    GroupConfigsChanged: _group_configs_changed,
    ProducerIdsAllocated: _producer_ids_allocated,
    FeatureLevelRaised: _feature_level_raised,
    BrokerRegistered: _broker_registered,
    BrokerReplaced: _broker_replaced,
    BrokerFenced: _broker_fenced,
    BrokerUnfenced: _broker_fenced,
    BrokerLogsInStore: _broker_logs_in_store,
    ReplicasMoving: _replicas_of_topic,
    ReplicasChanged: _replicas_of_topic,
    PartitionCut: _partition_cut,
    PartitionCutDone: _partition_cut,
    BrokerModeChanged: _broker_mode_changed,
    BrokerUnregistered: _broker_unregistered,
    UserSet: _user_set,
    UserRemoved: _user_removed,
    SecretSet: _secret_set,
    AclsCreated: _acls_created,
    AclsDeleted: _acls_deleted,
    QuotasChanged: _quotas_changed,
}


def merged(configs: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    """``configs`` with ``changes`` made; None takes a name out."""
    result = {name: value for name, value in configs.items() if name not in changes}
    result.update((name, value) for name, value in changes.items() if value is not None)
    return result


def _topic(state: ControllerState, topic_id: bytes) -> TopicState:
    topic = state.topics.by_id.get(topic_id)
    if topic is None:
        raise Corruption(
            f"the controller's log speaks of topic id {topic_id.hex()}, which does not exist at this point"
        )
    return topic


def _take_groups(state: ControllerState, partitions: tuple[PartitionState, ...]) -> None:
    """Move the counter past the groups of new partitions, which must be new and distinct."""
    last = state.next_raft_group - 1
    for partition in partitions:
        _require(partition.raft_group > last, f"Raft group {partition.raft_group} was used before")
        last = partition.raft_group
    state.next_raft_group = last + 1


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Corruption(f"the controller's log contradicts itself: {otherwise}")


class _Membership(msgspec.Struct, frozen=True):
    """What a state has from feature level 2 on."""

    modes: dict[NodeId, BrokerMode] = {}
    moves: dict[int, Move] = {}
    origins: dict[int, Origin] = {}
    cuts: dict[int, Cut] | msgspec.UnsetType = msgspec.UNSET
    """Not written without one: the stored form of a state without cuts stays as it was."""


class _Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored form of the whole state. Fields may be added with a default, which is not written."""

    version: int
    revision: int
    cluster_id: str
    first_node: int
    next_raft_group: int
    next_producer_id: int
    topics: list[TopicState]
    node_configs: dict[int, dict[str, str]]
    client_metrics: dict[str, dict[str, str]] = {}
    group_configs: dict[str, dict[str, str]] = {}
    feature_level: FeatureLevel = FeatureLevel(0)
    brokers: list[BrokerState] = []
    retired: dict[Incarnation, NodeId] = {}
    membership: _Membership | None = None
    security: StoredSecurity | None = None


_snapshot_decoder = msgspec.msgpack.Decoder(_Snapshot)


def encode_state(state: ControllerState) -> bytes:
    """The whole state in bytes; equal states give equal bytes."""
    snapshot = _Snapshot(
        _snapshot_version(state),
        state.revision,
        state.cluster_id,
        state.first_node,
        state.next_raft_group,
        state.next_producer_id,
        [
            msgspec.structs.replace(topic, configs=dict(sorted(topic.configs.items())))
            for _, topic in sorted(state.topics.items())
        ],
        {node: dict(sorted(configs.items())) for node, configs in sorted(state.configs.nodes.items())},
        {name: dict(sorted(configs.items())) for name, configs in sorted(state.configs.client_metrics.items())},
        {name: dict(sorted(configs.items())) for name, configs in sorted(state.configs.groups.items())},
        state.feature_level,
        [state.registry.brokers[node] for node in state.registry.nodes()],
        dict(sorted(state.registry.retired.items())),
        _membership(state),
        state.security.stored(),
    )
    return msgspec.msgpack.encode(snapshot)


def _membership(state: ControllerState) -> _Membership | None:
    if not (state.registry.modes or state.moves or state.origins or state.cuts):
        return None
    return _Membership(
        dict(sorted(state.registry.modes.items())),
        dict(sorted(state.moves.items())),
        dict(sorted(state.origins.items())),
        dict(sorted(state.cuts.items())) if state.cuts else msgspec.UNSET,
    )


def _snapshot_version(state: ControllerState) -> int:
    if state.cuts:
        return SNAPSHOT_VERSION
    if not state.security.is_empty:
        return _SECURITY_VERSION
    if state.feature_level > MANY_BROKERS:
        return _LEVEL_2_VERSION
    return _LEVEL_1_VERSION if state.feature_level else _LEVEL_0_VERSION


def state_hash(state: ControllerState) -> bytes:
    """16 bytes that are equal for equal states (BLAKE2b of ``encode_state``)."""
    return hashlib.blake2b(encode_state(state), digest_size=16).digest()


def decode_state(data: bytes | memoryview) -> ControllerState:
    """The state that ``encode_state`` wrote.

    Raises:
        Corruption: the bytes are no snapshot, or one of a later release.
    """
    try:
        snapshot = _snapshot_decoder.decode(data)
    except UNREADABLE as error:
        raise Corruption(f"the controller's snapshot does not decode: {error}") from None
    if not _LEVEL_0_VERSION <= snapshot.version <= SNAPSHOT_VERSION:
        raise Corruption(
            f"the controller's snapshot has version {snapshot.version}, this release reads up to {SNAPSHOT_VERSION}"
        )
    if snapshot.feature_level > FEATURE_LEVEL:
        raise Corruption(
            f"this cluster has feature level {snapshot.feature_level}, this release knows {FEATURE_LEVEL}: start a "
            "newer release"
        )
    state = ControllerState()
    state.revision = snapshot.revision
    state.cluster_id = snapshot.cluster_id
    state.first_node = snapshot.first_node
    state.next_raft_group = snapshot.next_raft_group
    state.next_producer_id = snapshot.next_producer_id
    state.configs.nodes = snapshot.node_configs
    state.configs.client_metrics = snapshot.client_metrics
    state.configs.groups = snapshot.group_configs
    state.feature_level = snapshot.feature_level
    state.registry.brokers = {broker.node: broker for broker in snapshot.brokers}
    state.registry.retired = snapshot.retired
    if snapshot.membership is not None:
        state.registry.modes = snapshot.membership.modes
        state.changes.moves = snapshot.membership.moves
        state.changes.origins = snapshot.membership.origins
        state.changes.cuts = snapshot.membership.cuts or {}
    if snapshot.security is not None:
        state.security = snapshot.security.restored()
    for topic in snapshot.topics:
        state.put_topic(topic)
    return state
