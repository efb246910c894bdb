"""WriteTxnMarkers: end transactions in partitions of this broker, for a coordinator or an administrator.

With it an administrator ends a transaction that no coordinator still knows (``kafka-transactions.sh abort``). Each
partition is answered when its marker is committed, or with the reason why it is not.
"""

from collections.abc import Callable

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.model.error_code import ErrorCode
from millstream.partition.append.markers import Marker
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


def handle(node: Node, ctx: RequestContext, request: WriteTxnMarkersRequest) -> None:
    """Answer when every partition has answered."""
    wanted = [
        (
            Marker(
                one.producer_id,
                one.producer_epoch,
                one.transaction_result,
                one.coordinator_epoch,
                one.transaction_version,
            ),
            topic.name,
            index,
        )
        for one in request.markers
        for topic in one.topics
        for index in topic.partition_indexes
    ]

    def write(question: tuple[Marker, str, int], done: Callable[[ErrorCode], None]) -> None:
        marker, topic, index = question
        node.home.markers.write((topic, index), marker, done)

    def all_written(codes: list[ErrorCode]) -> None:
        results = iter(codes)
        ctx.respond(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        one.producer_id,
                        [
                            WritableTxnMarkerTopicResult(
                                topic.name,
                                [
                                    WritableTxnMarkerPartitionResult(index, next(results))
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in one.topics
                        ],
                    )
                    for one in request.markers
                ]
            )
        )

    gather(wanted, write, all_written)
