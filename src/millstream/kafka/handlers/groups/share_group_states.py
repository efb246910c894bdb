"""Initialize-, Read-, Write-, Delete- and ReadShareGroupState(Summary), APIs 83 to 87: the state of share partitions.

Brokers of Kafka ask each other with these; brokers here ask over their own connections (``coordinator.share_states``).
The request may reach any broker: it is passed on to the coordinators. A state, offset or count of records that does not
exist is INVALID_REQUEST for the whole request, and an empty group id is answered with nothing.

The coordinator does not know which partitions exist. Read and Write find no state of one that does not. For the other
three it is refused here (UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST for a negative number), as Kafka does. A topic is
answered once, and a partition that is named twice with its last result.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from millstream.coordinator.share_states import StateRequest, StateResponse, asks_of, response_to
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_share_group_state import DeleteShareGroupStateRequest
from millstream.wire.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from millstream.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest

_NEED_NO_STATE: Final = (
    InitializeShareGroupStateRequest,
    DeleteShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
)


def handle(node: Node, ctx: RequestContext, request: StateRequest) -> None:
    """Answer when all coordinators have answered."""
    if not request.group_id:
        ctx.respond(response_to(replace(request, topics=[]), []))
        return
    try:
        asks_of(request)
    except ValueError:
        count = sum(len(topic.partitions) for topic in request.topics)
        ctx.respond(_merged(response_to(request, [(int(ErrorCode.INVALID_REQUEST), None)] * count)))
        return

    errors: dict[tuple[bytes, int], ErrorCode] = {}
    if isinstance(request, _NEED_NO_STATE):
        named = ((topic.topic_id, one.partition) for topic in request.topics for one in topic.partitions)
        errors = {one: error for one in named if (error := _why_not(node, *one)) is not ErrorCode.NONE}
    good = _selected(request, lambda topic_id, partition: (topic_id, partition) not in errors)
    bad = _selected(request, lambda topic_id, partition: (topic_id, partition) in errors)
    refused = [int(errors[topic.topic_id, one.partition]) for topic in bad.topics for one in topic.partitions]
    refusals = response_to(bad, [(error, None) for error in refused])
    node.share_states.ask(good, lambda response: ctx.respond(_merged(response, refusals.results)))


def _why_not(node: Node, topic_id: bytes, partition: int) -> ErrorCode:
    if partition < 0:
        return ErrorCode.INVALID_REQUEST
    topic = node.metadata.topic_by_id(topic_id)
    is_there = topic is not None and partition < len(topic.partitions)
    return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _selected(request: StateRequest, wanted: Callable[[bytes, int], bool]) -> StateRequest:
    """The request with the wanted partitions alone."""
    topics: list[Any] = [
        replace(topic, partitions=[one for one in topic.partitions if wanted(topic.topic_id, one.partition)])
        for topic in request.topics
    ]
    return replace(request, topics=topics)


def _merged(response: StateResponse, more: Sequence[Any] = ()) -> StateResponse:
    """The response with further results, each topic and each of its partitions once."""
    found: dict[bytes, dict[int, Any]] = {}
    for topic in (*response.results, *more):
        for one in topic.partitions:
            found.setdefault(topic.topic_id, {})[one.partition] = one
    results: list[Any] = [type(response.results[0])(topic_id, [*ones.values()]) for topic_id, ones in found.items()]
    return replace(response, results=results)
