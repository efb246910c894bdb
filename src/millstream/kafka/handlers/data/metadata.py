"""Metadata: which brokers, topics and partitions there are, and who leads them.

========  ===================================================================
version   what a client may ask
========  ===================================================================
  0       an empty list of topics means all of them
  1-      null means all, an empty list none
  4-      not to create topics that do not exist
  8-      its authorised operations (on the cluster: until 10)
 12-      topics by id; if one has an id, names are ignored
========  ===================================================================

A topic that does not exist is created if client and broker allow it. The answer waits for the creation, so the client
needs no second attempt. The first client that asks for a topic after its deletion is an exception: it gets
UNKNOWN_TOPIC_OR_PARTITION, as from Kafka, and the topic is created in the background, so that a client sees its
deletion take effect. If the topic cannot be created, the response has the reason. If the outcome is unknown, the
response has LEADER_NOT_AVAILABLE, after which every client asks again.

A broker without contact to a leader of a partition for seconds, though it holds a replica, may be cut off from the
others. Its answer has LEADER_NOT_AVAILABLE and no leader. If the same client asks again, the answer has the error and,
in the place of the leader, each of the other replicas in turn. librdkafka asks only brokers that it is connected with,
and connects to a partition's leader with any error: without a broker to connect to it would ask the same one for ever.
Other clients ignore a leader beside an error.

Encoding a partition costs microseconds, and clients ask often and for much: the bytes of a topic are made once for each
version and kept with the topic's metadata, which is a new object whenever the topic changes. An answer is those pieces
in a row; one about all topics is made once until any of them changes, and sent to all who ask from where it is. Bad
input (an id where the version has none, neither name nor id) is INVALID_REQUEST for the whole answer, as in Kafka.
"""

from collections.abc import Iterable
from typing import Final

from millstream.cluster.metadata import MetadataCache
from millstream.cluster.topic_table import PartitionMeta, TopicMeta
from millstream.core.controller.topic_names import (
    CLUSTER_METADATA,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    illegal_topic_name,
)
from millstream.errors import MillstreamError, Rejected
from millstream.kafka.cluster_view import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, brokers, partition_view
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.net.shared import Shared
from millstream.wire.codec import encode_response
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID
from millstream.wire.varint import uvarint

_IDS_FROM: Final = 12
_FLEXIBLE_FROM: Final = MetadataResponse.FLEXIBLE


