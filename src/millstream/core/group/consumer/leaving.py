"""Members that leave: by their own request, by a deadline, or removed by an administrator.

Their partitions are free at once. The group epoch increases, and the other members get new targets with their next
heartbeats. A static member may leave for a while (epoch -2): it keeps its place and what it owns until its session
ends. If all remaining members use the classic protocol, the group becomes a classic group again (``migrate``).
"""

from collections.abc import Callable, Sequence

from millstream.core.group.consumer.change import Change
from millstream.core.group.consumer.expressions import drop_unused
from millstream.core.group.consumer.heartbeat import (
    away,
    left,
    refusal,
    static_member,
    throw_if_fenced,
    unknown_member,
)
from millstream.core.group.consumer.migrate import begin_downgrade, may_downgrade
from millstream.core.group.consumer.target import after_departure
from millstream.core.group.consumer.timers import (
    CONSUMER_JOIN,
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    forget_timers,
    timers_of,
)
from millstream.core.group.consumer_state.group import ConsumerGroup, member_tombstones
from millstream.core.group.consumer_state.member import LEAVES_FOR_A_WHILE, ConsumerMember
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import ConsumerHeartbeat
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_storage import ConsumerGroupCurrentMemberAssignmentKey


def leave(step: Step, change: Change, beat: ConsumerHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. Rejected if it is refused."""
    request, group = beat.request, change.consumer
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise unknown_member(group.group_id, request.member_id)
    else:
        member = static_member(group, request.instance_id)
        throw_if_fenced(member, request.member_id)
    answer = left(member.member_id, request.member_epoch)

    def done(step: Step) -> None:
        step.out.answer(beat.token, answer)

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(beat.token, refusal(error, None))

    if request.member_epoch == LEAVES_FOR_A_WHILE:
        key = ConsumerGroupCurrentMemberAssignmentKey(group.group_id, member.member_id)
        change.put(key, away(member).current_value())

        def gone(step: Step) -> None:
            # It has nothing left to revoke; only its session limits its absence.
            step.cancel(timers_of(change.group, group, member.member_id).rebalance)
            done(step)

        change.write(step, beat.token, gone, failed)
    else:
        remove_members(step, change, [member], beat.token, done, failed)


def remove_members(
    step: Step,
    change: Change,
    members: Sequence[ConsumerMember],
    token: Token | None,
    done: Callable[[Step], None],
    failed: Callable[[Step, ErrorCode], None],
) -> None:
    """Remove members. ``done`` or ``failed`` is called when that is written or failed."""
    group = change.consumer
    if may_downgrade(step, group, members):
        begin_downgrade(step, change, members, token, done, failed)
        return
    for member in members:
        change.put_all(member_tombstones(group.group_id, member.member_id))
    drop_unused(change)
    after_departure(step, change)

    def removed(step: Step) -> None:
        for member in members:
            forget_timers(step, group, member.member_id)
        done(step)

    change.write(step, token, removed, failed)


_REASONS = {
    CONSUMER_SESSION: "was silent for its session timeout",
    CONSUMER_REBALANCE: "did not give its partitions back in time",
    CONSUMER_JOIN: "did not rejoin in time",
}


def time_is_over(step: Step, change: Change, deadline: Deadline[Group]) -> None:
    """A deadline of a member was reached: remove the member. Repeated if that cannot be written."""
    group, member_id = change.consumer, deadline.member_id
    member = group.members.get(member_id)
    if member is None:
        forget_timers(step, group, member_id)  # another member has taken its place
        return
    if not _is_current(group, deadline):
        return
    reason = _REASONS.get(deadline.kind, "did not fetch its assignment in time")
    step.log(change.group, f"member {member_id} {reason} and is removed")
    step.counts.expired_members += 1

    def done(step: Step) -> None:
        _ = step

    def failed(step: Step, error: ErrorCode) -> None:
        _ = error
        step.after(deadline, step.settings.consumer.heartbeat_interval_ms)

    remove_members(step, change, [member], None, done, failed)


def _is_current(group: ConsumerGroup, deadline: Deadline[Group]) -> bool:
    timers = group.timers.get(deadline.member_id)
    return timers is not None and deadline in (timers.session, timers.rebalance, timers.join, timers.sync)
