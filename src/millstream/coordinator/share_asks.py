"""How the groups of a partition ask for share state, wherever its coordinator is.

What is asked is a request of APIs 83 or 86 for any number of share partitions; the answer has a result for each. An
asker answers exactly once, on the shard that asked, in bounded time, and never raises: what it could not ask for has an
error code.
"""

from collections.abc import Callable
from typing import TypeAlias

from millstream.core.group.outputs import StateRequest, StateResponse
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_share_group_state import DeleteShareGroupStateResponse
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.share_state_results import StatePartitionResult, StateTopicResult

AskStates: TypeAlias = Callable[[StateRequest, Callable[[StateResponse], None]], None]


def no_share_coordinator(request: StateRequest, done: Callable[[StateResponse], None]) -> None:
    """There is no share coordinator: everything fails, and is asked for again by a later request."""
    results = [
        StateTopicResult(
            topic.topic_id,
            [StatePartitionResult(one.partition, ErrorCode.COORDINATOR_NOT_AVAILABLE) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    if isinstance(request, InitializeShareGroupStateRequest):
        done(InitializeShareGroupStateResponse(results))
    else:
        done(DeleteShareGroupStateResponse(results))
