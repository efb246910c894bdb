"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-848).

Such a member takes its member epoch for the generation. A newer group epoch, or partitions to revoke or to add, look
like a rebalance to it: its heartbeat says REBALANCE_IN_PROGRESS. Its join reports what it owns and moves it on, like a
heartbeat of the consumer protocol. It waits for no other member, and no member leads. The sync then returns its
assignment.
"""

import msgspec

from millstream.core.group.assigned.change import Failed, GroupChange
from millstream.core.group.assigned.requests import known_member
from millstream.core.group.assigned.timers import renew, timers_of
from millstream.core.group.consumer.expressions import begin_resolving, follow_expression
from millstream.core.group.consumer.heartbeat import (
    put_metadata,
    put_reconciled,
    replace_static,
    static_member,
    throw_if_fenced,
)
from millstream.core.group.consumer.leaving import remove
from millstream.core.group.consumer.migrate import begin_downgrade, may_downgrade, may_migrate
from millstream.core.group.consumer.protocol import assignment_bytes, read_subscription, reported_by
from millstream.core.group.consumer.target import follow_epoch, follow_topics
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember, MemberState
from millstream.core.group.deadlines import OFF
from millstream.core.group.group import CONSUMER_PROTOCOL, Group
from millstream.core.group.heartbeat import heartbeat_error
from millstream.core.group.join import MEMBER_ID_REQUIRED_FROM, named_protocols
from millstream.core.group.leave import leave_answer, leavers, member_result
from millstream.core.group.outputs import Heartbeat, Join, Leave, Sync
from millstream.core.group.rebalance import join_error
from millstream.core.group.step import Step
from millstream.core.group.sync import sync_error
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.consumer_group_storage import ClassicMemberMetadata, ClassicProtocol
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from millstream.wire.messages.sync_group import SyncGroupResponse


def join(step: Step, change: GroupChange[ConsumerGroup], given: Join) -> None:
    """Handle a JoinGroup for a consumer group that has members."""
    try:
        _join(step, change, given)
    except Rejected as error:
        change.undo()
        step.out.answer(given.token, join_error("", error.code))


def _join(step: Step, change: GroupChange[ConsumerGroup], given: Join) -> None:
    request, group = given.request, change.content
    if not may_migrate(step):
        raise Rejected("Group migration is disabled.", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    member_id = request.member_id or given.member_suffix
    if len(group.members) >= step.settings.consumer.max_size and member_id not in group.members:
        step.out.answer(given.token, join_error("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    if not group.supports(request.protocol_type, (protocol.name for protocol in request.protocols)):
        raise Rejected("No assignor in common.", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_dynamic = request.group_instance_id is None
    if not request.member_id and is_dynamic and given.version >= MEMBER_ID_REQUIRED_FROM:
        step.out.answer(given.token, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        return
    try:
        subscription = read_subscription(request.protocols[0].metadata)
    except ProtocolError as error:
        raise Rejected(error.message, ErrorCode.UNKNOWN_SERVER_ERROR) from None
    former = _former(group, request)
    if former is not None and may_downgrade(step, group, [former], replaced=True):
        successor = _take_over(msgspec.structs.replace(former, member_id=member_id), given, subscription)
        _downgrade(step, change, given, former, successor)
        return
    before = _member(change, request, member_id, former)
    member = _take_over(before, given, subscription)
    changed = put_metadata(change, before, member)
    expression = follow_expression(step, change, before, member)
    changed = changed or expression.changed
    follow_topics(step, change, bump=changed)
    follow_epoch(step, change)
    reported = reported_by(subscription, step.topics)
    after = put_reconciled(step, change, reported, subscription_changed=changed, of=member)

    def done(step: Step) -> None:
        timers = timers_of(change.group, group, after.member_id)
        step.cancel(timers.join)
        step.cancel(timers.rebalance)
        step.after(timers.sync, after.rebalance_timeout_ms)
        renew(step, change.group, group, after)
        begin_resolving(step, group, expression.to_resolve, given)
        step.out.answer(given.token, _joined(given, after.member_id, after.epoch))

    change.write(step, given.token, done, _refused(given))


def _joined(given: Join, member_id: str, generation: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=generation,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=given.request.protocols[0].name,
        member_id=member_id,
    )


def _take_over(member: ConsumerMember, given: Join, subscription: ConsumerProtocolSubscription) -> ConsumerMember:
    """The member with the facts of the join."""
    request = given.request
    return msgspec.structs.replace(
        member,
        instance_id=request.group_instance_id if member.instance_id is None else member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        client_id=given.client_id,
        client_host=given.client_host,
        classic=_said(request),
    )


def _downgrade(
    step: Step, change: GroupChange[ConsumerGroup], given: Join, former: ConsumerMember, successor: ConsumerMember
) -> None:
    """Replace the last member of the consumer protocol by a classic one: the group becomes classic again.

    It stays stable, unless the successor has another subscription.
    """
    generation = change.content.epoch

    def done(step: Step) -> None:
        step.out.answer(given.token, _joined(given, successor.member_id, generation))

    rebalances = (former.topic_names, former.topic_regex) != (successor.topic_names, successor.topic_regex)
    begin_downgrade(
        step, change, [former], given.token, done, _refused(given), successor=successor, rebalances=rebalances
    )


def _refused(given: Join) -> Failed:
    def refused(step: Step, error: ErrorCode) -> None:
        step.out.answer(given.token, join_error("", error))

    return refused


def _said(request: JoinGroupRequest) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=request.session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in named_protocols(request)],
    )


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _former(group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerMember | None:
    """The member that a static member without a member id replaces."""
    if request.group_instance_id is None or request.member_id:
        return None
    former_id = group.statics.get(request.group_instance_id)
    return None if former_id is None else group.members[former_id]


def _member(
    change: GroupChange[ConsumerGroup], request: JoinGroupRequest, member_id: str, former: ConsumerMember | None
) -> ConsumerMember:
    """The joining member, as it was before."""
    group = change.content
    if former is not None:
        return replace_static(change, former, member_id)
    if request.group_instance_id is not None and request.member_id:
        member = static_member(group, request.group_instance_id)
        throw_if_fenced(member, member_id)
        return member
    return group.members.get(member_id) or ConsumerMember(member_id)


# Requests without changes


def _check(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """The classic member that sent the request. Rejected if it is unknown or its generation is not current."""
    if instance_id is None:
        member = known_member(group.members, group.group_id, member_id)
    else:
        member = static_member(group, instance_id)
        throw_if_fenced(member, member_id)
    if member.classic is None:
        raise Rejected("It does not use the classic protocol.", ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise Rejected("The generation is not the member's epoch.", ErrorCode.ILLEGAL_GENERATION)
    return member


def _rejoins(step: Step, holder: Group, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Tell the member to rejoin, within its rebalance timeout."""
    deadline = timers_of(holder, group, member.member_id).join
    if deadline.at_us == OFF:
        step.after(deadline, member.rebalance_timeout_ms)


