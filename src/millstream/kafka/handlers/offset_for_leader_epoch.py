"""OffsetForLeaderEpoch: where the records of a leader epoch end, per partition (KIP-320).

A consumer whose partition has a new leader epoch (here: the broker was restarted) asks where the epoch of its last
record ended, and learns so whether the log still holds what it read. ``partition.epoch_end`` has the rules. Partitions
of other shards are asked through ``partition.lookups``; the answer goes out when all have answered. Who asks
(``replica_id``) makes no difference.
"""

from collections.abc import Callable

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.gathering import gather
from millstream.model.error_code import ErrorCode
from millstream.partition.epoch_end import EpochEnd, epoch_end
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    node: Node,
    ctx: RequestContext,
    request: OffsetForLeaderEpochRequest,
    respond: Callable[[OffsetForLeaderEpochResponse], None],
) -> None:
    """Look every partition up where it lives; answer when the last one has."""
    _ = ctx
    wanted = [(topic.topic, asked) for topic in request.topics for asked in topic.partitions]

    def ask(question: tuple[str, OffsetForLeaderPartition], done: Callable[[EpochEnd], None]) -> None:
        name, asked = question
        entry = node.partitions.find(name, asked.partition)
        if isinstance(entry, Partition):
            done(epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch))
        elif isinstance(entry, Remote):
            node.home.lookups.epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch, done)
        elif entry is None:
            done((int(node.partitions.missing(name)), -1, -1))
        else:
            done((int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1))

    gather(wanted, ask, lambda found: respond(_answer(request, found)))


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
