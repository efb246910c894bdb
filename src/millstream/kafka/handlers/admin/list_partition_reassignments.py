"""ListPartitionReassignments: partitions that move to other brokers. Unknown topics are left out, as in Kafka."""

from millstream.core.controller.replicas import Move
from millstream.kafka.context import Node, RequestContext
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(node: Node, ctx: RequestContext, request: ListPartitionReassignmentsRequest) -> None:
    """Answer from the metadata."""
    state = node.metadata.state
    asked = None
    if request.topics is not None:
        asked = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    found: dict[str, list[OngoingPartitionReassignment]] = {}
    for move in state.moves.values():
        topic = state.topics.by_id[move.topic_id]
        if asked is None or (topic.name, move.index) in asked:
            shown = _shown(move, topic.partitions[move.index].replicas)
            found.setdefault(topic.name, []).append(shown)
    ctx.respond(
        ListPartitionReassignmentsResponse(
            error_message=None,
            topics=[OngoingTopicReassignment(name=name, partitions=moves) for name, moves in sorted(found.items())],
        )
    )


def _shown(move: Move, replicas: tuple[int, ...]) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=move.index,
        replicas=list(replicas),
        adding_replicas=[node for node in move.target if node not in move.before],
        removing_replicas=[node for node in replicas if node not in move.target],
    )
