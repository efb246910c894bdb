"""LeaveGroup: members leave by member id; an administrator removes static ones by instance id.

When the last member has left, the empty group is written, and the response is sent when that is durable. Otherwise a
member that left could be back after a crash until its session ends. While members remain, nothing is written until they
have a new assignment, as in Kafka.
"""

from millstream.core.group.group import Group
from millstream.core.group.outputs import Leave
from millstream.core.group.rebalance import drop, maybe_complete_join, prepare_or_complete, reason
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

SEVERAL_MEMBERS_FROM = 3


def leavers(request: LeaveGroupRequest, version: ApiVersion) -> list[MemberIdentity]:
    """The members that leave; one in old versions."""
    if version >= SEVERAL_MEMBERS_FROM:
        return request.members
    return [MemberIdentity(member_id=request.member_id)]


def leave_answer(results: list[MemberResponse], version: ApiVersion) -> LeaveGroupResponse:
    """The response with these results. Old versions have one error code only."""
    if version >= SEVERAL_MEMBERS_FROM:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)


def unknown_group(leave: Leave) -> LeaveGroupResponse:
    """The response for a group that does not exist."""
    results = [member_result(who, ErrorCode.UNKNOWN_MEMBER_ID) for who in leavers(leave.request, leave.version)]
    return leave_answer(results, leave.version)


def leave_group(step: Step, group: Group, leave: Leave) -> None:
    """Handle a LeaveGroup."""
    asked = leavers(leave.request, leave.version)
    results = [member_result(who, _leave_one(step, group, who)) for who in asked]
    left = [who for who, result in zip(asked, results, strict=True) if result.error_code == ErrorCode.NONE]
    if left:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            first = f"member {left[0].member_id or left[0].group_instance_id} left{reason(left[0].reason)}"
            prepare_or_complete(step, group, first if len(left) == 1 else f"{first}, and {len(left) - 1} others")
        elif group.state is GroupState.PREPARING_REBALANCE:
            maybe_complete_join(step, group)
    done = leave_answer(results, leave.version)
    if not group.writes.in_flight:
        step.out.answer(leave.token, done)
        return

    def answer(error: ErrorCode) -> LeaveGroupResponse:
        return done if error is ErrorCode.NONE else LeaveGroupResponse(error_code=error)

    step.when_written(group, leave.token, answer)


def _leave_one(step: Step, group: Group, who: MemberIdentity) -> ErrorCode:
    member_id = who.member_id
    if not member_id:
        # An administrator removes a static member by its instance id.
        current = group.statics.get(who.group_instance_id or "")
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        drop(step, group, group.members[current])
        return ErrorCode.NONE
    if member_id in group.rebalance.pending_joins:
        step.cancel(group.rebalance.pending_joins[member_id])
        group.remove(member_id)
        return ErrorCode.NONE
    error = group.check_member(member_id, who.group_instance_id)
    if error is ErrorCode.NONE:
        drop(step, group, group.members[member_id])
    return error


def member_result(who: MemberIdentity, error: ErrorCode) -> MemberResponse:
    """What became of one member, which is named as the request names it."""
    return MemberResponse(member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=error)
