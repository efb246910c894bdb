"""Heartbeat: keeps a member alive, and tells it whether to rejoin."""

from millstream.core.group.group import Group
from millstream.core.group.outputs import Heartbeat
from millstream.core.group.rebalance import renew_session
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatResponse

_ANSWERS = {
    code: HeartbeatResponse(error_code=code)
    for code in (
        ErrorCode.NONE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_GROUP_ID,
    )
}


def heartbeat_error(error: ErrorCode) -> HeartbeatResponse:
    """The response with ``error``."""
    return _ANSWERS.get(error) or HeartbeatResponse(error_code=error)


def heartbeat(step: Step, group: Group, beat: Heartbeat) -> None:
    """Handle a Heartbeat."""
    request = beat.request
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is ErrorCode.NONE and request.generation_id != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    if error is ErrorCode.NONE:
        renew_session(step, group.members[request.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    step.out.answer(beat.token, heartbeat_error(error))
