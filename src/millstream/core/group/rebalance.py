"""Rebalances: how a group gets from one generation to the next.

::

    prepare ──► (gathering: members join) ──► complete_join ──► (the leader assigns) ──► sync's job
       ▲             │ time is up                   │
       │             └──────────────────────────────┘
       └── any member that joins, changes, leaves or fails

The join phase ends when every known member has rejoined and every given-out member id was used, or at the rebalance
timeout. Then dynamic members that did not rejoin are removed; static ones stay until their session ends (KIP-345). The
first rebalance of an empty group instead waits ``group.initial.rebalance.delay.ms`` after each new member, at most the
rebalance timeout in all (KIP-134). Then the generation is increased, an assignor and a leader are chosen, all joins are
answered, and every member must sync within the rebalance timeout or is removed.
"""

from collections.abc import Mapping
from typing import Final

from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.image import group_record
from millstream.core.group.member import NO_ASSIGNMENT, Member
from millstream.core.group.state import GroupState
from millstream.core.group.step import Forget, Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from millstream.wire.messages.sync_group import SyncGroupResponse

REASON_MAX: Final = 255
WAIT_AGAIN_MS: Final = 100
"""Minimum wait for static members of which none has rejoined, even if their rebalance timeout is 0."""
_NO_ASSIGNMENTS: Mapping[str, bytes] = {}


def renew_session(step: Step, member: Member) -> None:
    """The member is alive: let its session end one timeout from now."""
    step.after(member.session, member.session_timeout_ms)


# Responses to parked requests


def join_answer(
    group: Group, member: Member, *, as_leader: bool, skip_assignment: bool = False, leader: str | None = None
) -> JoinGroupResponse:
    """The response with the current generation for ``member``. The leader also gets the members."""
    members: list[JoinGroupResponseMember] = []
    if as_leader:
        members = [
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.assignors.chosen),
            )
            for other in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.assignors.chosen,
        leader=(group.leader_id or "") if leader is None else leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """The response that refuses a join. It names no assignor."""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def answer_join(step: Step, group: Group, member: Member, response: JoinGroupResponse) -> None:
    """Answer the member's parked join, if any."""
    token = group.park_join(member, None)
    if token is not None:
        step.out.answer(token, response)


def answer_sync(step: Step, member: Member, response: SyncGroupResponse) -> bool:
    """Answer the member's parked sync. False without one."""
    token = member.sync_token
    if token is None:
        return False
    member.sync_token = None
    step.out.answer(token, response)
    return True


def assign(step: Step, group: Group, assignments: Mapping[str, bytes]) -> None:
    """Set every member's assignment of this generation, and answer the parked syncs."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
        answered = answer_sync(
            step,
            member,
            SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.assignors.chosen, assignment=member.assignment
            ),
        )
        if answered:
            # The session may have ended while the sync was parked.
            renew_session(step, member)


def withdraw_assignments(step: Step, group: Group, error: ErrorCode) -> None:
    """Fail the parked syncs: the generation gets no assignment."""
    for member in group.members.values():
        member.assignment = NO_ASSIGNMENT
        if answer_sync(step, member, SyncGroupResponse(error_code=error)):
            renew_session(step, member)


# Join phase


def prepare_or_complete(step: Step, group: Group, why: str = "") -> None:
    """The members changed: start a rebalance, or complete the running one if all have joined."""
    if group.can_rebalance:
        prepare(step, group, why)
    else:
        maybe_complete_join(step, group)


def reason(given: str | None) -> str:
    """The client's own reason (KIP-800) in parentheses, for a log line; empty without one."""
    return f" ({given[:REASON_MAX]})" if given else ""


def prepare(step: Step, group: Group, why: str = "") -> None:
    """Start a rebalance: all members must rejoin. ``why`` is logged, unless a reason was already logged."""
    if why:
        step.log(group, f"rebalances because {why}")
    if group.state is GroupState.COMPLETING_REBALANCE:
        withdraw_assignments(step, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.rebalance.writing = False
    group.rebalance.pending_syncs.clear()
    step.cancel(group.rebalance.sync_deadline)
    first = group.is_empty
    group.standing.move_to(GroupState.PREPARING_REBALANCE, step.wall_ms)
    if first:
        delay_ms = step.settings.initial_rebalance_delay_ms
        group.rebalance.has_new_member = False
        group.rebalance.first_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        step.after(group.rebalance.join_deadline, delay_ms)
    elif group.all_joined:
        complete_join(step, group)
    else:
        step.after(group.rebalance.join_deadline, group.rebalance_timeout_ms)


def maybe_complete_join(step: Step, group: Group) -> None:
    """End the join phase if all members have joined. The first rebalance of a group always waits for its delay."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.standing.previous is not GroupState.EMPTY
        and group.all_joined
    ):
        complete_join(step, group)


def join_deadline_came(step: Step, group: Group) -> None:
    """The time limit of the join phase was reached. The first rebalance continues while new members arrive."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if (
        group.standing.previous is GroupState.EMPTY
        and group.rebalance.has_new_member
        and group.rebalance.first_delay_left_ms > 0
    ):
        group.rebalance.has_new_member = False
        delay_ms = min(step.settings.initial_rebalance_delay_ms, group.rebalance.first_delay_left_ms)
        group.rebalance.first_delay_left_ms -= delay_ms
        step.after(group.rebalance.join_deadline, delay_ms)
    else:
        complete_join(step, group)


