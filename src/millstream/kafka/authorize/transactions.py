"""Rights of the APIs of transactions and their producers."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from millstream.kafka.authorize.shared import (
    C31,
    CLUSTER,
    G30,
    GROUP,
    T29,
    TOPIC,
    TXN,
    X53,
    Op,
    kept,
    refusal,
    split,
    with_errors,
)
from millstream.kafka.rights import MESSAGES, Asker, Passed, guard, right
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    txn_offset_commit,
    write_txn_markers,
)
from millstream.wire.schema import Request, Response


@guard(
    22,
    right(TXN, Op.WRITE, "with a transactional id"),
    right(CLUSTER, Op.IDEMPOTENT_WRITE, "without one, unless the client may WRITE some topic"),
)
def _init_producer_id(asker: Asker, request: init_producer_id.InitProducerIdRequest) -> Passed | Response:
    if request.transactional_id is not None:
        error = X53
        allowed = asker.transaction(Op.WRITE, request.transactional_id)
    else:
        error = C31
        allowed = asker.cluster(Op.IDEMPOTENT_WRITE) or asker.access.allows_some_topic(asker.connection, Op.WRITE)
    if allowed:
        return Passed(request)
    return init_producer_id.InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


@guard(
    24,
    right(TXN, Op.WRITE, "up to version 3"),
    right(TOPIC, Op.WRITE, "up to version 3"),
    right(CLUSTER, Op.CLUSTER_ACTION, "from version 4 on"),
)
def _add_partitions_to_txn(asker: Asker, request: add_partitions_to_txn.AddPartitionsToTxnRequest) -> Passed | Response:
    if asker.version >= 4:
        return Passed(request) if asker.cluster(Op.CLUSTER_ACTION) else refusal(24, C31)
    topics = request.v3_and_below_topics
    if not asker.transaction(Op.WRITE, request.v3_and_below_transactional_id):
        errors = {topic.name: X53 for topic in topics}
    else:
        errors = {topic.name: T29 for topic in topics if not asker.topic(Op.WRITE, topic.name)}
        if not errors:
            return Passed(request)
    results = [
        add_partitions_to_txn.AddPartitionsToTxnTopicResult(
            topic.name,
            [
                add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                    index, errors.get(topic.name, ErrorCode.OPERATION_NOT_ATTEMPTED)
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
    return add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


@guard(25, right(TXN, Op.WRITE), right(GROUP, Op.READ))
def _add_offsets_to_txn(asker: Asker, request: add_offsets_to_txn.AddOffsetsToTxnRequest) -> Passed | Response:
    if not asker.transaction(Op.WRITE, request.transactional_id):
        return refusal(25, X53)
    return Passed(request) if asker.group(Op.READ, request.group_id) else refusal(25, G30)


@guard(26, right(TXN, Op.WRITE))
def _end_txn(asker: Asker, request: end_txn.EndTxnRequest) -> Passed | Response:
    return Passed(request) if asker.transaction(Op.WRITE, request.transactional_id) else refusal(26, X53)


@guard(27, right(CLUSTER, Op.CLUSTER_ACTION, "or ALTER"))
def _write_txn_markers(asker: Asker, request: write_txn_markers.WriteTxnMarkersRequest) -> Passed | Response:
    if asker.cluster(Op.CLUSTER_ACTION) or asker.cluster(Op.ALTER):
        return Passed(request)
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=[
            write_txn_markers.WritableTxnMarkerResult(
                marker.producer_id,
                [
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            write_txn_markers.WritableTxnMarkerPartitionResult(index, C31)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@guard(28, right(TXN, Op.WRITE), right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _txn_offset_commit(asker: Asker, request: txn_offset_commit.TxnOffsetCommitRequest) -> Passed | Response:
    def errors_of(topics: Iterable[txn_offset_commit.TxnOffsetCommitRequestTopic], error: ErrorCode) -> list[Any]:
        return [
            txn_offset_commit.TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    txn_offset_commit.TxnOffsetCommitResponsePartition(one.partition_index, error)
                    for one in topic.partitions
                ],
            )
            for topic in topics
        ]

    if not asker.transaction(Op.WRITE, request.transactional_id):
        return txn_offset_commit.TxnOffsetCommitResponse(topics=errors_of(request.topics, X53))
    if not asker.group(Op.READ, request.group_id):
        return txn_offset_commit.TxnOffsetCommitResponse(topics=errors_of(request.topics, G30))
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.READ, topic.name))
    return with_errors(request, refused, "topics", errors_of(refused, T29), topics=allowed)


@guard(61, right(TOPIC, Op.READ))
def _describe_producers(asker: Asker, request: describe_producers.DescribeProducersRequest) -> Passed:
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.READ, topic.name))
    errors = [
        describe_producers.DescribeProducersTopicResponse(
            topic.name,
            [
                describe_producers.DescribeProducersPartition(index, T29, MESSAGES[T29])
                for index in topic.partition_indexes
            ],
        )
        for topic in refused
    ]
    return with_errors(request, refused, "topics", errors, topics=allowed)


@guard(65, right(TXN, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "left out without an error"))
def _describe_transactions(asker: Asker, request: describe_transactions.DescribeTransactionsRequest) -> Passed:
    allowed, refused = split(request.transactional_ids, lambda name: asker.transaction(Op.DESCRIBE, name))
    errors = [describe_transactions.DescribedTransaction(error_code=X53, transactional_id=name) for name in refused]

    def shown(state: describe_transactions.DescribedTransaction) -> describe_transactions.DescribedTransaction:
        return replace(state, topics=[topic for topic in state.topics if asker.topic(Op.DESCRIBE, topic.topic)])

    def merge(response: describe_transactions.DescribeTransactionsResponse) -> Response:
        return replace(response, transaction_states=[*map(shown, response.transaction_states), *errors])

    return Passed(replace(request, transactional_ids=allowed), merge)


@guard(66, right(TXN, Op.DESCRIBE, "left out without an error"))
def _list_transactions(asker: Asker, request: Request) -> Passed:
    return Passed(request, kept("transaction_states", lambda one: asker.transaction(Op.DESCRIBE, one.transactional_id)))
