"""Requests to the controller and its answers, in no particular version of anybody's protocol.

They are values that travel between shards (MessagePack) and are the same for Kafka's handlers, auto-creation, group
coordinators and the admin API. One request may name many topics; each gets a ``Result`` of its own, in the order of the
request. A request as a whole fails only by not being carried out at all (``errors.MillstreamError``).
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from millstream.core.access.entry import AclEntry, AclFilter
from millstream.core.controller.commands import BrokerMode
from millstream.core.controller.profile import BrokerProfile, PeerAddress
from millstream.core.quota.mutations import MutationClient
from millstream.model.cluster import BrokerEpoch, FeatureLevel, Incarnation, NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.wire.sasl import Verifier

NO_TOPIC_ID = bytes(16)


class CreateTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic to create. -1 asks for the node's default. ``assignments`` are (partition index, node ids)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()
    topic_id: bytes = NO_TOPIC_ID
    """The id that a recovered topic had; a new one without it."""


class TopicReference(msgspec.Struct, frozen=True, array_like=True):
    """A topic by name or by id; naming neither or both is the caller's mistake, which is answered."""

    name: str | None = None
    topic_id: bytes = NO_TOPIC_ID


class AddPartitions(msgspec.Struct, frozen=True, array_like=True):
    """A topic and how many partitions it should have; ``assignments`` gives the nodes of each new one."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class ConfigOperation(IntEnum):
    """Kafka's numbers for what may be done to one property."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True, array_like=True):
    """One property and what to do to it; ``operation`` is the client's number, unchecked."""

    name: str
    operation: int
    value: str | None = None


class AlterTopic(msgspec.Struct, frozen=True, array_like=True, tag="topic"):
    """Changes of one topic's properties: all of them or none. ``replace``: what is not named goes."""

    name: str
    changes: tuple[ConfigChange, ...]
    replace: bool = False


