"""Commands: the records of the controller's log (Raft group 0).

One command is one fact about the cluster that has been decided; applying the commands in log order gives the state
(``state.ControllerState``) on every shard and after every restart. A command says what is, never how it was asked for,
so that a later release may decide differently without reading old logs differently.

Stored form: each command is one record of an ordinary record batch; the record's value is the MessagePack map of the
struct with its tag under ``type``. Commands decided together stand in one batch and are therefore kept or lost
together. Fields may be added with a default; a field never changes its meaning. A field that older releases must not
overlook comes with a higher ``version`` of its command. A tag, a version or a shape that this release does not know is
``Corruption``: to skip a command would be to serve another cluster.

``COMMAND_LEVELS`` says from which feature level of the cluster on each version of each command may be decided
(``FeatureLevelRaised``). A log of level 0 is one of a single broker and of the first release.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from millstream.core.access.entry import AclEntry
from millstream.core.controller.profile import BrokerProfile
from millstream.core.quota.limits import Entity
from millstream.errors import Corruption
from millstream.model.cluster import BrokerEpoch, FeatureLevel, Incarnation, NodeId
from millstream.model.quantities import Offset
from millstream.model.replication import ReplicaId, Term
from millstream.wire.sasl import Verifier

CLUSTER_DEFAULT: Final = -1
"""Node id under which configurations for every broker are kept (a broker resource with an empty name)."""


ELECTED: Final = 0
"""The replicas of a partition elect their first leader, or there is one replica alone; see `PartitionState`."""

ASSIGNED: Final = -1
"""The first replica leads in term 0 without an election."""


class PartitionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition: its Raft group, the nodes that hold it, who leads it.

    ``raft_group`` is unique in the cluster and never used again. ``beginning`` says how several replicas get their
    first leader: `ELECTED` by an election, `ASSIGNED` by the creation, in term 0, and a positive number by the
    creation, in the term of that number, as in a cluster below `FIRST_EPOCH_0`.
    """

    raft_group: int
    replicas: tuple[int, ...]
    leader: int
    beginning: int = ELECTED

    @property
    def first_term(self) -> Term | None:
        """The Raft term in which the first replica leads without an election (`core.raft.beginning`); None if there is
        no such term.
        """
        return None if self.beginning == ELECTED else Term(max(0, self.beginning))

    @property
    def leader_epoch(self) -> Term:
        """The leader epoch that the creation gives; a partition that has elected since knows a later one."""
        return Term(max(0, self.beginning))


