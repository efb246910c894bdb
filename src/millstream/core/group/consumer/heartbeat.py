"""ConsumerGroupHeartbeat: a member joins, reports what it owns, and receives its assignment.

Order: the request is checked; the group is found, created, or converted from the classic protocol; the member is found,
created or replaced. Then its subscription is stored, the group epoch and the target assignment follow if necessary, and
the member is moved towards its target. The changes are written, and the response is sent when they are durable. Most
heartbeats change nothing and are answered at once.

A member proves by its epoch that it knows its last response. A member whose epoch is ahead, or behind by more than a
lost response explains, is fenced and must rejoin with epoch 0.
"""

import msgspec

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.requests import check_room, fenced, invalid, known_member, refused
from millstream.core.group.assigned.timers import await_revocation, renew
from millstream.core.group.assigned_state.member import JOINS, LEAVES, LEAVES_FOR_A_WHILE
from millstream.core.group.consumer.expressions import begin_resolving, follow_expression
from millstream.core.group.consumer.reconcile import Reported, reconcile
from millstream.core.group.consumer.target import follow_epoch, follow_topics
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import NOTHING_OWNED, ConsumerMember, same_metadata
from millstream.core.group.outputs import ConsumerHeartbeat
from millstream.core.group.step import Step
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MemberAssignment,
)
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)

CLIENT_MAKES_ID_FROM = 1


def refusal(error: ErrorCode, message: str | None) -> ConsumerGroupHeartbeatResponse:
    """The response with an error only."""
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)


def check_request(step: Step, beat: ConsumerHeartbeat) -> None:
    """Check the request itself. Rejected with Kafka's messages."""
    request, assignors = beat.request, step.settings.consumer.assignors
    epoch = request.member_epoch
    if not request.member_id and (beat.version >= CLIENT_MAKES_ID_FROM or epoch > 0 or epoch == LEAVES):
        raise invalid("MemberId can't be empty.")
    if not request.group_id:
        raise invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise invalid("RackId can't be empty.")
    if epoch == JOINS:
        if request.rebalance_timeout_ms == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVES_FOR_A_WHILE:
        if request.instance_id is None:
            raise invalid("InstanceId can't be null.")
    elif epoch < LEAVES_FOR_A_WHILE:
        raise invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Rejected(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
            ErrorCode.UNSUPPORTED_ASSIGNOR,
        )


def is_quiet(step: Step, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the heartbeat reports nothing new, and there is nothing to send to the member."""
    member = group.members.get(request.member_id)
    return (
        member is not None
        and request.member_epoch == member.epoch
        and member.is_reconciled_to(group.epoch)
        and group.epoch == group.assignment_epoch
        and request.rebalance_timeout_ms == -1
        and request.instance_id is None
        and member.instance_id is None
        and request.rack_id is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and member.classic is None
        and group.checked_revision == step.topics.revision
        and not group.subscriptions.regex_counts
    )


def heartbeat(step: Step, change: GroupChange[ConsumerGroup], beat: ConsumerHeartbeat) -> None:
    """Handle the heartbeat of a member that does not leave. Rejected if it is refused."""
    request, group = beat.request, change.content
    if is_quiet(step, group, request) and not change.records:
        member = group.members[request.member_id]
        if member.client_id == beat.client_id and member.client_host == beat.client_host:
            renew(step, change.group, group, member)
            step.out.answer(beat.token, _answer(step, group, member, None))
            return
    check_room(step, group, request.member_id)
    before = _member(change, request, beat.new_member_id)
    member = _take_over(before, beat)
    changed = put_metadata(change, before, member)
    expression = follow_expression(step, change, before, member)
    follow_topics(step, change, bump=changed or expression.bumps)
    follow_epoch(step, change)
    changed = changed or expression.changed
    after = put_reconciled(step, change, _reported(request), subscription_changed=changed, of=member)
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    answered = None
    if request.member_epoch == JOINS or is_full or _partitions(after) != _partitions(before):
        answered = after

    def done(step: Step) -> None:
        renew(step, change.group, group, after)
        await_revocation(step, change.group, group, before, after)
        begin_resolving(step, group, expression.to_resolve, beat)
        step.out.answer(beat.token, _answer(step, group, after, answered))

    change.write(step, beat.token, done, refused(beat.token, refusal))


# The member


def static_member(group: ConsumerGroup, instance_id: str) -> ConsumerMember:
    """The member with an instance id. Rejected if it is unknown."""
    member_id = group.statics.get(instance_id)
    if member_id is None:
        raise Rejected(f"Instance id {instance_id} is unknown.", ErrorCode.UNKNOWN_MEMBER_ID)
    return group.members[member_id]


def throw_if_fenced(member: ConsumerMember, member_id: str) -> None:
    """Rejected if another member now has the instance id."""
    if member.member_id != member_id:
        raise Rejected(
            f"Static member {member_id} with instance id {member.instance_id} was fenced by member {member.member_id}.",
            ErrorCode.FENCED_INSTANCE_ID,
        )


def _member(
    change: GroupChange[ConsumerGroup], request: ConsumerGroupHeartbeatRequest, new_member_id: str
) -> ConsumerMember:
    """The member that sent the request, as it was before: a known one, or, if it joins, a new one or a static one's
    successor.
    """
    group = change.content
    member_id = request.member_id or new_member_id
    joins = request.member_epoch == JOINS
    if request.instance_id is None:
        if joins and member_id not in group.members:
            return ConsumerMember(member_id)
        member = known_member(group.members, group.group_id, member_id)
    elif joins:
        return _join_static(change, member_id, request.instance_id)
    else:
        member = static_member(group, request.instance_id)
        throw_if_fenced(member, member_id)
    _check_epoch(group, member, request)
    return member


def _join_static(change: GroupChange[ConsumerGroup], member_id: str, instance_id: str) -> ConsumerMember:
    group = change.content
    former_id = group.statics.get(instance_id)
    if former_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    former = group.members[former_id]
    if former.classic is None and former.epoch != LEAVES_FOR_A_WHILE:
        raise Rejected(
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {former_id} member.",
            ErrorCode.UNRELEASED_INSTANCE_ID,
        )
    return replace_static(change, former, member_id)


def replace_static(change: GroupChange[ConsumerGroup], former: ConsumerMember, member_id: str) -> ConsumerMember:
    """Give a static member's place, with what it owns and its target, to its successor."""
    group = change.content
    group_id = group.group_id
    target = group.target(former)
    successor = msgspec.structs.replace(former, member_id=member_id, epoch=JOINS, previous_epoch=JOINS)
    change.put_all(group.member_tombstones(former.member_id))
    change.put(ConsumerGroupMemberMetadataKey(group_id, member_id), successor.metadata_value())
    change.put(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), group.target_value(target))
    change.put(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), successor.current_value())
    return successor