class AlterNode(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """Changes of one broker's live settings, or of every broker's (``commands.CLUSTER_DEFAULT``)."""

    node: int
    changes: tuple[ConfigChange, ...]
    replace: bool = False


class AlterClientMetrics(msgspec.Struct, frozen=True, array_like=True, tag="client_metrics"):
    """Changes of one subscription to clients' metrics, which exists as long as it says something."""

    name: str
    changes: tuple[ConfigChange, ...]
    replace: bool = False


class AlterGroup(msgspec.Struct, frozen=True, array_like=True, tag="group"):
    """Changes of one consumer group's properties, whether or not there is such a group."""

    group: str
    changes: tuple[ConfigChange, ...]
    replace: bool = False


AnyResource: TypeAlias = AlterTopic | AlterNode | AlterClientMetrics | AlterGroup


class Request(msgspec.Struct, frozen=True, tag_field="type"):
    """Root of the requests."""


class CreateTopics(Request, frozen=True, tag="create_topics"):
    """Create topics, or with ``validate_only`` say whether they could be."""

    topics: tuple[CreateTopic, ...]
    validate_only: bool = False
    client: MutationClient | None = None
    """Whose quota of changes it counts against."""


class DeleteTopics(Request, frozen=True, tag="delete_topics"):
    """Delete topics with all that is in them."""

    topics: tuple[TopicReference, ...]
    client: MutationClient | None = None


class CreatePartitions(Request, frozen=True, tag="create_partitions"):
    """Give topics more partitions, or with ``validate_only`` say whether they could get them."""

    topics: tuple[AddPartitions, ...]
    validate_only: bool = False
    client: MutationClient | None = None


class AlterConfigs(Request, frozen=True, tag="alter_configs"):
    """Change properties of topics, brokers and other resources, or with ``validate_only`` say whether they could be."""

    resources: tuple[AnyResource, ...]
    validate_only: bool = False


class AllocateProducerIds(Request, frozen=True, tag="allocate_producer_ids"):
    """A block of ``count`` producer ids that were never handed out."""

    count: int


class CreateCluster(Request, frozen=True, tag="create_cluster"):
    """Give the cluster its id, unless it has one."""

    cluster_id: str


class RegisterBroker(Request, frozen=True, tag="register_broker"):
    """Make a broker known, again after each of its starts.

    ``cluster_id`` is the one on its disk, empty for an empty disk. ``replace``: the disk with which the broker is
    registered is permanently lost. ``replacement`` is the number that the disk of a joining broker has given itself.
    """

    cluster_id: str
    node: NodeId
    incarnation: Incarnation
    profile: BrokerProfile
    replace: bool = False
    replacement: int = 0


class FenceBroker(Request, frozen=True, tag="fence_broker"):
    """The broker that registered as ``epoch`` is silent."""

    node: NodeId
    epoch: BrokerEpoch


class UnfenceBroker(Request, frozen=True, tag="unfence_broker"):
    """The broker that registered as ``epoch`` is alive and has caught up."""

    node: NodeId
    epoch: BrokerEpoch


class ReassignPartition(msgspec.Struct, frozen=True, array_like=True):
    """The brokers that shall hold one partition; ``None`` ends a move."""

    topic: str
    index: int
    replicas: tuple[int, ...] | None


class ReassignPartitions(Request, frozen=True, tag="reassign_partitions"):
    """Move replicas. Without ``allow_factor_change`` a partition has to keep their number."""

    partitions: tuple[ReassignPartition, ...]
    allow_factor_change: bool = True


class SetReplicationFactor(Request, frozen=True, tag="set_replication_factor"):
    """Give each partition of a topic so many replicas, on brokers that the controller chooses."""

    topic: str
    factor: int


class CompleteMoves(Request, frozen=True, tag="complete_moves"):
    """Raft groups whose members are the replicas given, and committed: (group, node ids)."""

    moves: tuple[tuple[int, tuple[int, ...]], ...]


class CutPartition(Request, frozen=True, tag="cut_partition"):
    """Let the replica of ``node`` be the log of a partition without a leader. Its log was found to end at
    ``end_offset`` (-1 if that is unknown), and ``term`` is the newest that it knows. ``reason`` goes into the log.
    """

    topic: str
    index: int
    node: NodeId
    term: Term
    end_offset: Offset
    reason: str


class CompleteCut(Request, frozen=True, tag="complete_cut"):
    """The replica that the cut of this ``term`` names leads the partition."""

    topic_id: bytes
    index: int
    term: Term


class SetBrokerMode(Request, frozen=True, tag="set_broker_mode"):
    """Let a broker serve, lead nothing, or leave the cluster."""

    node: NodeId
    mode: BrokerMode


class BalanceReplicas(Request, frozen=True, tag="balance_replicas"):
    """Start the moves that spread replicas over the brokers."""


class EvacuateBrokers(Request, frozen=True, tag="evacuate_brokers"):
    """Start moves away from leaving and ``dead`` brokers; unregister those that no longer hold a replica."""

    dead: tuple[NodeId, ...] = ()


class UnregisterBroker(Request, frozen=True, tag="unregister_broker"):
    """Forget a broker that is not alive and holds nothing."""

    node: NodeId


class DeclareLost(Request, frozen=True, tag="declare_lost"):
    """Disks of brokers that are not alive are lost and never come back. ``reason`` goes into the log."""

    nodes: tuple[NodeId, ...]
    reason: str


class TakeOver(Request, frozen=True, tag="take_over"):
    """The disk ``previous`` of a broker that is not alive continues elsewhere, as ``incarnation``; the others reach it
    at ``peer``. ``reason`` goes into the log.
    """

    node: NodeId
    previous: Incarnation
    incarnation: Incarnation
    peer: PeerAddress
    reason: str = ""


class RestorePartitions(Request, frozen=True, tag="restore_partitions"):
    """Let live brokers restore shared partitions that a dead broker has alone. It was registered as ``epoch`` when its
    logs in the object store were sealed.
    """

    node: NodeId
    epoch: BrokerEpoch


class NoteLogInStore(Request, frozen=True, tag="note_log_in_store"):
    """The object store has what the broker that registered as ``epoch`` acknowledged of shared partitions. It says so
    itself (`tiers.shared_wal`).
    """

    node: NodeId
    epoch: BrokerEpoch


class UpdateFeatures(Request, frozen=True, tag="update_features"):
    """Change levels of features, all or none: (name, level, kind of change as in Kafka's UpgradeType)."""

    updates: tuple[tuple[str, int, int], ...]
    validate_only: bool = False


class RemoveUser(msgspec.Struct, frozen=True, array_like=True):
    """Remove a user's credential of this mechanism."""

    user: str
    mechanism: int


class SetUser(msgspec.Struct, frozen=True, array_like=True):
    """A user shall log in by this mechanism."""

    user: str
    mechanism: int
    verifier: Verifier


class AlterUsers(Request, frozen=True, tag="alter_users"):
    """Set and remove verifiers; one result a user, in the order of their first mention."""

    removals: tuple[RemoveUser, ...]
    sets: tuple[SetUser, ...]


class CreateAcls(Request, frozen=True, tag="create_acls"):
    """Add access control entries; one result for each."""

    entries: tuple[AclEntry, ...]


class DeleteAcls(Request, frozen=True, tag="delete_acls"):
    """Remove the entries that filters mean; one result for each filter, with what it has removed."""

    filters: tuple[AclFilter, ...]


class ChangeQuotas(msgspec.Struct, frozen=True, array_like=True):
    """Changes of one entity's quotas, in the order of the request. A value of None removes the quota."""

    parts: tuple[tuple[str, str | None], ...]
    changes: tuple[tuple[str, float | None], ...]


class AlterQuotas(Request, frozen=True, tag="alter_quotas"):
    """Change quotas; one result for each entity."""

    entities: tuple[ChangeQuotas, ...]
    validate_only: bool = False


AnyRequest: TypeAlias = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AllocateProducerIds
    | CreateCluster
    | RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | ReassignPartitions
    | SetReplicationFactor
    | CompleteMoves
    | CutPartition
    | CompleteCut
    | SetBrokerMode
    | BalanceReplicas
    | EvacuateBrokers
    | UnregisterBroker
    | DeclareLost
    | TakeOver
    | RestorePartitions
    | NoteLogInStore
    | UpdateFeatures
    | AlterUsers
    | CreateAcls
    | DeleteAcls
    | AlterQuotas
)


