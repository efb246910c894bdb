"""Members that leave, by their own request or because a deadline was reached.

What they had is free at once. The group epoch increases, and the other members get new targets with their next
heartbeats.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from millstream.core.group.assigned.change import Done, Failed, GroupChange
from millstream.core.group.assigned.target import next_epoch
from millstream.core.group.assigned.timers import (
    ASSIGNED_JOIN,
    ASSIGNED_REBALANCE,
    ASSIGNED_SESSION,
    ASSIGNED_SYNC,
    forget_timers,
)
from millstream.core.group.assigned_state.group import AnyGroup
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.step import Step, unanswered
from millstream.model.error_code import ErrorCode

Remove: TypeAlias = Callable[[Step, GroupChange[Any], Sequence[str], Token | None, Done, Failed], None]
"""Removes members by their ids. The token is that of the request that waits for it, if any."""

_REASONS: Final = {
    ASSIGNED_SESSION: "was silent for its session timeout",
    ASSIGNED_REBALANCE: "did not give its {unit} back in time",
    ASSIGNED_JOIN: "did not rejoin in time",
    ASSIGNED_SYNC: "did not fetch its assignment in time",
}


def remove_members(
    step: Step,
    change: GroupChange[Any],
    member_ids: Sequence[str],
    token: Token | None,
    done: Done,
    failed: Failed,
    also: Callable[[], None] | None = None,
) -> None:
    """Remove members. ``done`` or ``failed`` is called when that is written or failed. ``also`` decides what else
    follows, before the group epoch increases.
    """
    content: AnyGroup = change.content
    for member_id in member_ids:
        change.put_all(content.member_tombstones(member_id))
    if also is not None:
        also()
    next_epoch(step, change)

    def removed(step: Step) -> None:
        for member_id in member_ids:
            forget_timers(step, content, member_id)
        done(step)

    change.write(step, token, removed, failed)


def time_is_over(step: Step, change: GroupChange[Any], deadline: Deadline[Group], remove: Remove) -> None:
    """A deadline of a member was reached: remove the member. Repeated if that cannot be written."""
    content: AnyGroup = change.content
    member_id = deadline.member_id
    timers = content.timers.get(member_id)
    if member_id not in content.members:
        forget_timers(step, content, member_id)  # another member has taken its place
        return
    if timers is None or deadline not in timers.all:
        return
    step.log(change.group, f"member {member_id} {_REASONS[deadline.kind].format(unit=content.unit)} and is removed")
    step.counts.expired_members += 1

    def failed(step: Step, error: ErrorCode) -> None:
        _ = error
        step.after(deadline, step.settings.of(content).heartbeat_interval_ms)

    remove(step, change, [member_id], None, unanswered, failed)
