"""Requests about consumer groups (KIP-848), as ``GroupCoordinator`` passes them on.

Each function collects the change of one request and lets the verb decide. If the verb refuses, the request is answered
with its error and nothing changes.
"""

from collections.abc import Callable
from typing import Final

from millstream.core.group.change import ChangePending
from millstream.core.group.consumer import classic
from millstream.core.group.consumer.change import Change
from millstream.core.group.consumer.describe import describe_consumer_group
from millstream.core.group.consumer.expressions import take_resolved
from millstream.core.group.consumer.heartbeat import check_request, refusal
from millstream.core.group.consumer.heartbeat import heartbeat as live
from millstream.core.group.consumer.leaving import leave as go
from millstream.core.group.consumer.leaving import time_is_over as remove_late
from millstream.core.group.consumer.migrate import ConversionPending, begin_classic_group, begin_consumer_group
from millstream.core.group.consumer.timers import start_timers
from millstream.core.group.consumer_state.group import ConsumerGroup, ConsumerGroupValue
from millstream.core.group.consumer_state.member import JOINS
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import (
    AlterShareOffsets,
    Commit,
    ConsumerHeartbeat,
    Delete,
    DeleteOffsets,
    DeleteShareOffsets,
    DescribeConsumer,
    ExpressionsResolved,
    Heartbeat,
    Input,
    Join,
    Leave,
    ShareHeartbeat,
    StateAnswered,
    StreamsHeartbeat,
    Sync,
)
from millstream.core.group.rebalance import join_error
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_storage import ConsumerGroupMetadataKey
from millstream.wire.stored import ConsumerGroupKey

GATED: Final = (ChangePending, ConversionPending)
"""Writes that the other requests of their group wait for."""


def waits_for(given: Input) -> str | None:
    """The group whose change in flight this input must wait for; None if it need not wait."""
    match given:
        case Heartbeat() | ConsumerHeartbeat() | Commit() | Join() | Sync() | Leave() | DeleteOffsets():
            return given.request.group_id
        case ShareHeartbeat() | AlterShareOffsets() | DeleteShareOffsets() | StreamsHeartbeat():
            return given.request.group_id
        case Delete() | ExpressionsResolved():
            return given.group_id
        case StateAnswered():
            return None if given.ask.is_exclusive else given.ask.group_id
        case _:
            return None


def token_of(given: Input) -> Token | None:
    """The token of a waiting input; None if no request waits for it."""
    match given:
        case Heartbeat() | ConsumerHeartbeat() | Commit() | Join() | Sync() | Leave() | DeleteOffsets() | Delete():
            return given.token
        case ShareHeartbeat() | AlterShareOffsets() | DeleteShareOffsets() | StreamsHeartbeat():
            return given.token
        case _:
            return None


# The consumer protocol


def heartbeat(step: Step, holder: Group | None, beat: ConsumerHeartbeat) -> None:
    """Handle a ConsumerGroupHeartbeat."""
    change: Change | None = None
    try:
        check_request(beat, step.settings.consumer.assignors)
        change = _change(step, holder, beat)
        if beat.request.member_epoch < JOINS:
            go(step, change, beat)
        else:
            live(step, change, beat)
    except Rejected as error:
        if change is not None:
            change.undo()
        step.out.answer(beat.token, refusal(error.code, error.message or None))


def _change(step: Step, holder: Group | None, beat: ConsumerHeartbeat) -> Change:
    """The change that the heartbeat starts. Rejected if the group does not exist and is not to be created."""
    group_id = beat.request.group_id
    epoch = beat.request.member_epoch
    if holder is None:
        if epoch == JOINS:
            return begin_consumer_group(step, Group(group_id, step.wall_ms))
        kind = "Group" if epoch < JOINS else "Consumer group"
        raise Rejected(f"{kind} {group_id} not found.", ErrorCode.GROUP_ID_NOT_FOUND)
    if holder.consumer is not None:
        return Change(holder, holder.consumer)
    if epoch != JOINS or holder.assigned is not None:
        raise Rejected(f"Group {group_id} is not a consumer group.", ErrorCode.GROUP_ID_NOT_FOUND)
    return begin_consumer_group(step, holder)


def describe(step: Step, holder: Group | None, given: DescribeConsumer) -> None:
    """Handle one group of a ConsumerGroupDescribe."""
    group = None if holder is None else holder.consumer
    default = step.settings.consumer.assignors[0]
    described = describe_consumer_group(
        given.group_id, group, is_known=holder is not None, topics=step.topics, default_assignor=default
    )
    step.out.answer(given.token, described)


def resolved(step: Step, holder: Group | None, found: ExpressionsResolved) -> None:
    """Process the resolved regular expressions of a group, which may be gone."""
    group = None if holder is None else holder.consumer
    if holder is None or group is None:
        return
    change = Change(holder, group)
    take_resolved(step, change, found)
    # If that fails, the expressions stay as they were; a later heartbeat resolves them again.
    change.write(step, None, unanswered, unanswered_failed)


def time_is_over(step: Step, deadline: Deadline[Group]) -> None:
    """A deadline of a member was reached."""
    group = deadline.group.consumer
    if group is not None:
        remove_late(step, Change(deadline.group, group), deadline)


# The classic protocol


def join(step: Step, holder: Group, given: Join, again: Callable[[Step], None]) -> None:
    """Handle a JoinGroup. ``again`` repeats it if the group became a classic one."""
    group = _group(holder)
    if group.members:
        classic.join(step, Change(holder, group), given)
    elif given.request.member_id:
        step.out.answer(given.token, join_error(given.request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
    else:

        def failed(step: Step, error: ErrorCode) -> None:
            step.out.answer(given.token, join_error("", error))

        begin_classic_group(step, holder, given.token, again, failed)


def sync(step: Step, holder: Group, given: Sync) -> None:
    """Handle a SyncGroup."""
    classic.sync(step, holder, _group(holder), given)


def classic_heartbeat(step: Step, holder: Group, given: Heartbeat) -> None:
    """Handle a Heartbeat."""
    classic.heartbeat(step, holder, _group(holder), given)


def leave(step: Step, holder: Group, given: Leave) -> None:
    """Handle a LeaveGroup."""
    classic.leave(step, Change(holder, _group(holder)), given)


def _group(holder: Group) -> ConsumerGroup:
    assert holder.consumer is not None
    return holder.consumer


# Loading


def replay(holder: Group, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
    """Apply a record of the log."""
    group = holder.consumer
    if group is None:
        if value is None:
            return
        group = ConsumerGroup(holder.group_id)
        holder.begin_consumer(group)
    group.apply(key, value)
    if value is None and isinstance(key, ConsumerGroupMetadataKey) and not group.members:
        holder.begin_empty()


def loaded(step: Step, holder: Group) -> None:
    """The log has been read. From now on members have their session timeout to send a request."""
    group = _group(holder)
    # If a member joined during the group's deletion, the group's epoch record is deleted, and the later records are
    # there.
    group.epoch = max(group.epoch, group.assignment_epoch)
    holder.begin_consumer(group)
    holder.follow_assigned()
    start_timers(step, holder, group)
