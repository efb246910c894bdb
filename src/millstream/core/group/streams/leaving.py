"""Members of a streams group that leave, by their own request, or because a deadline was reached.

Their tasks are free at once. The group epoch increases, and the other members get new targets with their next
heartbeats. A member may ask all others to shut down as it leaves.
"""

from collections.abc import Callable
from typing import Final

from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import StreamsHeartbeat
from millstream.core.group.step import Step
from millstream.core.group.streams.change import STREAMS_REBALANCE, STREAMS_SESSION, StreamsChange, forget_timers
from millstream.core.group.streams.heartbeat import beaten, refusal, unknown_member
from millstream.core.group.streams.topics import next_epoch
from millstream.core.group.streams_state.group import member_tombstones
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse

_REASONS: Final = {
    STREAMS_SESSION: "was silent for its session timeout",
    STREAMS_REBALANCE: "did not give its tasks back in time",
}


def leave(step: Step, change: StreamsChange, beat: StreamsHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. Rejected if it is none."""
    request, streams = beat.request, change.streams
    if request.member_id not in streams.members:
        raise unknown_member(streams.group_id, request.member_id)
    answer = StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def done(step: Step) -> None:
        if request.shutdown_application and streams.members:
            streams.live.shutdown_by = streams.live.shutdown_by or request.member_id
        step.out.answer(beat.token, beaten(answer))

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(beat.token, refusal(error, None))

    _remove(step, change, request.member_id, beat.token, done, failed)


def time_is_over(step: Step, change: StreamsChange, deadline: Deadline[Group]) -> None:
    """A deadline of a member was reached: remove the member. Repeated if that cannot be written."""
    streams, member_id = change.streams, deadline.member_id
    timers = streams.live.timers.get(member_id)
    if timers is None or deadline not in (timers.session, timers.rebalance) or member_id not in streams.members:
        return
    step.log(change.group, f"member {member_id} {_REASONS[deadline.kind]} and is removed")
    step.counts.expired_members += 1

    def done(step: Step) -> None:
        _ = step

    def failed(step: Step, error: ErrorCode) -> None:
        _ = error
        step.after(deadline, step.settings.streams.heartbeat_interval_ms)

    _remove(step, change, member_id, None, done, failed)


def _remove(
    step: Step,
    change: StreamsChange,
    member_id: str,
    token: Token | None,
    done: Callable[[Step], None],
    failed: Callable[[Step, ErrorCode], None],
) -> None:
    streams = change.streams
    change.put_all(member_tombstones(streams.group_id, member_id))
    next_epoch(step, change, streams.metadata)

    def removed(step: Step) -> None:
        forget_timers(step, streams, member_id)
        done(step)

    change.write(step, token, removed, failed)