class Command(msgspec.Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """Root of the commands. ``version`` is the version of this command's meaning; 0 is not written."""

    version: int = 0


class ClusterCreated(Command, frozen=True, tag="cluster_created"):
    """The first command of every log: the cluster has an id, and this node is its first broker."""

    cluster_id: str
    node: int


class TopicCreated(Command, frozen=True, tag="topic_created"):
    """A topic exists. ``configs`` is what it says for itself, in Kafka's spelling; ``partitions`` count from 0.
    Version 1 assigns the first leaders of partitions with several replicas.
    """

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: dict[str, str]


class TopicDeleted(Command, frozen=True, tag="topic_deleted"):
    """A topic was deleted; its id and Raft groups are never used again. ``name`` is for people who read the log."""

    topic_id: bytes
    name: str


class PartitionsAdded(Command, frozen=True, tag="partitions_added"):
    """A topic grew; the first of ``partitions`` has the index ``first_index``. Version 1: as of ``TopicCreated``."""

    topic_id: bytes
    first_index: int
    partitions: tuple[PartitionState, ...]


class TopicConfigsChanged(Command, frozen=True, tag="topic_configs_changed"):
    """Properties of a topic were set, or (None) went back to their defaults."""

    topic_id: bytes
    changes: dict[str, str | None]


class NodeConfigsChanged(Command, frozen=True, tag="node_configs_changed"):
    """Live settings of a broker were set or (None) went back. ``node`` may be ``CLUSTER_DEFAULT``: of every broker."""

    node: int
    changes: dict[str, str | None]


class ClientMetricsChanged(Command, frozen=True, tag="client_metrics_changed"):
    """Properties of a subscription to clients' metrics were set or removed (None); with the last one
    the subscription ends.
    """

    name: str
    changes: dict[str, str | None]


class GroupConfigsChanged(Command, frozen=True, tag="group_configs_changed"):
    """Properties of a consumer group were set or (None) went back. The group need not exist."""

    group: str
    changes: dict[str, str | None]


class ProducerIdsAllocated(Command, frozen=True, tag="producer_ids_allocated"):
    """The producer ids ``start`` to ``start + count`` (exclusive) are ``node``'s alone to hand out."""

    start: int
    count: int
    node: int


class FeatureLevelRaised(Command, frozen=True, tag="feature_level_raised"):
    """Commands that need up to this level may follow. Every registered broker knows it; it never falls."""

    level: FeatureLevel


class BrokerRegistered(Command, frozen=True, tag="broker_registered"):
    """A broker joined, or came back with the same disk. It is fenced until ``BrokerUnfenced``.

    From version 1 on the disk of a broker that joins says its ``replacement`` (`model.replication.replica_id`), so that
    it is not taken for a disk that another broker had under the same id.
    """

    node: NodeId
    incarnation: Incarnation
    profile: BrokerProfile
    replacement: int = 0


class BrokerReplaced(Command, frozen=True, tag="broker_replaced"):
    """The disk ``previous`` of a fenced broker is permanently lost: ``incarnation`` takes its place, empty.

    ``previous`` may never register again. Each Raft group takes it out of its voters and adds the new one as a learner.
    From version 1 on the new disk says its ``replacement`` (`model.replication.replica_id`) itself. ``reason`` is set
    where a person has declared the old one lost: the new one stands for a disk that does not exist yet (`is_lost`). It
    is also set where the disk was taken over: that is the same one, with the ``replacement`` that it had.
    """

    node: NodeId
    previous: Incarnation
    incarnation: Incarnation
    profile: BrokerProfile
    replacement: int = 0
    reason: str = ""


class BrokerFenced(Command, frozen=True, tag="broker_fenced"):
    """The broker that registered as ``epoch`` gives no sign of life: it may not lead or acknowledge."""

    node: NodeId
    epoch: BrokerEpoch


class BrokerUnfenced(Command, frozen=True, tag="broker_unfenced"):
    """The broker that registered as ``epoch`` is alive and knows the cluster as of its registration."""

    node: NodeId
    epoch: BrokerEpoch


class BrokerLogsInStore(Command, frozen=True, tag="broker_logs_in_store"):
    """The object store has every acknowledged record of the shared partitions that the broker, which registered as
    ``epoch``, has alone, and will have the later ones (``shared.wal=object``).
    """

    node: NodeId
    epoch: BrokerEpoch


class ReplicaChange(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a topic and the brokers that shall hold it, in order of preference for leadership."""

    index: int
    replicas: tuple[int, ...]


class ReplicasMoving(Command, frozen=True, tag="replicas_moving"):
    """Partitions of a topic shall be held by other brokers. The leaders of their Raft groups see to it; until
    ``ReplicasChanged`` the brokers of before hold them, too. A later command for the same partition replaces this one.
    """

    topic_id: bytes
    changes: tuple[ReplicaChange, ...]


class ReplicasChanged(Command, frozen=True, tag="replicas_changed"):
    """Partitions of a topic are held by these brokers alone: they are the members of their Raft groups. The others
    remove their files.

    From version 1 on a dead broker had each of the partitions alone (`core.controller.restoring`). The broker that has
    it from now on restores it from the object store, and is the only member of its group.
    """

    topic_id: bytes
    changes: tuple[ReplicaChange, ...]


class PartitionCut(Command, frozen=True, tag="partition_cut"):
    """A person has decided that one replica's log is the partition's, although records may be lost by it. The replica
    leads in ``term`` or a later one; the others start empty (`core.controller.cutting`). A later command for the same
    partition replaces this one. ``reason`` is for people who read the log.
    """

    topic_id: bytes
    index: int
    replica: ReplicaId
    term: Term
    end_offset: Offset
    reason: str


class PartitionCutDone(Command, frozen=True, tag="partition_cut_done"):
    """The replica that the cut of this ``term`` names leads the partition."""

    topic_id: bytes
    index: int
    term: Term


BrokerMode: TypeAlias = Literal["serving", "drained", "leaving"]
"""What is asked of a broker: to serve; to lead nothing; to hold nothing, because it leaves the cluster."""


class BrokerModeChanged(Command, frozen=True, tag="broker_mode_changed"):
    """A registered broker has another mode."""

    node: NodeId
    mode: BrokerMode


class BrokerUnregistered(Command, frozen=True, tag="broker_unregistered"):
    """The broker that registered as ``epoch``, and holds no replica, is unregistered. Its disk never comes back."""

    node: NodeId
    epoch: BrokerEpoch


class UserSet(Command, frozen=True, tag="user_set"):
    """A user can log in by a SCRAM mechanism (its number in Kafka), if it knows the password of the verifier."""

    user: str
    mechanism: int
    verifier: Verifier


class UserRemoved(Command, frozen=True, tag="user_removed"):
    """A user can no longer log in by a SCRAM mechanism."""

    user: str
    mechanism: int


class SecretSet(Command, frozen=True, tag="secret_set"):
    """Random bytes that all brokers share and keep secret."""

    name: str
    value: bytes

    def __repr__(self) -> str:
        return f"SecretSet({self.name})"


class AclsCreated(Command, frozen=True, tag="acls_created"):
    """Access control entries are in force, in this order after those before."""

    entries: tuple[AclEntry, ...]


class AclsDeleted(Command, frozen=True, tag="acls_deleted"):
    """Access control entries are no longer in force."""

    entries: tuple[AclEntry, ...]


class QuotasChanged(Command, frozen=True, tag="quotas_changed"):
    """Quotas of one entity are set, and those with None removed."""

    entity: Entity
    changes: dict[str, float | None]


AnyCommand: TypeAlias = (
    ClusterCreated
    | TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | TopicConfigsChanged
    | NodeConfigsChanged
    | ClientMetricsChanged
    | GroupConfigsChanged
    | ProducerIdsAllocated
    | FeatureLevelRaised
    | BrokerRegistered
    | BrokerReplaced
    | BrokerFenced
    | BrokerUnfenced
    | BrokerLogsInStore
    | ReplicasMoving
    | ReplicasChanged
    | PartitionCut
    | PartitionCutDone
    | BrokerModeChanged
    | BrokerUnregistered
    | UserSet
    | UserRemoved
    | SecretSet
    | AclsCreated
    | AclsDeleted
    | QuotasChanged
)

MANY_BROKERS: Final = FeatureLevel(1)
"""Brokers are registered, and partitions may have several replicas."""

MOVING_REPLICAS: Final = FeatureLevel(2)
"""Replicas move between brokers, and brokers leave the cluster."""

REPLACING_SEGMENTS: Final = FeatureLevel(3)
"""Jobs replace archived segments: every replica understands the entry."""

ASSIGNING_LEADERS: Final = FeatureLevel(4)
"""The first leader of a new partition is assigned, not elected."""

RESTORING_PARTITIONS: Final = FeatureLevel(5)
"""Partitions of a dead broker are restored by others."""

SECURING: Final = FeatureLevel(6)
"""Users, access control and quotas. Their commands are of level 0, because a single broker has no other; in a cluster
they are decided from this level on (``users.check_level``).
"""

CUTTING_PARTITIONS: Final = FeatureLevel(7)
"""A person decides whose replica a partition without a leader continues from."""

SHARE_GROUPS: Final = FeatureLevel(8)
"""Share groups: every broker reads their records of groups and of state, and asks another one for the latter."""

STREAMS_GROUPS: Final = FeatureLevel(9)
"""Streams groups: every broker reads their records."""

FIRST_EPOCH_0: Final = FeatureLevel(10)
"""An assigned first leader has leader epoch 0, as Kafka's has; below this level it has 1."""

FEATURE_LEVEL: Final = FIRST_EPOCH_0
"""The highest feature level that this release knows."""

_FIRST: Final = (FeatureLevel(0),)
_MANY: Final = (MANY_BROKERS,)
_MOVING: Final = (MOVING_REPLICAS,)
_FIRST_ASSIGNING: Final = (FeatureLevel(0), ASSIGNING_LEADERS, FIRST_EPOCH_0)

COMMAND_LEVELS: Final[Mapping[type[Command], tuple[FeatureLevel, ...]]] = MappingProxyType(
    {
        ClusterCreated: _FIRST,
        TopicCreated: _FIRST_ASSIGNING,
        TopicDeleted: _FIRST,
        PartitionsAdded: _FIRST_ASSIGNING,
        TopicConfigsChanged: _FIRST,
        NodeConfigsChanged: _FIRST,
        ClientMetricsChanged: _FIRST,
        GroupConfigsChanged: _FIRST,
        ProducerIdsAllocated: _FIRST,
        FeatureLevelRaised: _FIRST,
        BrokerRegistered: (MANY_BROKERS, MOVING_REPLICAS),
        BrokerReplaced: (MANY_BROKERS, MOVING_REPLICAS),
        BrokerFenced: _MANY,
        BrokerUnfenced: _MANY,
        BrokerLogsInStore: (RESTORING_PARTITIONS,),
        ReplicasMoving: _MOVING,
        ReplicasChanged: (MANY_BROKERS, RESTORING_PARTITIONS),
        PartitionCut: (CUTTING_PARTITIONS,),
        PartitionCutDone: (CUTTING_PARTITIONS,),
        BrokerModeChanged: _MOVING,
        BrokerUnregistered: _MOVING,
        UserSet: _FIRST,
        UserRemoved: _FIRST,
        SecretSet: _FIRST,
        AclsCreated: _FIRST,
        AclsDeleted: _FIRST,
        QuotasChanged: _FIRST,
    }
)
"""For each version of a command, counted from 0: the feature level that the cluster must have."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyCommand)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: text that is no UTF-8 and deep nests included."""


def encode_command(command: AnyCommand) -> bytes:
    """The value of the record that stores ``command``."""
    return _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> AnyCommand:
    """The command that a record's value holds.

    Raises:
        Corruption: the bytes are no command of this or an earlier release.
    """
    try:
        command = _decoder.decode(data)
    except UNREADABLE as error:
        raise Corruption(f"a record of the controller's log is no command that this version knows: {error}") from None
    known = len(COMMAND_LEVELS[type(command)])
    if not 0 <= command.version < known:
        raise Corruption(
            f"a record of the controller's log is version {command.version} of {type(command).__struct_config__.tag}; "
            f"this release knows versions up to {known - 1}"
        )
    return command


def level_of(command: AnyCommand) -> FeatureLevel:
    """The feature level that the cluster must have for ``command``."""
    return COMMAND_LEVELS[type(command)][command.version]
