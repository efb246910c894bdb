"""ListOffsets: the offset of a point in time, per partition.

=====  ==========================================================================
  -1   latest: the high watermark, or the last stable offset for read_committed
  -2   earliest: the log start offset
  -3   the record with the largest timestamp (KIP-734)
  -4   the earliest offset on local disk: the log start offset of a topic that is not tiered
  -5   the last archived offset; none if the topic is not tiered
  -6   the earliest offset that is not archived; none if the topic is not tiered
  >=0  the first record with a timestamp at or after it; none: -1
=====  ==========================================================================

A look-up by time reads the time index and one batch through the worker, so the response may be sent in a later turn.
Partitions of other shards are reached through ``partition.hop.lookups``; the response is sent when all have answered. A
look-up in the object store may take long: what is not found within the request's ``timeout_ms`` is REQUEST_TIMED_OUT,
as in Kafka, and the same look-up joins the one that is on its way.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.readable import find_readable
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.partition import Partition
from millstream.partition.read.list_offsets import READ_COMMITTED, READ_UNCOMMITTED, Found, list_offset
from millstream.partition.table import Remote
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from millstream.shard.reactor import Timer

TIMEOUT_MS, TIMEOUT_MAX_MS = 30_000, 60_000
"""Of a request that names no timeout (Kafka's ``remote.list.offsets.request.timeout.ms``), and the longest one."""

_LOWEST_TIMESTAMP_BY_VERSION: Final = ((11, -6), (9, -5), (8, -4), (7, -3))


def handle(node: Node, ctx: RequestContext, request: ListOffsetsRequest) -> None:
    """Look up every partition on its home shard. Answer when the last one has answered."""
    wanted: dict[tuple[str, int], ListOffsetsPartition] = {}
    doubles: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            if key in wanted:
                doubles.add(key)
            wanted[key] = asked
    lowest = next((low for version, low in _LOWEST_TIMESTAMP_BY_VERSION if ctx.api_version >= version), -2)
    isolation = request.isolation_level

    def ask(question: tuple[tuple[str, int], ListOffsetsPartition], done: Callable[[Found], None]) -> None:
        key, asked = question
        entry = find_readable(node, key[0], PartitionIndex(key[1]))
        if not READ_UNCOMMITTED <= isolation <= READ_COMMITTED:
            done(_refused(ErrorCode.UNKNOWN_SERVER_ERROR))
        elif key in doubles:
            done(_refused(ErrorCode.INVALID_REQUEST))
        elif asked.timestamp < lowest:
            done(_refused(ErrorCode.UNSUPPORTED_VERSION))
        elif isinstance(entry, Partition):
            list_offset(entry, asked.timestamp, asked.current_leader_epoch, isolation, done)
        elif isinstance(entry, Remote):
            node.home.lookups.list_offset(entry, asked.timestamp, asked.current_leader_epoch, isolation, done)
        elif entry is None:
            done(_refused(node.partitions.missing(key[0])))
        else:
            done(_refused(ErrorCode.KAFKA_STORAGE_ERROR))

    timer: Timer | None = None

    def answer(found: list[Found]) -> None:
        if timer is not None:
            timer.cancel()
        ctx.respond(_answer(wanted, found))

    settle = gather(list(wanted.items()), ask, answer)
    if not ctx.done:
        wait_ms = min(request.timeout_ms if request.timeout_ms > 0 else TIMEOUT_MS, TIMEOUT_MAX_MS)
        timer = node.shard.reactor.call_later(wait_ms * 1000, lambda: settle(_refused(ErrorCode.REQUEST_TIMED_OUT)))


def _refused(code: ErrorCode) -> Found:
    return (int(code), -1, -1, -1)


def _answer(wanted: Iterable[tuple[str, int]], found: list[Found]) -> ListOffsetsResponse:
    """The results: each topic and each partition once, however often the request names them."""
    topics: dict[str, ListOffsetsTopicResponse] = {}
    for (name, index), (error, timestamp, offset, epoch) in zip(wanted, found, strict=True):
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ListOffsetsTopicResponse(name=name, partitions=[])
        topic.partitions.append(
            ListOffsetsPartitionResponse(
                partition_index=index, error_code=error, timestamp=timestamp, offset=offset, leader_epoch=epoch
            )
        )
    return ListOffsetsResponse(topics=list(topics.values()))
