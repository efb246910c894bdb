"""API key 24, AddPartitionsToTxn: make partitions part of a transaction, before anything is written to them.

Version 3 and below come from clients, one transaction each. From version 4 brokers send several transactions, and may
only ask whether the partitions are part of them (KIP-890). Version 2 tells that the producer was fenced, 5 allows an
abortable answer.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class AddPartitionsToTxnTopic(Message):
    """Partitions of one topic."""

    name: str = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Message):
    """One transaction and its partitions."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnRequest(Request, api_key=24, versions=(0, 5), flexible=3):
    """Partitions that transactions are to contain, or that are asked about."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], F("4+")] = []
    v3_and_below_transactional_id: Annotated[str, F("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, F("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, F("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], F("0-3")] = []


class AddPartitionsToTxnPartitionResult(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    """The outcomes of one topic."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    """The outcomes of one transaction."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(Response, api_key=24, versions=(0, 5), flexible=3):
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F("4+")] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], F("4+")] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], F("0-3")] = []
