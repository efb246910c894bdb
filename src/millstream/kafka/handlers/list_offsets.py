"""ListOffsets: an offset for a point in time, per partition.

=====  ==========================================================================
  -1   latest: the high watermark, or the last stable offset for read_committed
  -2   earliest: the log start offset
  -3   the record with the largest timestamp (KIP-734)
  -4   the earliest offset on local disk: the log start offset without tiers
  -5   the last tiered offset: none without tiers
  >=0  the first record with a timestamp at or after it; none: -1
=====  ==========================================================================

Look-ups by time read the time index and one batch through the helper process, so an answer may come in a later turn,
and the partitions of other shards are asked through ``partition.home``. The answer goes out when all have answered.
"""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.partition.list_offsets import Found, list_offset
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_LOWEST_TIMESTAMP_BY_VERSION: Final = ((11, -6), (9, -5), (8, -4), (7, -3))


def handle(
    node: Node, ctx: RequestContext, request: ListOffsetsRequest, respond: Callable[[ListOffsetsResponse], None]
) -> None:
    """Look every partition up where it lives; answer when the last one has."""
    answers = ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[ListOffsetsPartitionResponse(partition_index=p.partition_index) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    remaining = 1 + sum(len(topic.partitions) for topic in request.topics)

    def settled() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            respond(answers)

    lowest = next((low for version, low in _LOWEST_TIMESTAMP_BY_VERSION if ctx.api_version >= version), -2)
    seen: set[tuple[str, int]] = set()
    for topic, out in zip(request.topics, answers.topics, strict=True):
        for asked, answer in zip(topic.partitions, out.partitions, strict=True):

            def done(found: Found, answer: ListOffsetsPartitionResponse = answer) -> None:
                answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch = found
                settled()

            key = (topic.name, asked.partition_index)
            entry = node.partitions.find(*key)
            if key in seen or asked.timestamp < lowest:
                done((int(ErrorCode.INVALID_REQUEST if key in seen else ErrorCode.UNSUPPORTED_VERSION), -1, -1, -1))
            elif isinstance(entry, Partition):
                list_offset(entry, asked.timestamp, asked.current_leader_epoch, request.isolation_level, done)
            elif isinstance(entry, Remote):
                node.home.list_offset(entry, asked.timestamp, asked.current_leader_epoch, request.isolation_level, done)
            elif entry is None:
                done((int(node.partitions.missing(topic.name)), -1, -1, -1))
            else:
                done((int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1, -1))
            seen.add(key)
    settled()
