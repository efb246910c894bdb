"""API key 65, DescribeTransactions: transactions by their ids, as their coordinator knows them (KIP-664)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Int64, Message, Request, Response


class DescribeTransactionsRequest(Request, api_key=65, versions=(0, 0), flexible=0):
    """Transactional ids of this broker."""

    transactional_ids: list[str] = []


class DescribedTransactionTopic(Message):
    """Partitions of one topic that are part of the transaction."""

    topic: str = ""
    partitions: list[Int32] = []


class DescribedTransaction(Message):
    """One transactional id. Times are in ms since 1970, -1 before its first transaction."""

    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[DescribedTransactionTopic] = []


class DescribeTransactionsResponse(Response, api_key=65, versions=(0, 0), flexible=0):
    """The transactions, in the order of the request."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[DescribedTransaction] = []
