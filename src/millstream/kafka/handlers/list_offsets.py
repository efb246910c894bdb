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

from collections import Counter
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

_PENDING: Final[Found] = (int(ErrorCode.UNKNOWN_SERVER_ERROR), -1, -1, -1)
_LOWEST_TIMESTAMP_BY_VERSION: Final = ((11, -6), (9, -5), (8, -4), (7, -3))


def handle(
    node: Node, ctx: RequestContext, request: ListOffsetsRequest, respond: Callable[[ListOffsetsResponse], None]
) -> None:
    """Look every partition up where it lives; answer when the last one has."""
    wanted = [(topic.name, asked) for topic in request.topics for asked in topic.partitions]
    found: list[Found] = [_PENDING] * len(wanted)
    remaining = 1 + len(wanted)

    def settled() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            respond(_answer(request, found))

    lowest = next((low for version, low in _LOWEST_TIMESTAMP_BY_VERSION if ctx.api_version >= version), -2)
    named = Counter((name, asked.partition_index) for name, asked in wanted)
    for slot, (name, asked) in enumerate(wanted):

        def done(result: Found, slot: int = slot) -> None:
            found[slot] = result
            settled()

        key = (name, asked.partition_index)
        entry = node.partitions.find(*key)
        if named[key] > 1:
            done((int(ErrorCode.INVALID_REQUEST), -1, -1, -1))
        elif asked.timestamp < lowest:
            done((int(ErrorCode.UNSUPPORTED_VERSION), -1, -1, -1))
        elif isinstance(entry, Partition):
            list_offset(entry, asked.timestamp, asked.current_leader_epoch, request.isolation_level, done)
        elif isinstance(entry, Remote):
            node.home.list_offset(entry, asked.timestamp, asked.current_leader_epoch, request.isolation_level, done)
        elif entry is None:
            done((int(node.partitions.missing(name)), -1, -1, -1))
        else:
            done((int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1, -1))
    settled()


def _answer(request: ListOffsetsRequest, found: list[Found]) -> ListOffsetsResponse:
    """What was found, in the shape of the request."""
    results = iter(found)
    topics: list[ListOffsetsTopicResponse] = []
    for topic in request.topics:
        partitions: list[ListOffsetsPartitionResponse] = []
        for asked in topic.partitions:
            error, timestamp, offset, epoch = next(results)
            partitions.append(
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=error,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)
