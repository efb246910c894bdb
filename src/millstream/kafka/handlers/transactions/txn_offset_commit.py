"""TxnOffsetCommit: commit a group's offsets together with a transaction.

The shard that stores the group's offsets asks the transaction's coordinator first (``coordinator.verified_commits``):
from version 5 on to add the partition, before whether the client has added it. Then the group's coordinator checks the
member, stores the offsets as part of the transaction, and makes them the group's when the marker comes.
"""

from typing import Final

from millstream.coordinator.asks import TXN_OFFSET_COMMIT
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.transactions.transactional import in_version
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_commit import OffsetCommitResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from millstream.wire.schema import Message

_ABORTABLE_FROM: Final = 4
_NEVER_FENCED: Final = False
"""No version of this API knows PRODUCER_FENCED."""


def handle(node: Node, ctx: RequestContext, request: TxnOffsetCommitRequest) -> None:
    """Answer when the offsets of existing partitions are stored."""
    good, codes = _sort_out(node, request)

    def tell(error: ErrorCode) -> None:
        worded = in_version(error, _NEVER_FENCED, ctx.api_version >= _ABORTABLE_FROM)
        ctx.respond(_answer(request, codes, worded))

    def stored(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            tell(answer)
            return
        assert isinstance(answer, OffsetCommitResponse)
        codes.update(
            {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}
        )
        tell(ErrorCode.NONE)

    if not request.group_id:
        tell(ErrorCode.INVALID_GROUP_ID)
    elif not good:
        tell(ErrorCode.NONE)
    else:
        resolved = TxnOffsetCommitRequest(
            transactional_id=request.transactional_id,
            group_id=request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            topics=good,
        )
        node.coordinator.ask(
            request.group_id, TXN_OFFSET_COMMIT, ctx.api_version, ctx.client_id, ctx.host, resolved, stored
        )


def _sort_out(
    node: Node, request: TxnOffsetCommitRequest
) -> tuple[list[TxnOffsetCommitRequestTopic], dict[tuple[str, int], int]]:
    """The existing topics and partitions, and an error code for each of the others."""
    good: list[TxnOffsetCommitRequestTopic] = []
    codes: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        known = [one for one in topic.partitions if node.metadata.partition(topic.name, one.partition_index)]
        codes |= {
            (topic.name, one.partition_index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for one in topic.partitions
            if one not in known
        }
        if known:
            good.append(TxnOffsetCommitRequestTopic(topic.name, known))
    return good, codes


def _answer(
    request: TxnOffsetCommitRequest, codes: dict[tuple[str, int], int], error: ErrorCode
) -> TxnOffsetCommitResponse:
    """``error`` is for the partitions that have no code of their own."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(
                        one.partition_index, codes.get((topic.name, one.partition_index), error)
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
