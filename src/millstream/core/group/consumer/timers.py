"""The deadlines of members: session, revocation, and the requests that classic members must send.

- Session: a member that is silent for ``group.consumer.session.timeout.ms`` (a classic member's own timeout) is
  removed.
- Rebalance: a member that must revoke partitions is removed if it has not done so within its rebalance timeout.
- Join, sync: a classic member that must rejoin or sync is removed if it has not done so within its rebalance timeout.
"""

from typing import Final

from millstream.core.group.consumer_state.group import ConsumerGroup, MemberTimers
from millstream.core.group.consumer_state.member import LEAVES_FOR_A_WHILE, ConsumerMember, MemberState
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.step import Step

CONSUMER_SESSION: Final = "consumer session"
CONSUMER_REBALANCE: Final = "consumer rebalance"
CONSUMER_JOIN: Final = "consumer join"
CONSUMER_SYNC: Final = "consumer sync"
CONSUMER_KINDS: Final = frozenset({CONSUMER_SESSION, CONSUMER_REBALANCE, CONSUMER_JOIN, CONSUMER_SYNC})


def timers_of(holder: Group, group: ConsumerGroup, member_id: str) -> MemberTimers:
    """The timers of a member, created on first use."""
    timers = group.timers.get(member_id)
    if timers is None:
        timers = group.timers[member_id] = MemberTimers(
            Deadline(CONSUMER_SESSION, holder, member_id),
            Deadline(CONSUMER_REBALANCE, holder, member_id),
            Deadline(CONSUMER_JOIN, holder, member_id),
            Deadline(CONSUMER_SYNC, holder, member_id),
        )
    return timers


def renew(step: Step, holder: Group, group: ConsumerGroup, member: ConsumerMember) -> None:
    """The member is alive: let its session end one timeout from now."""
    if member.classic is not None:
        timeout_ms = member.classic.session_timeout_ms
    else:
        timeout_ms = step.settings.consumer.session_timeout_of(group.group_id)
    step.after(timers_of(holder, group, member.member_id).session, timeout_ms)


def await_revocation(step: Step, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> None:
    """Give a member of the consumer protocol its rebalance timeout to revoke partitions."""
    timers = group.timers[after.member_id]
    if after.state is not MemberState.UNREVOKED_PARTITIONS:
        step.cancel(timers.rebalance)
    elif after.revoking != before.revoking or before.state is not MemberState.UNREVOKED_PARTITIONS:
        step.after(timers.rebalance, after.rebalance_timeout_ms)


def forget_timers(step: Step, group: ConsumerGroup, member_id: str) -> None:
    """Cancel the timers of a removed member."""
    timers = group.timers.pop(member_id, None)
    if timers is not None:
        for deadline in (timers.session, timers.rebalance, timers.join, timers.sync):
            step.cancel(deadline)


def start_timers(step: Step, holder: Group, group: ConsumerGroup) -> None:
    """Give every member of a loaded or converted group one timeout to send a request."""
    for member in group.members.values():
        renew(step, holder, group, member)
        away = member.epoch == LEAVES_FOR_A_WHILE  # it has its session timeout to come back
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None and not away:
            step.after(timers_of(holder, group, member.member_id).rebalance, member.rebalance_timeout_ms)
