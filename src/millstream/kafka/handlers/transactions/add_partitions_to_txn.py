"""AddPartitionsToTxn: make partitions part of a transaction.

Versions up to 3 come from clients with one transaction each. From version 4 on a request has several transactions,
which are answered one by one, and may only ask about the partitions.

A transaction gets all of the partitions or none. If one of them cannot be part of a transaction, the others are
answered with OPERATION_NOT_ATTEMPTED:

==============================  ===========================================================================
a topic or partition that does  UNKNOWN_TOPIC_OR_PARTITION
not exist
an internal topic               TOPIC_AUTHORIZATION_FAILED, as in Kafka: the broker adds its own by itself
an event topic, or the topic    TRANSACTION_ABORTABLE, before version 5 INVALID_TXN_STATE: a log of events
of an event topic's data        bears no markers
==============================  ===========================================================================
"""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.handlers.transactions.transactional import in_version
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_SEVERAL_FROM: Final = 4
_FENCED_FROM: Final = 2
_ABORTABLE_FROM: Final = 5
_BROKERS_VERSION: Final = 2
"""Transaction version of what a broker adds for a client (KIP-890)."""


def handle(node: Node, ctx: RequestContext, request: AddPartitionsToTxnRequest) -> None:
    """Answer when every transaction's coordinator has answered."""
    version = ctx.api_version
    if version >= _SEVERAL_FROM:

        def ask(
            one: AddPartitionsToTxnTransaction, done: Callable[[list[AddPartitionsToTxnTopicResult]], None]
        ) -> None:
            _add(node, version, one, _BROKERS_VERSION, done)

        def all_added(results: list[list[AddPartitionsToTxnTopicResult]]) -> None:
            pairs = zip(request.transactions, results, strict=True)
            by_transaction = [AddPartitionsToTxnResult(one.transactional_id, topics) for one, topics in pairs]
            ctx.respond(AddPartitionsToTxnResponse(results_by_transaction=by_transaction))

        gather(request.transactions, ask, all_added)
        return
    one = AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    _add(
        node,
        version,
        one,
        0,
        lambda topics: ctx.respond(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)),
    )


def _add(
    node: Node,
    version: int,
    one: AddPartitionsToTxnTransaction,
    client_version: int,
    done: Callable[[list[AddPartitionsToTxnTopicResult]], None],
) -> None:
    """Add the partitions of one transaction, if all of them can be part of it."""
    topic_partitions = list(dict.fromkeys((topic.name, index) for topic in one.topics for index in topic.partitions))
    stops = [_stop(node, *topic_partition) for topic_partition in topic_partitions]
    if any(stops) and not one.verify_only:
        codes = [
            in_version(stop or ErrorCode.OPERATION_NOT_ATTEMPTED, True, version >= _ABORTABLE_FROM) for stop in stops
        ]
        done(_topics(one.topics, dict(zip(topic_partitions, codes, strict=True))))
        return

    def added(codes: Sequence[ErrorCode]) -> None:
        worded = [in_version(code, version >= _FENCED_FROM, version >= _ABORTABLE_FROM) for code in codes]
        done(_topics(one.topics, dict(zip(topic_partitions, worded, strict=True))))

    if not topic_partitions:
        done([])
        return
    node.transactions.add(
        one.transactional_id,
        one.producer_id,
        one.producer_epoch,
        tuple(topic_partitions),
        client_version,
        added,
        verify_only=one.verify_only,
    )


def _stop(node: Node, name: str, index: int) -> ErrorCode:
    """Why a partition cannot be part of a transaction; NONE if it can."""
    topic = node.metadata.topic(name)
    if name in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.TRANSACTION_ABORTABLE if topic.config.has_events or topic.data_of else ErrorCode.NONE


def _topics(
    topics: list[AddPartitionsToTxnTopic], codes: dict[tuple[str, int], ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [AddPartitionsToTxnPartitionResult(index, codes[topic.name, index]) for index in topic.partitions],
        )
        for topic in topics
    ]
