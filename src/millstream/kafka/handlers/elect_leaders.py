"""ElectLeaders: elect the preferred replica, or any remaining one, as leader of partitions.

With one replica each, the preferred one leads already and no election is needed. A client that names partitions gets
that answer for each; a client that requests all partitions gets the elected ones: none.
"""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

API_KEY: Final = 43
_PREFERRED: Final = 0
_UNCLEAN: Final = 1


def handle(
    node: Node, ctx: RequestContext, request: ElectLeadersRequest, respond: Callable[[ElectLeadersResponse], None]
) -> None:
    """Answer from the metadata cache."""
    _ = ctx
    if request.topic_partitions is None:
        results = [ReplicaElectionResult(topic=name) for name in node.metadata.names()]
    else:
        results = [
            ReplicaElectionResult(
                topic=asked.topic,
                partition_result=[
                    _result(node, request.election_type, asked.topic, index) for index in asked.partitions
                ],
            )
            for asked in request.topic_partitions
        ]
    known = request.election_type in (_PREFERRED, _UNCLEAN)
    error = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    respond(ElectLeadersResponse(error_code=error, replica_election_results=results))


def _result(node: Node, election_type: int, topic: str, index: int) -> PartitionResult:
    if election_type not in (_PREFERRED, _UNCLEAN):
        error, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    elif node.metadata.topic(topic) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    elif node.metadata.partition(topic, index) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    else:
        error, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    return PartitionResult(partition_id=index, error_code=error, error_message=message)