AdminRequest: TypeAlias = (
    ReassignPartitions
    | SetReplicationFactor
    | SetBrokerMode
    | BalanceReplicas
    | UnregisterBroker
    | DeclareLost
    | TakeOver
)
"""What a person may ask for over HTTP."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What became of one part of a request.

    ``name`` and ``topic_id`` are what a client is shown; ``partitions`` and ``replication_factor`` are set for topics
    that were (or could be) created, ``partitions`` also for the number of moves that have started,
    ``first_producer_id`` for a block of ids, ``broker_epoch`` and ``feature_level`` for a broker that was registered,
    ``acls`` for entries that were removed.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    name: str | None = None
    topic_id: bytes = NO_TOPIC_ID
    partitions: int = -1
    replication_factor: int = -1
    first_producer_id: int = -1
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    feature_level: FeatureLevel = FeatureLevel(0)
    acls: tuple[AclEntry, ...] = ()
    throttle_ms: int = 0


Results: TypeAlias = tuple[Result, ...]


def throttle_ms(results: Results) -> int:
    """How long the client of a request with these results waits by its quota."""
    return results[0].throttle_ms if results else 0


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(AnyRequest)
_results_decoder = msgspec.msgpack.Decoder(Results)


def encode_request(request: AnyRequest) -> bytes:
    """The request in bytes, for the way to the controller's shard."""
    return _encoder.encode(request)


def decode_request(data: bytes | memoryview) -> AnyRequest:
    """The other end of ``encode_request``; the sender is the same program."""
    return _request_decoder.decode(data)


def encode_results(results: Results) -> bytes:
    """The results in bytes, for the way back."""
    return _encoder.encode(results)


def decode_results(data: bytes | memoryview) -> Results:
    """The other end of ``encode_results``."""
    return _results_decoder.decode(data)