NEVER_CREATED: Final = frozenset({CLUSTER_METADATA, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""Internal topics that nothing in this version writes. A request for one does not create it."""


def handle(node: Node, ctx: RequestContext, request: MetadataRequest) -> None:
    """Answer from the metadata cache, after creating what is missing."""
    version = ctx.api_version
    asked = request.topics
    if asked is None or (not asked and version == 0):
        before, after = _around_topics(node, ctx, request, len(node.metadata.names()))
        ctx.respond_around(before, _all_topics(node, ctx, request), after)
        return
    problem = _malformed(asked, version)
    if problem:
        ctx.respond(_refusal(asked))
        return
    ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID)
    names = {} if ids else dict.fromkeys(topic.name for topic in asked if topic.name is not None)
    if ids:
        pieces = [_by_id(node, ctx, request, topic_id) for topic_id in ids]
        ctx.respond_encoded(_answer(node, ctx, request, b"".join(pieces), len(pieces)))
        return
    _Names(node, ctx, request, list(names)).answer_when_created()


def _malformed(asked: Iterable[MetadataRequestTopic], version: int) -> bool:
    if version < _IDS_FROM:
        return any(topic.name is None or topic.topic_id != ZERO_UUID for topic in asked)
    return any(topic.name is None and topic.topic_id == ZERO_UUID for topic in asked)


def _refusal(asked: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    code = ErrorCode.INVALID_REQUEST
    topics = [MetadataResponseTopic(error_code=code, name=t.name or "", topic_id=t.topic_id) for t in asked]
    return MetadataResponse(topics=topics, error_code=code)


class _Names:
    """An answer about named topics that waits for those that are being created."""

    __slots__ = ("ctx", "failures", "missing", "names", "node", "request")

    def __init__(self, node: Node, ctx: RequestContext, request: MetadataRequest, names: list[str]) -> None:
        self.node = node
        self.ctx = ctx
        self.request = request
        self.names = names
        self.failures: dict[str, ErrorCode] = {}
        self.missing = 1

    def answer_when_created(self) -> None:
        metadata = self.node.metadata
        create = self.request.allow_auto_topic_creation and metadata.settings.auto_create_topics_enable
        for name in self.names:
            if metadata.topic(name) is not None:
                continue
            if illegal_topic_name(name) is not None:
                self.failures[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif create and name in metadata.deleted:
                del metadata.deleted[name]
                self.failures[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self.node.controller.ensure_topic(name, lambda outcome, name=name: self.record(name, outcome))
            elif create and name not in NEVER_CREATED:
                self.missing += 1
                self.node.controller.ensure_topic(name, lambda outcome, name=name: self.created(name, outcome))
            else:
                self.failures[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.one_less()

    def created(self, name: str, outcome: TopicMeta | MillstreamError) -> None:
        if isinstance(outcome, Rejected):
            self.failures[name] = outcome.code
        elif isinstance(outcome, MillstreamError):
            self.failures[name] = ErrorCode.LEADER_NOT_AVAILABLE
        self.record(name, outcome)
        self.one_less()

    def record(self, name: str, outcome: TopicMeta | MillstreamError) -> None:
        """Record in the audit that a client has had a topic created. An answer that does not wait asks again."""
        access = self.node.access
        audit = None if access is None else access.audit
        if audit is not None:
            errors = [outcome.code.name] if isinstance(outcome, MillstreamError) else []
            audit.changed(self.ctx.principal, self.ctx.host, self.ctx.api.name, [name], errors)

    def one_less(self) -> None:
        self.missing -= 1
        if self.missing:
            return
        pieces = [self.piece(name) for name in self.names]
        self.ctx.respond_encoded(_answer(self.node, self.ctx, self.request, b"".join(pieces), len(pieces)))

    def piece(self, name: str) -> bytes:
        topic = self.node.metadata.topic(name)
        version = self.ctx.api_version
        if topic is not None:
            operations = self.request.include_topic_authorized_operations
            return _piece(self.node.metadata, self.ctx, topic, operations=operations)
        code = self.failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        operations = TOPIC_OPERATIONS if self.request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
        missing = MetadataResponseTopic(
            error_code=code,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=operations,
        )
        return _encode_topic(missing, version)


def _by_id(node: Node, ctx: RequestContext, request: MetadataRequest, topic_id: bytes) -> bytes:
    topic = node.metadata.topic_by_id(topic_id)
    if topic is not None:
        return _piece(node.metadata, ctx, topic, operations=request.include_topic_authorized_operations)
    return _encode_topic(
        MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id), ctx.api_version
    )


# Bytes


def _answer(node: Node, ctx: RequestContext, request: MetadataRequest, topics: bytes, count: int) -> bytes:
    """The encoded answer around ``count`` encoded topics."""
    before, after = _around_topics(node, ctx, request, count)
    return b"".join((before, topics, after))


def _around_topics(node: Node, ctx: RequestContext, request: MetadataRequest, count: int) -> tuple[bytes, bytes]:
    """The bytes of an encoded answer before ``count`` encoded topics, and the bytes after them."""
    version = ctx.api_version
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
    frame = encode_response(
        MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in brokers(node, ctx)
            ],
            cluster_id=node.metadata.cluster_id,
            controller_id=node.metadata.node_id,
            cluster_authorized_operations=operations,
        ),
        version,
    )
    number, tail = _around(version)
    end = len(frame) - tail
    length = uvarint(count + 1) if version >= _FLEXIBLE_FROM else count.to_bytes(4, "big")
    return bytes(frame[: end - number]) + length, bytes(frame[end:])


def _around(version: int) -> tuple[int, int]:
    """Bytes of the topic count (of fewer than 127 topics), and bytes after the topics."""
    operations = 4 if 8 <= version <= 10 else 0
    error = 2 if version >= 13 else 0
    flexible = version >= _FLEXIBLE_FROM
    return 1 if flexible else 4, operations + error + (1 if flexible else 0)


def _all_topics(node: Node, ctx: RequestContext, request: MetadataRequest) -> Shared:
    """Every topic's bytes in a row; kept until any topic changes, unless a leader is missing for long."""
    operations = request.include_topic_authorized_operations
    kept = node.metadata.encoded
    version = ctx.api_version
    key = version << 1 | operations
    found = kept.get(key)
    if found is None:
        topics = list(node.metadata.topics())
        pieces = (_piece(node.metadata, ctx, topic, operations=operations) for topic in topics)
        found = Shared(ctx.connection.intake, b"".join(pieces))
        if not any(topic.lost for topic in topics):
            kept[key] = found
    return found


def _piece(metadata: MetadataCache, ctx: RequestContext, topic: TopicMeta, *, operations: bool) -> bytes:
    """A topic's bytes in an answer of this version; kept with the topic, unless a leader is missing for long."""
    version = ctx.api_version
    key = version << 1 | operations
    found = topic.encoded.get(key)
    if found is None:
        turn = 0
        if topic.lost:
            turn = ctx.connection.client.leaderless
            ctx.connection.client.leaderless += 1
        found = _encode_topic(
            MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.internal,
                partitions=[_partition(metadata, part, turn, version) for part in topic.partitions],
                topic_authorized_operations=TOPIC_OPERATIONS if operations else OPERATIONS_NOT_ASKED,
            ),
            version,
        )
        if not topic.lost:
            topic.encoded[key] = found
    return found


def _partition(metadata: MetadataCache, part: PartitionMeta, turn: int, version: int) -> MetadataResponsePartition:
    """Version 0 names no offline replicas: it leaves those of dead brokers out, and has an error, as Kafka's does."""
    view = partition_view(metadata, part)
    other = metadata.other_replica(part, turn)
    replicas, error = view.replicas, view.error
    if version == 0:
        replicas = [node for node in view.replicas if metadata.is_alive(node)]
        if error is ErrorCode.NONE and len(replicas) < len(view.replicas):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=part.index,
        leader_id=view.leader if other is None else other,
        leader_epoch=view.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=view.in_sync,
        offline_replicas=view.offline,
    )


def _encode_topic(topic: MetadataResponseTopic, version: int) -> bytes:
    """One topic's bytes, cut out of an answer with this topic alone."""
    number, tail = _around(version)
    front = len(encode_response(MetadataResponse(), version)) - tail - number
    frame = encode_response(MetadataResponse(topics=[topic]), version)
    return bytes(frame[front + number : len(frame) - tail])
