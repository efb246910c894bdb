"""SyncGroup: the leader sends all assignments, and every member gets its own.

The leader's assignment is written to the log first. When it is durable the group is stable and all parked syncs are
answered. If it cannot be written, the syncs fail and the members rejoin. A rebalance that starts in between wins: the
assignment is then in the log, but no member received it.
"""

from millstream.core.group.group import Group
from millstream.core.group.image import group_record
from millstream.core.group.outputs import Sync
from millstream.core.group.rebalance import assign, prepare_or_complete, withdraw_assignments
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_NAMED_FROM = 5


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    """A refused sync."""
    return SyncGroupResponse(error_code=error)


def check_request(sync: Sync) -> ErrorCode:
    """The error of the request itself, independent of the group's state."""
    request = sync.request
    if sync.version >= PROTOCOL_NAMED_FROM and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE if request.group_id else ErrorCode.INVALID_GROUP_ID


def sync_group(step: Step, group: Group, sync: Sync) -> None:
    """Handle a SyncGroup. The response may leave in a later step."""
    request = sync.request
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        step.out.answer(sync.token, sync_error(error))
        return
    member = group.members[request.member_id]
    group.rebalance.pending_syncs.discard(member.member_id)
    if not group.rebalance.pending_syncs:
        step.cancel(group.rebalance.sync_deadline)
    if group.state is GroupState.STABLE:
        answer = SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.assignors.chosen, assignment=member.assignment
        )
        step.out.answer(sync.token, answer)
        return
    before, member.sync_token = member.sync_token, sync.token
    if before is not None:
        step.out.answer(before, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    # If the leader repeats its sync while the assignment is being written, no second one is written.
    if member.member_id == group.leader_id and not group.rebalance.writing:
        group.rebalance.writing = True
        assignments = {given.member_id: given.assignment for given in request.assignments}
        step.write((group_record(group, assignments),), _Assigned(group, assignments))


def _check(group: Group, request: SyncGroupRequest) -> ErrorCode:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name not in (None, group.assignors.chosen):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


class _Assigned:
    """The assignment of a generation is in flight to the log."""

    __slots__ = ("assignments", "generation", "group")

    def __init__(self, group: Group, assignments: dict[str, bytes]) -> None:
        self.group = group
        self.assignments = assignments
        self.generation = group.generation

    def settle(self, step: Step, error: ErrorCode) -> None:
        """Make the assignment valid, or fail the syncs."""
        group = self.group
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != self.generation:
            return
        group.rebalance.writing = False
        if error is ErrorCode.NONE:
            group.standing.move_to(GroupState.STABLE, step.wall_ms)
            assign(step, group, self.assignments)
            step.counts.rebalances += 1
            step.log(group, f"stable, generation {group.generation} with {len(group.members)} members")
        else:
            step.log(group, f"the assignment of generation {group.generation} was not written ({error.name})")
            withdraw_assignments(step, group, error)
            prepare_or_complete(step, group)
