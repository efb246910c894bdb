"""StreamsGroupHeartbeat: a member of a streams group joins, reports, or leaves (``core.group.streams.heartbeat``).

The coordinator says which internal topics are missing. They are created here, with the rights and the quota of the
client: CREATE on the cluster or on every one of them; otherwise the status of the response names those without it, and
none is created. A topology may not name the broker's own topics.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from millstream.coordinator.asks import STREAMS_GROUP_HEARTBEAT
from millstream.core.controller.topic_names import INTERNAL_TOPICS, illegal_topic_name
from millstream.core.group.streams.heartbeat import StreamsBeaten
from millstream.core.group.streams_state.configured import Status
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.access import Operation
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    StreamsTopology,
)
from millstream.wire.schema import Message

_NAMED: Final = 3
"""Topics whose refusal a status names, as in Kafka."""


def handle(node: Node, ctx: RequestContext, request: StreamsGroupHeartbeatRequest) -> None:
    """Answer when the coordinator has answered, or at once if the protocol is switched off."""
    if "streams" not in node.settings.group_coordinator_rebalance_protocols:
        ctx.respond(StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        return
    why = None if request.topology is None else _forbidden(topology_topics(request.topology))
    if why is not None:
        error = ErrorCode.STREAMS_INVALID_TOPOLOGY
        ctx.respond(StreamsGroupHeartbeatResponse(error_code=error, error_message=why))
        return

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            ctx.respond(StreamsGroupHeartbeatResponse(error_code=answer))
            return
        assert isinstance(answer, StreamsBeaten)
        ctx.respond(_created(node, ctx, answer) if answer.missing else answer.response)

    ask(node, ctx, request.group_id, STREAMS_GROUP_HEARTBEAT, request, done)


def topology_topics(topology: StreamsTopology) -> list[str]:
    """Every topic that a topology names, each once."""
    found = (
        name
        for one in topology.subtopologies
        for name in (
            *one.source_topics,
            *one.repartition_sink_topics,
            *(topic.name for topic in one.repartition_source_topics),
            *(topic.name for topic in one.state_changelog_topics),
        )
    )
    return list(dict.fromkeys(found))


def _forbidden(topics: Iterable[str]) -> str | None:
    names = list(topics)
    own = [name for name in names if name in INTERNAL_TOPICS]
    if own:
        return f"Use of Kafka internal topics {','.join(own)} in a Kafka Streams topology is prohibited."
    illegal = [name for name in names if illegal_topic_name(name) is not None]
    return f"Topic names {','.join(illegal)} are not valid topic names." if illegal else None


def _created(node: Node, ctx: RequestContext, answer: StreamsBeaten) -> StreamsGroupHeartbeatResponse:
    """The response after its missing topics were asked for."""
    refused = _without_right(ctx, answer.missing)
    if refused:
        return _with_detail(answer.response, f"; Unauthorized to CREATE on topics {', '.join(refused)}.")
    rest_ms = 2 * answer.response.heartbeat_interval_ms
    failed = node.streams_topics.create(answer.missing, ctx.mutation_client(0), rest_ms)
    if not failed:
        return answer.response
    reasons = ", ".join(f"{name} ({why})" for name, why in list(failed.items())[:_NAMED])
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return _with_detail(answer.response, f"; Creation failed: {reasons}{more}.")


def _without_right(ctx: RequestContext, topics: Sequence[CreatableTopic]) -> list[str]:
    asker = ctx.asker
    if asker is None or asker.cluster(Operation.CREATE):
        return []
    return [topic.name for topic in topics if not asker.topic(Operation.CREATE, topic.name)]


def _with_detail(response: StreamsGroupHeartbeatResponse, more: str) -> StreamsGroupHeartbeatResponse:
    """The response whose status about missing topics says more."""
    status = [
        StreamsStatus(one.status_code, one.status_detail + more)
        if one.status_code == Status.MISSING_INTERNAL_TOPICS
        else one
        for one in response.status or ()
    ]
    return replace(response, status=status)
