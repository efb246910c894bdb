"""OffsetForLeaderEpoch: the end offset of a leader epoch, per partition (KIP-320).

A consumer whose partition has a new leader epoch (here: after a restart) requests the end of the epoch of its last
record, and so learns whether the log still has what it read. ``partition.read.epoch_end`` has the rules. Partitions of
other shards are reached through ``partition.hop.lookups``; the response is sent when all have answered. ``replica_id``
has no effect.
"""

from collections.abc import Callable

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.readable import find_readable
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.partition import Partition
from millstream.partition.read.epoch_end import EpochEnd, epoch_end
from millstream.partition.table import Remote
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(node: Node, ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> None:
    """Look up every partition on its home shard. Answer when the last one has answered."""
    wanted = [(topic.topic, asked) for topic in request.topics for asked in topic.partitions]

    def ask(question: tuple[str, OffsetForLeaderPartition], done: Callable[[EpochEnd], None]) -> None:
        name, asked = question
        entry = find_readable(node, name, PartitionIndex(asked.partition))
        if isinstance(entry, Partition):
            done(epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch))
        elif isinstance(entry, Remote):
            node.home.lookups.epoch_end(entry, asked.current_leader_epoch, asked.leader_epoch, done)
        elif entry is None:
            done((int(node.partitions.missing(name)), -1, -1))
        else:
            done((int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1))

    gather(wanted, ask, lambda found: ctx.respond(_answer(request, found)))


def _answer(request: OffsetForLeaderEpochRequest, found: list[EpochEnd]) -> OffsetForLeaderEpochResponse:
    """The results, in the layout of the request."""
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
