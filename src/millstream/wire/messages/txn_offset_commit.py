"""API key 28, TxnOffsetCommit: commit a group's offsets together with a transaction.

Version 2 added leader epochs, 3 the consumer's place in its group (KIP-447), 4 allows an abortable answer, 5 leaves
adding the group to the transaction to the broker (KIP-890).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class TxnOffsetCommitRequestPartition(Message):
    """The next offset to read, with what the consumer wants to remember beside it."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, F("2+")] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Message):
    """The offsets of one topic."""

    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Request, api_key=28, versions=(0, 5), flexible=3):
    """Offsets that become the group's when the transaction commits."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, F("3+")] = -1
    member_id: Annotated[str, F("3+")] = ""
    group_instance_id: Annotated[str | None, F("3+")] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    """The outcomes of one topic."""

    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Response, api_key=28, versions=(0, 5), flexible=3):
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
