"""Initialize-, Read-, Write-, Delete- and ReadShareGroupState(Summary), APIs 83 to 87: the state of share partitions.

Brokers of Kafka ask each other with these; brokers here ask over their own connections (``coordinator.share_states``).
The request may reach any broker: it is passed on to the coordinators. A state of records that does not exist, or an
empty group id, is INVALID_REQUEST for the whole request.
"""

from millstream.coordinator.share_states import StateRequest, asks_of, response_to
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode


def handle(node: Node, ctx: RequestContext, request: StateRequest) -> None:
    """Answer when all coordinators have answered."""
    try:
        asks_of(request)
        valid = bool(request.group_id)
    except ValueError:
        valid = False
    if valid:
        node.share_states.ask(request, ctx.respond)
    else:
        count = sum(len(topic.partitions) for topic in request.topics)
        ctx.respond(response_to(request, [(int(ErrorCode.INVALID_REQUEST), None)] * count))
