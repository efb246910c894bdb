"""The deadlines of members.

- Session: a member that is silent for its session timeout is removed.
- Rebalance: a member that must revoke something is removed if it has not done so within its rebalance timeout.
- Join, sync: a classic member of a consumer group that must rejoin or sync is removed if it has not done so within its
  rebalance timeout.
"""

from typing import Any, Final, Protocol

from millstream.core.group.assigned_state.group import AnyGroup, MemberTimers
from millstream.core.group.assigned_state.member import LEAVES_FOR_A_WHILE, AssignedMember
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.step import Step

ASSIGNED_SESSION: Final = "assigned session"
ASSIGNED_REBALANCE: Final = "assigned rebalance"
ASSIGNED_JOIN: Final = "assigned join"
ASSIGNED_SYNC: Final = "assigned sync"


def timers_of(holder: Group, content: AnyGroup, member_id: str) -> MemberTimers:
    """The timers of a member, created on first use."""
    timers = content.timers.get(member_id)
    if timers is None:
        timers = content.timers[member_id] = MemberTimers(
            Deadline(ASSIGNED_SESSION, holder, member_id),
            Deadline(ASSIGNED_REBALANCE, holder, member_id),
            Deadline(ASSIGNED_JOIN, holder, member_id),
            Deadline(ASSIGNED_SYNC, holder, member_id),
        )
    return timers


def renew(step: Step, holder: Group, content: AnyGroup, member: AssignedMember) -> None:
    """The member is alive: let its session end one timeout from now."""
    timeout_ms = member.own_session_timeout_ms
    if timeout_ms is None:
        timeout_ms = step.settings.of(content).session_timeout_of(content.group_id)
    step.after(timers_of(holder, content, member.member_id).session, timeout_ms)


class Revoking(Protocol):
    """A member that gives back what others are to have."""

    @property
    def member_id(self) -> str: ...

    @property
    def rebalance_timeout_ms(self) -> int: ...

    @property
    def revoking(self) -> Any: ...

    @property
    def must_revoke(self) -> bool: ...


def await_revocation(step: Step, holder: Group, content: AnyGroup, before: Revoking, after: Revoking) -> None:
    """Give a member its rebalance timeout to revoke what it must."""
    rebalance = timers_of(holder, content, after.member_id).rebalance
    if not after.must_revoke:
        step.cancel(rebalance)
    elif after.revoking != before.revoking or not before.must_revoke:
        step.after(rebalance, after.rebalance_timeout_ms)


def forget_timers(step: Step, content: AnyGroup, member_id: str) -> None:
    """The member has been removed: cancel its timers."""
    timers = content.timers.pop(member_id, None)
    for deadline in () if timers is None else timers.all:
        step.cancel(deadline)


def start_timers(step: Step, holder: Group, content: AnyGroup) -> None:
    """Give every member of a loaded or converted group one timeout to send a request."""
    for member in content.members.values():
        renew(step, holder, content, member)
        # A member that left for a while has its session timeout to come back; a classic one is called to join again.
        awaited = member.epoch != LEAVES_FOR_A_WHILE and member.own_session_timeout_ms is None
        if member.must_revoke and awaited:
            step.after(timers_of(holder, content, member.member_id).rebalance, member.rebalance_timeout_ms)