def _epoch_due(group: ConsumerGroup) -> int:
    """The epoch that a classic member must rejoin for.

    Heartbeats of the consumer protocol compute a new target assignment. Where there are no such members, the joins of
    classic members compute it, and they must be called for that.
    """
    return group.epoch if group.classic_members == len(group.members) else group.assignment_epoch


def sync(step: Step, holder: Group, group: ConsumerGroup, given: Sync) -> None:
    """Handle a SyncGroup: return the member's assignment."""
    request = given.request
    try:
        member = _check(group, request.member_id, request.group_instance_id, request.generation_id)
    except Rejected as error:
        step.out.answer(given.token, sync_error(error.code))
        return
    assert member.classic is not None
    name = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (None, name):
        step.out.answer(given.token, sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif _epoch_due(group) > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _rejoins(step, holder, group, member)
        step.out.answer(given.token, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    else:
        step.cancel(timers_of(holder, group, member.member_id).sync)
        renew(step, holder, group, member)
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(member, step.topics),
        )
        step.out.answer(given.token, response)


def heartbeat(step: Step, holder: Group, group: ConsumerGroup, given: Heartbeat) -> None:
    """Handle a Heartbeat: the response says whether the member must rejoin."""
    request = given.request
    try:
        member = _check(group, request.member_id, request.group_instance_id, request.generation_id)
    except Rejected as error:
        step.out.answer(given.token, heartbeat_error(error.code))
        return
    renew(step, holder, group, member)
    error = ErrorCode.NONE
    if (
        member.epoch < _epoch_due(group)
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
    ):
        error = ErrorCode.REBALANCE_IN_PROGRESS
        _rejoins(step, holder, group, member)
    step.out.answer(given.token, heartbeat_error(error))


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still owns a partition of the member's target."""
    return any(
        partition not in member.assigned.get(topic_id, ()) and group.is_owned(topic_id, partition)
        for topic_id, partitions in group.target(member).items()
        for partition in partitions
    )


# Leaving


def leave(step: Step, change: GroupChange[ConsumerGroup], given: Leave) -> None:
    """Handle a LeaveGroup for members of either protocol; an administrator may name any."""
    group = change.content
    results: list[MemberResponse] = []
    leaving: list[str] = []
    for who in leavers(given.request, given.version):
        error = ErrorCode.NONE
        try:
            member_id = _leaver(group, who).member_id
            if member_id not in leaving:
                leaving.append(member_id)
        except Rejected as rejected:
            error = ErrorCode(rejected.code)
        results.append(member_result(who, error))
    answer = leave_answer(results, given.version)
    if not leaving:
        step.out.answer(given.token, answer)
        return

    def done(step: Step) -> None:
        step.out.answer(given.token, answer)

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(given.token, LeaveGroupResponse(error_code=error))

    remove(step, change, leaving, given.token, done, failed)


def _leaver(group: ConsumerGroup, who: MemberIdentity) -> ConsumerMember:
    if who.group_instance_id is None:
        member = known_member(group.members, group.group_id, who.member_id)
    else:
        member = static_member(group, who.group_instance_id)
        if who.member_id:
            throw_if_fenced(member, who.member_id)
    return member