def complete_join(step: Step, group: Group) -> None:
    """End the join phase: remove missing members, increase the generation, answer all joins."""
    step.cancel(group.rebalance.join_deadline)
    for member in list(group.members.values()):
        if member.join_token is None and member.instance_id is None:
            step.cancel(member.session)
            group.remove(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has rejoined: wait until one does, or their sessions end.
        step.after(group.rebalance.join_deadline, max(group.rebalance_timeout_ms, WAIT_AGAIN_MS))
        return
    group.generation += 1
    group.rebalance.pending_syncs.clear()
    if group.members:
        _begin_assignment(step, group)
    else:
        group.assignors.chosen = None
        group.assignors.refresh(group)
        group.standing.move_to(GroupState.EMPTY, step.wall_ms)
        step.write((group_record(group, _NO_ASSIGNMENTS),), Forget(group))
        step.log(group, f"empty since generation {group.generation}")


def _elect_joined_leader(group: Group) -> bool:
    """Keep the leader if it has rejoined, otherwise choose the first member that has. False if none has."""
    leader = group.members.get(group.leader_id or "")
    if leader is None or leader.join_token is None:
        leader = next((member for member in group.members.values() if member.join_token is not None), None)
    if leader is None:
        return False
    group.leader_id = leader.member_id
    return True


def _begin_assignment(step: Step, group: Group) -> None:
    group.assignors.chosen = group.select_protocol()
    group.assignors.refresh(group)
    group.standing.move_to(GroupState.COMPLETING_REBALANCE, step.wall_ms)
    for member in group.members.values():
        as_leader = member.member_id == group.leader_id
        if member.join_token is not None:
            answer_join(step, group, member, join_answer(group, member, as_leader=as_leader))
        renew_session(step, member)
        member.is_new = False
        group.rebalance.pending_syncs.add(member.member_id)
    step.after(group.rebalance.sync_deadline, group.rebalance_timeout_ms)


def sync_deadline_came(step: Step, group: Group) -> None:
    """Remove members that did not sync in time, and rebalance."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.rebalance.pending_syncs:
        return
    silent = [member for member in group.members.values() if member.member_id in group.rebalance.pending_syncs]
    for member in silent:
        drop(step, group, member)
    group.rebalance.pending_syncs.clear()
    prepare(step, group, f"{len(silent)} members did not ask for their assignment in time")


# Members that leave or fail


def session_ended(step: Step, deadline: Deadline[Group]) -> None:
    """The session of a member, or of a given-out member id, timed out."""
    group, member_id = deadline.group, deadline.member_id
    if member_id in group.rebalance.pending_joins:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            complete_join(step, group)
        return
    member = group.members.get(member_id)
    if member is None or member.session is not deadline or member.satisfies_heartbeat:
        return
    step.counts.expired_members += 1
    step.log(group, f"member {member_id} was silent for {member.session_timeout_ms} ms and is removed")
    drop(step, group, member)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_or_complete(step, group)
    elif group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
        complete_join(step, group)


def drop(step: Step, group: Group, member: Member) -> None:
    """Remove a member. Its parked requests are answered UNKNOWN_MEMBER_ID, after which a live client starts over."""
    answer_join(step, group, member, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
    answer_sync(step, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    step.cancel(member.session)
    group.remove(member.member_id)


def end_classic(step: Step, group: Group) -> None:
    """End the classic group: answer its parked requests, and cancel its deadlines."""
    for member in group.members.values():
        answer_join(step, group, member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        answer_sync(step, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        step.cancel(member.session)
    for deadline in group.rebalance.pending_joins.values():
        step.cancel(deadline)
    step.cancel(group.rebalance.join_deadline)
    step.cancel(group.rebalance.sync_deadline)
