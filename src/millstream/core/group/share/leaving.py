"""Members of a share group that leave, by their own request or because their session ended.

The group epoch increases, and the other members get new targets with their next heartbeats. What the member acquired is
not released here: that is what the end of its share session does.
"""

from collections.abc import Callable

from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import ShareHeartbeat
from millstream.core.group.share.change import ShareChange, forget_session
from millstream.core.group.share.heartbeat import refusal, unknown_member
from millstream.core.group.share.target import next_epoch
from millstream.core.group.share_records.group import member_tombstones
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatResponse


def leave(step: Step, change: ShareChange, beat: ShareHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. Rejected if it is none."""
    request = beat.request
    if request.member_id not in change.share.members:
        raise unknown_member(change.share.group_id, request.member_id)
    answer = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def done(step: Step) -> None:
        step.out.answer(beat.token, answer)

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(beat.token, refusal(error, None))

    _remove(step, change, request.member_id, beat.token, done, failed)


def session_ended(step: Step, change: ShareChange, deadline: Deadline[Group]) -> None:
    """A member was silent for its session timeout: remove it. Repeated if that cannot be written."""
    share, member_id = change.share, deadline.member_id
    if share.sessions.get(member_id) is not deadline:
        return
    step.log(change.group, f"member {member_id} was silent for its session timeout and is removed")
    step.counts.expired_members += 1

    def done(step: Step) -> None:
        _ = step

    def failed(step: Step, error: ErrorCode) -> None:
        _ = error
        step.after(deadline, step.settings.share.heartbeat_interval_ms)

    _remove(step, change, member_id, None, done, failed)


def _remove(
    step: Step,
    change: ShareChange,
    member_id: str,
    token: Token | None,
    done: Callable[[Step], None],
    failed: Callable[[Step, ErrorCode], None],
) -> None:
    change.put_all(member_tombstones(change.share.group_id, member_id))
    next_epoch(step, change)

    def removed(step: Step) -> None:
        forget_session(step, change.share, member_id)
        done(step)

    change.write(step, token, removed, failed)
