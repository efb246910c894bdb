"""JoinGroup: joins a group, or takes part in its rebalance.

A dynamic member without an id gets one and must send it back (MEMBER_ID_REQUIRED, from version 4 on, KIP-394), so that
retrying clients leave no members behind that must time out. A static member (KIP-345) without an id takes the place of
its predecessor at once; the predecessor's parked requests are answered FENCED_INSTANCE_ID. If nothing else changes, a
stable group stays stable: the new member id is made durable first, then the join is answered with the current
generation. A leader that returned this way has to skip the assignment (version 9, KIP-814). In older versions it
gets its old id as leader, so that it does not assign.
"""

from millstream.core.group.deadlines import SESSION, Deadline
from millstream.core.group.group import Group
from millstream.core.group.image import group_record
from millstream.core.group.member import Member, Protocols, Token
from millstream.core.group.outputs import Join
from millstream.core.group.rebalance import (
    answer_join,
    answer_sync,
    join_answer,
    join_error,
    maybe_complete_join,
    prepare,
    prepare_or_complete,
    reason,
    renew_session,
)
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.sync_group import SyncGroupResponse

MEMBER_ID_REQUIRED_FROM = 4
SKIP_ASSIGNMENT_FROM = 9
MEMBER_ID_NAME_MAX = 1_024
"""Maximum characters of the client's or the instance's name in a member id, which must fit into a string of 32,767
bytes.
"""


