"""Turns a group, classic or new, into a consumer group.

Requests that wait for a classic rebalance are answered REBALANCE_IN_PROGRESS. Their members rejoin, and find the
consumer group.
"""

from millstream.core.group.consumer.timers import start_timers
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.group import Group
from millstream.core.group.rebalance import answer_join, answer_sync, join_error
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupResponse


def show(step: Step, holder: Group, group: ConsumerGroup) -> None:
    """Make the durable ``group`` the content of its holder."""
    if holder.consumer is not group:
        end_classic(step, holder)
        holder.begin_consumer(group)
        start_timers(step, holder, group)
    holder.follow_assigned()


def end_classic(step: Step, holder: Group) -> None:
    """End the classic group: answer its parked requests, and cancel its deadlines."""
    for member in holder.members.values():
        answer_join(step, holder, member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        answer_sync(step, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        step.cancel(member.session)
    for deadline in holder.pending_joins.values():
        step.cancel(deadline)
    step.cancel(holder.rebalance.join_deadline)
    step.cancel(holder.rebalance.sync_deadline)
