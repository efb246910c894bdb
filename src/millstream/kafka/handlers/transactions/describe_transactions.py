"""DescribeTransactions: transactional ids with their transactions, as their coordinators on this broker know them."""

from millstream.coordinator.transactions import Described
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


def handle(node: Node, ctx: RequestContext, request: DescribeTransactionsRequest) -> None:
    """Answer when every coordinator has answered."""
    ids = list(dict.fromkeys(request.transactional_ids))

    def all_described(found: list[Described]) -> None:
        ctx.respond(
            DescribeTransactionsResponse(
                transaction_states=[_described(name, one) for name, one in zip(ids, found, strict=True)]
            )
        )

    gather(ids, node.transactions.describe, all_described)


def _described(transactional_id: str, one: Described) -> DescribedTransaction:
    error, state, timeout_ms, start_ms, producer_id, epoch, topic_partitions = one
    topics: dict[str, list[int]] = {}
    for topic, partition in topic_partitions:
        topics.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        error,
        transactional_id,
        state,
        timeout_ms,
        start_ms,
        producer_id,
        epoch,
        [DescribedTransactionTopic(topic, partitions) for topic, partitions in topics.items()],
    )
