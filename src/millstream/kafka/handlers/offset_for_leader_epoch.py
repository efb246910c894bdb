"""OffsetForLeaderEpoch: where the records of a leader epoch end, per partition (KIP-320).

A consumer whose partition has a new leader epoch (here: the broker was restarted) asks where the epoch of its last
record ended, and learns so whether the log still holds what it read. ``partition.epoch_end`` has the rules. Partitions
of other shards are asked through ``partition.lookups``; the answer goes out when all have answered. Who asks
(``replica_id``) makes no difference.
"""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.partition.epoch_end import EpochEnd, epoch_end
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

_PENDING: Final[EpochEnd] = (int(ErrorCode.UNKNOWN_SERVER_ERROR), -1, -1)


def handle(
    node: Node,
    ctx: RequestContext,
    request: OffsetForLeaderEpochRequest,
    respond: Callable[[OffsetForLeaderEpochResponse], None],
) -> None:
    """Look every partition up where it lives; answer when the last one has."""
    _ = ctx
    wanted = [(topic.topic, asked) for topic in request.topics for asked in topic.partitions]
    found: list[EpochEnd] = [_PENDING] * len(wanted)
    remaining = 1 + len(wanted)

    def settled() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            respond(_answer(request, found))

    for slot, (name, asked) in enumerate(wanted):

        def done(result: EpochEnd, slot: int = slot) -> None:
            found[slot] = result
            settled()

        entry = node.partitions.find(name, asked.partition)
        if isinstance(entry, Partition):
            done(epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch))
        elif isinstance(entry, Remote):
            node.home.lookups.epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch, done)
        elif entry is None:
            done((int(node.partitions.missing(name)), -1, -1))
        else:
            done((int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1))
    settled()


def _answer(request: OffsetForLeaderEpochRequest, found: list[EpochEnd]) -> OffsetForLeaderEpochResponse:
    """What was found, in the shape of the request."""
    results = iter(found)
    topics: list[OffsetForLeaderTopicResult] = []
    for topic in request.topics:
        partitions: list[EpochEndOffset] = []
        for asked in topic.partitions:
            error, epoch, end = next(results)
            partitions.append(
                EpochEndOffset(error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end)
            )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)
