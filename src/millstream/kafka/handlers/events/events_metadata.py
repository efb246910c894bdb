"""EventsMetadata: event topics, how their events are checked and encoded, and where their partitions are.

The response has first and next event ids of this broker's partitions only; the leaders of other partitions have theirs.
"""

from collections.abc import Callable
from typing import Final

from millstream.cluster.topic_table import TopicMeta
from millstream.format.events.chunk import partition_uuid
from millstream.kafka.cluster_view import brokers
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.partition import Partition
from millstream.partition.read.list_offsets import EARLIEST, LATEST, READ_UNCOMMITTED, Found, list_offset
from millstream.partition.table import Remote
from millstream.wire.messages.events_metadata import (
    EventsMetadataBroker,
    EventsMetadataPartition,
    EventsMetadataRequest,
    EventsMetadataResponse,
    EventsMetadataTopic,
)

_UNKNOWN: Final = -1

_Question = tuple[str, int, int]
"""Topic, partition, and the kind of offset."""


def handle(node: Node, ctx: RequestContext, request: EventsMetadataRequest) -> None:
    """Answer when every partition of this broker was asked for its offsets."""
    names = request.topics
    if names is None:
        names = [topic.name for topic in node.metadata.topics() if topic.config.has_events]
    found = {name: node.metadata.topic(name) for name in dict.fromkeys(names)}
    questions: list[_Question] = [
        (name, index, which)
        for name, topic in found.items()
        if topic is not None and topic.config.has_events
        for index in range(len(topic.partitions))
        for which in (EARLIEST, LATEST)
    ]

    def ask(question: _Question, done: Callable[[int], None]) -> None:
        name, index, which = question

        def answered(answer: Found) -> None:
            done(_UNKNOWN if answer[0] else answer[2])

        entry = node.partitions.find(name, index)
        if isinstance(entry, Partition):
            list_offset(entry, which, -1, READ_UNCOMMITTED, answered)
        elif isinstance(entry, Remote):
            node.home.lookups.list_offset(entry, which, -1, READ_UNCOMMITTED, answered)
        else:
            done(_UNKNOWN)

    def answer(offsets: list[int]) -> None:
        known = dict(zip(questions, offsets, strict=True))
        ctx.respond(
            EventsMetadataResponse(
                brokers=[EventsMetadataBroker(one.node_id, one.host, one.port) for one in brokers(node, ctx)],
                topics=[_described(name, topic, known) for name, topic in found.items()],
            )
        )

    gather(questions, ask, answer)


def _described(name: str, topic: TopicMeta | None, known: dict[_Question, int]) -> EventsMetadataTopic:
    if topic is None:
        return EventsMetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, name)
    if topic.data_of:
        what = f"{name} is for Kafka's consumers: the events are in {topic.data_of}"
        return EventsMetadataTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, what, name)
    config = topic.config
    if not config.has_events:
        what = f"{name} is no event topic: topic.kind is {config.topic_kind}"
        return EventsMetadataTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, what, name)
    partitions: list[EventsMetadataPartition] = []
    for index, part in enumerate(topic.partitions):
        partitions.append(
            EventsMetadataPartition(
                0,
                index,
                part.leader,
                part.leader_epoch,
                partition_uuid(topic.topic_id, PartitionIndex(index)).bytes,
                known[name, index, EARLIEST],
                known[name, index, LATEST],
            )
        )
    return EventsMetadataTopic(
        0,
        None,
        name,
        topic.topic_id,
        config.events_validator,
        config.events_selector,
        config.events_serializer,
        config.events_max_bytes,
        config.events_complete,
        partitions,
    )
