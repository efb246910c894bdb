"""Turns a group, classic or new, into a consumer group.

Requests that wait for a classic rebalance are answered REBALANCE_IN_PROGRESS. Their members rejoin, and find the
consumer group.
"""

from millstream.core.group.consumer.group import ConsumerGroup
from millstream.core.group.consumer.timers import start_timers
from millstream.core.group.group import Group
from millstream.core.group.rebalance import answer_join, answer_sync, join_error
from millstream.core.group.turn import Turn
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupResponse


def show(turn: Turn, holder: Group, group: ConsumerGroup) -> None:
    """Make the durable ``group`` the content of its holder."""
    if holder.consumer is not group:
        end_classic(turn, holder)
        holder.begin_consumer(group)
        start_timers(turn, holder, group)
    holder.follow_consumer()


def end_classic(turn: Turn, holder: Group) -> None:
    """End the classic group: answer its parked requests, and cancel its deadlines."""
    for member in holder.members.values():
        answer_join(turn, holder, member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        turn.cancel(member.session)
    for deadline in holder.pending_joins.values():
        turn.cancel(deadline)
    turn.cancel(holder.join_deadline)
    turn.cancel(holder.sync_deadline)
