"""Requests about streams groups (KIP-1071), as ``GroupCoordinator`` passes them on.

An empty classic group becomes a streams group when the first member joins, with its committed offsets, and an empty
streams group a classic one. Groups of other kinds do not change.
"""

from millstream.core.group.change import Done
from millstream.core.group.consumer.migrate import begin_classic_group
from millstream.core.group.deadlines import Deadline
from millstream.core.group.delete import is_being_deleted
from millstream.core.group.group import Group
from millstream.core.group.image import group_tombstone
from millstream.core.group.outputs import DescribeStreams, Join, Key, StreamsGroupValue, StreamsHeartbeat, Value
from millstream.core.group.rebalance import join_error
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.core.group.streams.change import STREAMS_FIRST_ASSIGNMENT, StreamsChange, start_timers
from millstream.core.group.streams.describe import describe_streams_group
from millstream.core.group.streams.heartbeat import check_request, refusal
from millstream.core.group.streams.heartbeat import heartbeat as live
from millstream.core.group.streams.leaving import leave as go
from millstream.core.group.streams.leaving import time_is_over as remove_late
from millstream.core.group.streams.target import assign
from millstream.core.group.streams.topics import configured_on
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import JOINS
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_storage import StreamsGroupMetadataKey
from millstream.wire.stored import StreamsGroupKey


def heartbeat(step: Step, holder: Group | None, beat: StreamsHeartbeat) -> None:
    """Handle a StreamsGroupHeartbeat."""
    change: StreamsChange | None = None
    try:
        check_request(beat.request)
        change = _change(step, holder, beat)
        if beat.request.member_epoch < JOINS:
            go(step, change, beat)
        else:
            live(step, change, beat)
    except Rejected as error:
        if change is not None:
            change.undo()
        step.out.answer(beat.token, refusal(error.code, error.message or None))


def _change(step: Step, holder: Group | None, beat: StreamsHeartbeat) -> StreamsChange:
    """The change that the heartbeat starts. Rejected if the group does not exist and is not to be created."""
    group_id, epoch = beat.request.group_id, beat.request.member_epoch
    if holder is None:
        if epoch == JOINS:
            return StreamsChange(Group(group_id, step.wall_ms), StreamsGroup(group_id))
        kind = "Group" if epoch < JOINS else "Streams group"
        raise Rejected(f"{kind} {group_id} not found.", ErrorCode.GROUP_ID_NOT_FOUND)
    if holder.streams is not None:
        if epoch == JOINS and is_being_deleted(step, holder):
            # The topology that a member would find here is about to be deleted.
            raise Rejected("The group is being deleted.", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return StreamsChange(holder, holder.streams)
    if epoch != JOINS or holder.assigned is not None or not holder.is_empty:
        raise Rejected(f"Group {group_id} is not a streams group.", ErrorCode.GROUP_ID_NOT_FOUND)
    before: list[tuple[Key, Value | None]] = [group_tombstone(group_id)]
    return StreamsChange(holder, StreamsGroup(group_id), before)


def describe(step: Step, holder: Group | None, given: DescribeStreams) -> None:
    """Handle one group of a StreamsGroupDescribe."""
    streams = None if holder is None else holder.streams
    step.out.answer(given.token, describe_streams_group(step, given.group_id, streams, is_known=holder is not None))


def join(step: Step, holder: Group, given: Join, again: Done) -> None:
    """Handle a JoinGroup: an empty group becomes a classic one, and ``again`` repeats the request."""
    assert holder.streams is not None
    if holder.streams.members:
        step.out.answer(given.token, join_error("", ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif given.request.member_id:
        step.out.answer(given.token, join_error(given.request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
    else:

        def failed(step: Step, error: ErrorCode) -> None:
            step.out.answer(given.token, join_error("", error))

        begin_classic_group(step, holder, given.token, again, failed)


def time_is_over(step: Step, deadline: Deadline[Group]) -> None:
    """A deadline of a member, or of the group, was reached."""
    streams = deadline.group.streams
    if streams is None:
        return
    change = StreamsChange(deadline.group, streams)
    if deadline.kind == STREAMS_FIRST_ASSIGNMENT:
        _assign_at_last(step, change, deadline)
    else:
        remove_late(step, change, deadline)


def _assign_at_last(step: Step, change: StreamsChange, deadline: Deadline[Group]) -> None:
    """The group has waited long enough. If the assignment cannot be written, the next heartbeat makes it."""
    streams = change.streams
    if streams.live.first_assignment is not deadline:
        return
    streams.live.first_assignment = None
    if streams.members and streams.epoch > streams.assignment_epoch:
        assign(step, change, configured_on(step, streams))
        change.write(step, None, unanswered, unanswered_failed)


# Loading


def replay(holder: Group, key: StreamsGroupKey, value: StreamsGroupValue | None) -> None:
    """Apply a record of the log."""
    streams = holder.streams
    if streams is None:
        if value is None:
            return
        streams = StreamsGroup(holder.group_id)
        holder.begin_streams(streams)
    streams.apply(key, value)
    if value is None and isinstance(key, StreamsGroupMetadataKey) and not streams.members:
        holder.begin_empty()


def loaded(step: Step, holder: Group) -> None:
    """The log has been read. From now on members have their session timeout to send a request."""
    streams = holder.streams
    assert streams is not None
    holder.follow_assigned()
    start_timers(step, holder, streams)
