"""Rights of the APIs that produce, read, trim and describe partitions."""

from msgspec.structs import replace

from millstream.core.access.entry import CLUSTER_NAME
from millstream.kafka.authorize.shared import CLUSTER, T29, TOPIC, TXN, X53, Op, split, with_errors
from millstream.kafka.rights import Asker, Merge, Passed, guard, right
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import delete_records, fetch, list_offsets, metadata, offset_for_leader_epoch
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID, Request, Response


@guard(0, right(TOPIC, Op.WRITE), right(TXN, Op.WRITE, "of a transaction"))
def _produce(asker: Asker, request: Request) -> Passed:
    _ = asker
    return Passed(request)  # the handler asks for each topic: it owns the records (``produce_error``)


def transaction_error(asker: Asker, transactional_id: str | None) -> ErrorCode | None:
    """Why records of a transaction may not be written; None if they may."""
    if transactional_id is not None and asker.transaction(Op.WRITE, transactional_id):
        return None
    asker.refused("Produce", X53, transactional_id or "")
    return X53


def produce_error(asker: Asker, name: str, topic_id: bytes) -> ErrorCode | None:
    """Why records may not be written to a topic; None if they may."""
    if asker.named(Op.WRITE, name, topic_id):
        return None
    asker.refused("Produce", T29, name or topic_id.hex())
    return T29


@guard(1, right(TOPIC, Op.READ))
def _fetch(asker: Asker, request: fetch.FetchRequest) -> Passed | Response:
    """A session is good on the connection that opened it, and until rights change: then the client asks for all of its
    partitions again. A fetch with refused partitions gets no session, so that it names them each time.
    """
    kept = asker.access.kept(asker.connection)
    in_session = request.session_id != 0 and request.session_epoch > 0
    allowed, refused = split(request.topics, lambda topic: asker.named(Op.READ, topic.topic, topic.topic_id))
    for topic in refused:
        asker.refused("Fetch", T29, topic.topic or topic.topic_id.hex())
    if in_session and (refused or request.session_id not in kept.sessions):
        return fetch.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    if not refused:

        def remember(response: fetch.FetchResponse) -> Response:
            if response.session_id:
                kept.sessions.add(response.session_id)
            return response

        return Passed(request, None if in_session else remember)
    errors = [
        fetch.FetchableTopicResponse(
            topic.topic,
            topic.topic_id,
            [
                # Without records librdkafka does not take the answer: they are empty, as in Kafka.
                fetch.PartitionData(
                    partition_index=one.partition,
                    error_code=T29,
                    high_watermark=-1,
                    aborted_transactions=[],
                    records=b"",
                )
                for one in topic.partitions
            ],
        )
        for topic in refused
    ]
    return with_errors(
        request, refused, "responses", errors, topics=allowed, session_id=0, session_epoch=-1, max_wait_ms=0
    )


@guard(2, right(TOPIC, Op.DESCRIBE))
def _list_offsets(asker: Asker, request: list_offsets.ListOffsetsRequest) -> Passed:
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.DESCRIBE, topic.name))
    errors = [
        list_offsets.ListOffsetsTopicResponse(
            topic.name,
            [list_offsets.ListOffsetsPartitionResponse(one.partition_index, T29) for one in topic.partitions],
        )
        for topic in refused
    ]
    return with_errors(request, refused, "topics", errors, topics=allowed)


@guard(
    3,
    right(TOPIC, Op.DESCRIBE),
    right(TOPIC, Op.CREATE, "of a topic that the request creates, unless the client has CREATE on the cluster"),
)
def _metadata(asker: Asker, request: metadata.MetadataRequest) -> Passed:
    asked = request.topics
    everything = asked is None or (not asked and asker.version == 0)
    if everything:
        names = [name for name in asker.metadata.names() if asker.topic(Op.DESCRIBE, name)]
        topics = [metadata.MetadataRequestTopic(name=name) for name in names]
        changed = replace(request, topics=topics, allow_auto_topic_creation=False)
        refused: list[metadata.MetadataRequestTopic] = []
    else:
        assert asked is not None
        topics, refused = split(asked, lambda one: _may_see(asker, request, one))
        changed = replace(request, topics=topics) if refused else request
    errors = [
        metadata.MetadataResponseTopic(T29, None if one.topic_id != ZERO_UUID else one.name, one.topic_id)
        for one in refused
    ]
    if not topics and asker.version == 0:  # an empty list means everything in version 0
        return Passed(replace(request, topics=None), _instead(errors))
    with_operations = request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    if not errors and not with_operations:
        return Passed(changed)

    def shown(topic: metadata.MetadataResponseTopic) -> metadata.MetadataResponseTopic:
        if topic.topic_authorized_operations == OPERATIONS_NOT_ASKED:
            return topic
        return replace(topic, topic_authorized_operations=asker.operations(TOPIC, topic.name or ""))

    def merge(response: metadata.MetadataResponse) -> Response:
        bits = response.cluster_authorized_operations
        if bits != OPERATIONS_NOT_ASKED:
            bits = asker.operations(CLUSTER, CLUSTER_NAME)
        topics = [*map(shown, response.topics), *errors]
        return replace(response, topics=topics, cluster_authorized_operations=bits)

    return Passed(changed, merge)


def _instead(topics: list[metadata.MetadataResponseTopic]) -> Merge:
    def merge(response: metadata.MetadataResponse) -> Response:
        return replace(response, topics=topics)

    return merge


def _may_see(asker: Asker, request: metadata.MetadataRequest, one: metadata.MetadataRequestTopic) -> bool:
    if one.topic_id != ZERO_UUID:
        return asker.topic_of_id(Op.DESCRIBE, one.topic_id)
    name = one.name or ""
    if not asker.topic(Op.DESCRIBE, name):
        return False
    creates = request.allow_auto_topic_creation and asker.settings.auto_create_topics_enable
    if not creates or asker.metadata.topic(name) is not None:
        return True
    return asker.cluster(Op.CREATE) or asker.topic(Op.CREATE, name)


@guard(21, right(TOPIC, Op.DELETE))
def _delete_records(asker: Asker, request: delete_records.DeleteRecordsRequest) -> Passed:
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.DELETE, topic.name))
    errors = [
        delete_records.DeleteRecordsTopicResult(
            topic.name,
            [delete_records.DeleteRecordsPartitionResult(one.partition_index, -1, T29) for one in topic.partitions],
        )
        for topic in refused
    ]
    return with_errors(request, refused, "topics", errors, topics=allowed)


@guard(23, right(TOPIC, Op.DESCRIBE, "unless the client has CLUSTER_ACTION on the cluster"))
def _offset_for_leader_epoch(asker: Asker, request: offset_for_leader_epoch.OffsetForLeaderEpochRequest) -> Passed:
    if asker.cluster(Op.CLUSTER_ACTION):
        return Passed(request)
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.DESCRIBE, topic.topic))
    errors = [
        offset_for_leader_epoch.OffsetForLeaderTopicResult(
            topic.topic,
            [offset_for_leader_epoch.EpochEndOffset(T29, one.partition) for one in topic.partitions],
        )
        for topic in refused
    ]
    return with_errors(request, refused, "topics", errors, topics=allowed)