def _check_epoch(group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch in (JOINS, member.epoch):
        return
    if epoch == member.previous_epoch and _owns_only(member, _reported(request)):
        return  # the response with the new epoch was lost
    raise fenced(group, member, epoch)


def _owns_only(member: ConsumerMember, reported: Reported) -> bool:
    if reported is None:
        return False
    return all(
        partition in member.assigned.get(topic_id, ())
        for topic_id, partitions in reported.items()
        for partition in partitions
    )


def _reported(request: ConsumerGroupHeartbeatRequest) -> Reported:
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: topic.partitions for topic in request.topic_partitions}


def _take_over(member: ConsumerMember, beat: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the facts of the request; what the request omits stays."""
    request = beat.request
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    assignor = request.server_assignor
    timeout_ms = request.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if assignor is None else assignor,
        topic_names=member.topic_names if names is None else frozenset(names),
        topic_regex=member.topic_regex if regex is None else regex,
        client_id=beat.client_id,
        client_host=beat.client_host,
        classic=None,
    )


def put_metadata(change: GroupChange[ConsumerGroup], before: ConsumerMember, member: ConsumerMember) -> bool:
    """Store a member's facts if they changed. Returns whether its topic names changed."""
    group = change.content
    if member.member_id not in group.members or not same_metadata(before, member):
        change.put(ConsumerGroupMemberMetadataKey(group.group_id, member.member_id), member.metadata_value())
    return before.topic_names != member.topic_names


def put_reconciled(
    step: Step,
    change: GroupChange[ConsumerGroup],
    reported: Reported,
    *,
    subscription_changed: bool,
    of: ConsumerMember,
) -> ConsumerMember:
    """Move a member towards its target, and store its new assignment. Returns the member after that."""
    group = change.content
    member = group.members[of.member_id]
    after = reconcile(group, member, reported, step.topics, subscription_changed=subscription_changed)
    if after != member:
        change.put(ConsumerGroupCurrentMemberAssignmentKey(group.group_id, after.member_id), after.current_value())
    return after


def _partitions(member: ConsumerMember) -> dict[bytes, set[int]]:
    return {topic_id: set(partitions) for topic_id, partitions in member.assigned.items()}


def _answer(
    step: Step, group: ConsumerGroup, member: ConsumerMember, answered: ConsumerMember | None
) -> ConsumerGroupHeartbeatResponse:
    """The member's epoch and, if ``answered`` is given, its assignment."""
    assignment = None
    if answered is not None:
        assignment = MemberAssignment(
            topic_partitions=[
                AssignedTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in answered.assigned.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=step.settings.consumer.heartbeat_interval_of(group.group_id),
        assignment=assignment,
    )


def away(member: ConsumerMember) -> ConsumerMember:
    """A static member that left for a while: it keeps what it owns."""
    return msgspec.structs.replace(member, epoch=LEAVES_FOR_A_WHILE, revoking=NOTHING_OWNED)
