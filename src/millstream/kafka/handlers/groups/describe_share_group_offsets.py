"""DescribeShareGroupOffsets: where share groups start in their partitions, and how many records they have to finish.

The start and the number of finished records come from the share coordinator, the end of a partition from its leader;
the lag is end - start - finished. What does not exist, a group, a topic, a partition or its state, is no error: its
start and its lag are -1. So is a start that no leader has resolved yet.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from millstream.coordinator.asks import DESCRIBE_SHARE_GROUP_OFFSETS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.messages.read_share_group_state import ReadStatePartition, ReadStateTopic
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateSummary,
)
from millstream.wire.schema import ZERO_UUID, Message

UNKNOWN: Final = -1

_LAG_MAX: Final = 2**63 - 1
"""The field's. A start may be any number, because clients set it."""


def handle(node: Node, ctx: RequestContext, request: DescribeShareGroupOffsetsRequest) -> None:
    """Answer when every group is described. A group that is named twice is described twice."""

    def ask_one(group: DescribeShareGroupOffsetsGroup, done: Callable[[ShareOffsetsGroup], None]) -> None:
        if group.topics is not None:
            _describe(node, _named(node, group), done)
            return

        def answered(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                done(ShareOffsetsGroup(group.group_id, error_code=answer, error_message=answer.name))
            else:
                assert isinstance(answer, ShareOffsetsGroup)
                _describe(node, answer, done)

        ask(node, ctx, group.group_id, DESCRIBE_SHARE_GROUP_OFFSETS, group, answered)

    gather(request.groups, ask_one, lambda groups: ctx.respond(DescribeShareGroupOffsetsResponse(groups=groups)))


def _named(node: Node, group: DescribeShareGroupOffsetsGroup) -> ShareOffsetsGroup:
    """The partitions that a client names, each once, of which nothing is known yet."""
    named: dict[str, dict[int, ShareOffsetsPartition]] = {}
    for topic in group.topics or ():
        of_topic = named.setdefault(topic.topic_name, {})
        of_topic.update((index, ShareOffsetsPartition(index, UNKNOWN)) for index in topic.partitions)
    topics: list[ShareOffsetsTopic] = []
    for name, partitions in named.items():
        known = node.metadata.topic(name)
        topic_id = ZERO_UUID if known is None else known.topic_id
        topics.append(ShareOffsetsTopic(name, topic_id, [*partitions.values()]))
    return ShareOffsetsGroup(group.group_id, topics)


def _describe(node: Node, group: ShareOffsetsGroup, done: Callable[[ShareOffsetsGroup], None]) -> None:
    """Fill in starts and lags."""
    topics = [
        ReadStateTopic(topic.topic_id, [ReadStatePartition(one.partition_index) for one in topic.partitions])
        for topic in group.topics
        if topic.topic_id != ZERO_UUID
    ]
    if not topics:
        done(group)
        return

    def summarised(answer: Message) -> None:
        assert isinstance(answer, ReadShareGroupStateSummaryResponse)
        found = {(topic.topic_id, one.partition): one for topic in answer.results for one in topic.partitions}
        _with_lags(node, group, found, done)

    node.share_states.ask(ReadShareGroupStateSummaryRequest(group.group_id, topics), summarised)


def _with_lags(
    node: Node,
    group: ShareOffsetsGroup,
    found: dict[tuple[bytes, int], StateSummary],
    done: Callable[[ShareOffsetsGroup], None],
) -> None:
    places = [(topic, one) for topic in group.topics for one in topic.partitions]

    def ask_end(
        place: tuple[ShareOffsetsTopic, ShareOffsetsPartition], answered: Callable[[ShareOffsetsPartition], None]
    ) -> None:
        topic, one = place
        state = found.get((topic.topic_id, one.partition_index))
        if state is None or state.error_code or state.start_offset == UNKNOWN:
            answered(one)
            return
        known = replace(one, start_offset=state.start_offset, leader_epoch=state.leader_epoch)
        if state.delivery_complete_count == UNKNOWN:
            answered(known)
            return

        def ended(error: ErrorCode, end: Offset) -> None:
            if error is not ErrorCode.NONE:
                answered(replace(known, error_code=error, error_message=error.name))
            else:
                lag = end - state.start_offset - state.delivery_complete_count
                answered(replace(known, lag=min(max(lag, 0), _LAG_MAX)))

        node.end_offsets.find((topic.topic_name, PartitionIndex(one.partition_index)), ended)

    def all_known(partitions: list[ShareOffsetsPartition]) -> None:
        rest = iter(partitions)
        topics = [replace(topic, partitions=[next(rest) for _ in topic.partitions]) for topic in group.topics]
        done(replace(group, topics=topics))

    gather(places, ask_end, all_known)
