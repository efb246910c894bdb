"""DescribeProducers: the idempotent producers with state in a partition (KIP-664).

A producer is listed from its first batch until it expires (``producer.id.expiration.ms``) or is evicted, with the first
offset of its open transaction. Partitions of other shards are reached through ``partition.hop.lookups``; the response
is sent when all have answered. A partition that is named repeatedly is listed repeatedly within bounds (``repeats``).
"""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.core.controller.topic_names import illegal_topic_name
from millstream.kafka import repeats
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.model.error_code import ErrorCode
from millstream.partition.hop.lookups import ActiveProducer as OneProducer
from millstream.partition.hop.lookups import Producers
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.describe_producers import (
    ActiveProducer,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
)

_WORDS: Final = {
    int(ErrorCode.INVALID_TOPIC_EXCEPTION): "No topic can have this name.",
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): "This broker has no such partition.",
    int(ErrorCode.KAFKA_STORAGE_ERROR): "The log of this partition cannot be read.",
}


def handle(node: Node, ctx: RequestContext, request: DescribeProducersRequest) -> None:
    """Ask every partition on its home shard. Answer when the last one has answered."""
    wanted = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    distinct = list(dict.fromkeys(wanted))

    def ask(question: tuple[str, int], done: Callable[[Producers], None]) -> None:
        name, index = question
        entry = node.partitions.find(name, index)
        if isinstance(entry, Partition):
            done((0, entry.producers.active()))
        elif isinstance(entry, Remote):
            node.home.lookups.describe_producers(entry, done)
        elif entry is None:
            illegal = illegal_topic_name(name) is not None
            done((int(ErrorCode.INVALID_TOPIC_EXCEPTION if illegal else node.partitions.missing(name)), []))
        else:
            done((int(ErrorCode.KAFKA_STORAGE_ERROR), []))

    def all_described(found: list[Producers]) -> None:
        answers = {(name, index): _partition(index, *one) for (name, index), one in zip(distinct, found, strict=True)}
        partitions = iter(repeats.tell(wanted, answers, _refused))
        topics = [
            DescribeProducersTopicResponse(topic.name, [next(partitions) for _ in topic.partition_indexes])
            for topic in request.topics
        ]
        ctx.respond(DescribeProducersResponse(topics=topics))

    gather(distinct, ask, all_described)


def _partition(index: int, error: int, producers: Sequence[OneProducer]) -> DescribeProducersPartition:
    listed = [ActiveProducer(*one) for one in producers]
    return DescribeProducersPartition(index, error, _WORDS.get(error), listed)


def _refused(question: tuple[str, int]) -> DescribeProducersPartition:
    return DescribeProducersPartition(question[1], int(ErrorCode.UNKNOWN_SERVER_ERROR), repeats.REFUSAL)
