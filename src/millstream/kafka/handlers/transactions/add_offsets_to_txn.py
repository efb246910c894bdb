"""AddOffsetsToTxn: make the partition that stores a group's offsets part of a transaction.

``__consumer_offsets`` is created if it does not exist: a producer may commit offsets for a group that never was.
"""

from collections.abc import Sequence
from typing import Final

from millstream.coordinator.hashing import OFFSETS_TOPIC, partition_of
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.transactions.transactional import in_version
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FENCED_FROM: Final = 2
_ABORTABLE_FROM: Final = 4


def handle(node: Node, ctx: RequestContext, request: AddOffsetsToTxnRequest) -> None:
    """Answer when the transaction contains the group's partition."""

    def tell(error: ErrorCode) -> None:
        worded = in_version(error, ctx.api_version >= _FENCED_FROM, ctx.api_version >= _ABORTABLE_FROM)
        ctx.respond(AddOffsetsToTxnResponse(error_code=worded))

    def added(codes: Sequence[ErrorCode]) -> None:
        tell(codes[0])

    def ensured(error: ErrorCode) -> None:
        topic = node.metadata.topic(OFFSETS_TOPIC)
        if error is not ErrorCode.NONE or topic is None:
            tell(error or ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        place = (OFFSETS_TOPIC, partition_of(request.group_id, len(topic.partitions)))
        node.transactions.add(request.transactional_id, request.producer_id, request.producer_epoch, (place,), 0, added)

    if request.group_id:
        node.coordinator.ensure(ensured)
    else:
        tell(ErrorCode.INVALID_GROUP_ID)
