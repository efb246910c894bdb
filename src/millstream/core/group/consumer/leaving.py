"""Members of a consumer group that leave: by their own request, by a deadline, or removed by an administrator.

A static member may leave for a while (epoch -2): it keeps its place and what it owns until its session ends. If all
remaining members use the classic protocol, the group becomes a classic group again (``migrate``).
"""

from collections.abc import Sequence

from millstream.core.group.assigned.change import Done, Failed, GroupChange
from millstream.core.group.assigned.leaving import remove_members
from millstream.core.group.assigned.requests import known_member, refused
from millstream.core.group.assigned.timers import timers_of
from millstream.core.group.assigned_state.member import LEAVES_FOR_A_WHILE
from millstream.core.group.consumer.expressions import drop_unused
from millstream.core.group.consumer.heartbeat import away, refusal, static_member, throw_if_fenced
from millstream.core.group.consumer.migrate import begin_downgrade, may_downgrade
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.member import Token
from millstream.core.group.outputs import ConsumerHeartbeat
from millstream.core.group.step import Step
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from millstream.wire.messages.consumer_group_storage import ConsumerGroupCurrentMemberAssignmentKey


def leave(step: Step, change: GroupChange[ConsumerGroup], beat: ConsumerHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. Rejected if it is refused."""
    request, group = beat.request, change.content
    if request.instance_id is None:
        member = known_member(group.members, group.group_id, request.member_id)
    else:
        member = static_member(group, request.instance_id)
        throw_if_fenced(member, request.member_id)
    answer = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def done(step: Step) -> None:
        step.out.answer(beat.token, answer)

    failed = refused(beat.token, refusal)
    if request.member_epoch == LEAVES_FOR_A_WHILE:
        key = ConsumerGroupCurrentMemberAssignmentKey(group.group_id, member.member_id)
        change.put(key, away(member).current_value())

        def gone(step: Step) -> None:
            # It has nothing left to revoke; only its session limits its absence.
            step.cancel(timers_of(change.group, group, member.member_id).rebalance)
            done(step)

        change.write(step, beat.token, gone, failed)
    else:
        remove(step, change, [member.member_id], beat.token, done, failed)


def remove(
    step: Step,
    change: GroupChange[ConsumerGroup],
    member_ids: Sequence[str],
    token: Token | None,
    done: Done,
    failed: Failed,
) -> None:
    """Remove members. ``done`` or ``failed`` is called when that is written or failed."""
    leaving = [change.content.members[member_id] for member_id in member_ids]
    if may_downgrade(step, change.content, leaving):
        begin_downgrade(step, change, leaving, token, done, failed)
    else:
        remove_members(step, change, member_ids, token, done, failed, also=lambda: drop_unused(change))