def check_request(step: Step, join: Join) -> ErrorCode:
    """The error of the request itself, independent of the group's state."""
    request = join.request
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    settings = step.settings
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def join_group(step: Step, group: Group, join: Join) -> None:
    """Handle a JoinGroup for an existing group. The response may leave in a later step."""
    request = join.request
    member_id = request.member_id
    if not _has_room(step, group, member_id):
        member = group.members.get(member_id)
        if member is not None:
            answer_join(step, group, member, join_error("", ErrorCode.GROUP_MAX_SIZE_REACHED))
            step.cancel(member.session)
        group.remove(member_id)
        step.out.answer(join.token, join_error("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    protocols = named_protocols(request)
    if not group.supports(request.protocol_type, protocols):
        step.out.answer(join.token, join_error(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif not member_id:
        _join_new(step, group, join, protocols)
    elif member_id in group.rebalance.pending_joins:
        if request.group_instance_id is not None:
            # Member ids are given out to dynamic members only.
            step.out.answer(join.token, join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            step.cancel(group.rebalance.pending_joins[member_id])
            _add(step, group, join, member_id, protocols)
    else:
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            step.out.answer(join.token, join_error(member_id, error))
        else:
            _rejoin(step, group, join, group.members[member_id], protocols)


def named_protocols(request: JoinGroupRequest) -> Protocols:
    """The protocols of the request. If an assignor is named twice, the first counts."""
    named: dict[str, bytes] = {}
    for protocol in request.protocols:
        named.setdefault(protocol.name, protocol.metadata)
    return tuple(named.items())


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has no rebalance timeout; the session timeout replaces it."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _has_room(step: Step, group: Group, member_id: str) -> bool:
    """Whether ``group.max.size`` allows the member. As in Kafka, a group that is joining counts the rejoined members,
    otherwise all members.
    """
    limit = step.settings.max_size
    member = group.members.get(member_id)
    if group.is_empty:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join_token is not None) or group.rebalance.awaiting_join < limit
    return member is not None or len(group.members) < limit


def _join_new(step: Step, group: Group, join: Join, protocols: Protocols) -> None:
    request = join.request
    instance_id = request.group_instance_id
    name = join.client_id if instance_id is None else instance_id
    member_id = f"{name[:MEMBER_ID_NAME_MAX]}-{join.member_suffix}"
    if instance_id is not None:
        former_id = group.statics.get(instance_id)
        if former_id is None:
            _add(step, group, join, member_id, protocols)
        else:
            _replace(step, group, join, group.members[former_id], member_id, protocols)
    elif join.version < MEMBER_ID_REQUIRED_FROM:
        _add(step, group, join, member_id, protocols)
    elif len(group.rebalance.pending_joins) >= step.settings.pending_joins_max:
        step.out.answer(join.token, join_error("", ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        deadline = group.rebalance.pending_joins[member_id] = Deadline(SESSION, group, member_id)
        step.after(deadline, request.session_timeout_ms)
        step.out.answer(join.token, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))


def _add(step: Step, group: Group, join: Join, member_id: str, protocols: Protocols) -> None:
    """Add a new member, and rebalance."""
    request = join.request
    member = Member(
        member_id,
        request.group_instance_id,
        join.client_id,
        join.client_host,
        _rebalance_timeout_ms(request),
        request.session_timeout_ms,
        protocols,
        Deadline(SESSION, group, member_id),
    )
    member.is_new = True
    if group.state is GroupState.PREPARING_REBALANCE and group.standing.previous is GroupState.EMPTY:
        group.rebalance.has_new_member = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member, join.token)
    step.after(member.session, step.settings.new_member_join_timeout_ms)
    prepare_or_complete(step, group, f"member {member_id} joins{reason(request.reason)}")


def _rejoin(step: Step, group: Group, join: Join, member: Member, protocols: Protocols) -> None:
    """Handle a known member. Only a change that affects the assignment starts a rebalance."""
    state = group.state
    is_leader = member.member_id == group.leader_id
    same = member.protocols == protocols
    if state is GroupState.PREPARING_REBALANCE:
        _update_and_rebalance(step, group, join, member, protocols)
    elif state is GroupState.COMPLETING_REBALANCE and same:
        # The first response may have been lost.
        step.out.answer(join.token, join_answer(group, member, as_leader=is_leader))
    elif state is GroupState.STABLE and same and not is_leader:
        step.out.answer(join.token, join_answer(group, member, as_leader=False))
    else:
        # A leader of a stable group rejoins when its input has changed, such as the partitions of a topic.
        _update_and_rebalance(step, group, join, member, protocols)


def _update_and_rebalance(step: Step, group: Group, join: Join, member: Member, protocols: Protocols) -> None:
    request = join.request
    group.update(member, protocols, _rebalance_timeout_ms(request), request.session_timeout_ms)
    _park(step, group, member, join.token)
    prepare_or_complete(step, group, f"member {member.member_id} joins again{reason(request.reason)}")


def _park(step: Step, group: Group, member: Member, token: Token) -> None:
    before = group.park_join(member, token)
    if before is not None:
        # The client sent its join again. The first request, if anybody still waits for it, must be repeated.
        step.out.answer(before, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))


def _replace(step: Step, group: Group, join: Join, former: Member, member_id: str, protocols: Protocols) -> None:
    """A static member returned under a new member id."""
    former_leader = group.leader_id or ""
    fenced = join_error(former.member_id, ErrorCode.FENCED_INSTANCE_ID)
    answer_join(step, group, former, fenced)
    answer_sync(step, former, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    step.cancel(former.session)
    member = _successor(group, former, member_id)
    group.replace_static(former, member)
    request = join.request
    group.update(member, protocols, _rebalance_timeout_ms(request), request.session_timeout_ms)
    renew_session(step, member)
    _park(step, group, member, join.token)
    if group.state is GroupState.STABLE:
        if group.select_protocol() == group.assignors.chosen:
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            replaced = _Replaced(group, member, former, join.token, join.version, former_leader)
            step.write((group_record(group, assignments),), replaced)
        else:
            prepare(step, group, f"static member {member_id} came back with other assignors{reason(request.reason)}")
    elif group.state is GroupState.COMPLETING_REBALANCE:
        # The leader may be assigning to the former member id at this moment.
        prepare(step, group, f"static member {member_id} came back before the assignment{reason(request.reason)}")
    else:
        maybe_complete_join(step, group)


def _successor(group: Group, former: Member, member_id: str) -> Member:
    member = Member(
        member_id,
        former.instance_id,
        former.client_id,
        former.client_host,
        former.rebalance_timeout_ms,
        former.session_timeout_ms,
        former.protocols,
        Deadline(SESSION, group, member_id),
        former.assignment,
    )
    member.is_new = former.is_new
    return member


class _Replaced:
    """A stable group's record with the new id of a static member is in flight to the log."""

    __slots__ = ("former", "former_leader", "generation", "group", "member", "token", "version")

    def __init__(
        self, group: Group, member: Member, former: Member, token: Token, version: int, former_leader: str
    ) -> None:
        self.group = group
        self.member = member
        self.former = former
        self.token = token
        self.version = version
        self.former_leader = former_leader
        self.generation = group.generation

    def settle(self, step: Step, error: ErrorCode) -> None:
        """Answer the join, or undo the replacement. If the group has changed since, that change answers the
        join.
        """
        group, member = self.group, self.member
        if member.join_token is not self.token or group.members.get(member.member_id) is not member:
            return
        if group.state is not GroupState.STABLE or group.generation != self.generation:
            return
        if error is not ErrorCode.NONE:
            self._undo(step)
            step.out.answer(self.token, join_error("", error))
            return
        is_leader = member.member_id == group.leader_id
        if self.version >= SKIP_ASSIGNMENT_FROM:
            answer = join_answer(group, member, as_leader=is_leader, skip_assignment=is_leader)
        else:
            answer = join_answer(group, member, as_leader=False, leader=self.former_leader)
        answer_join(step, group, member, answer)
        renew_session(step, member)  # the session may have ended while the join was parked

    def _undo(self, step: Step) -> None:
        group, member, former = self.group, self.member, self.former
        group.park_join(member, None)
        group.update(member, former.protocols, former.rebalance_timeout_ms, former.session_timeout_ms)
        step.cancel(member.session)
        group.replace_static(member, former)
        renew_session(step, former)
