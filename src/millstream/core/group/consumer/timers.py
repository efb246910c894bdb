"""The deadlines of members: the session, giving partitions back, and what classic members are waited for.

- Session: ``group.consumer.session.timeout.ms`` of silence (a classic member's own timeout), then the member goes.
- Rebalance: a member that was told to give partitions back does so within its rebalance timeout, or goes.
- Join, sync: a classic member that has to rejoin, or that has joined and has yet to fetch its assignment, does so
  within its rebalance timeout, or goes.
"""

from typing import Final

from millstream.core.group.consumer.group import ConsumerGroup, MemberTimers
from millstream.core.group.consumer.member import LEAVES_FOR_A_WHILE, ConsumerMember, MemberState
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.turn import Turn

CONSUMER_SESSION: Final = "consumer session"
CONSUMER_REBALANCE: Final = "consumer rebalance"
CONSUMER_JOIN: Final = "consumer join"
CONSUMER_SYNC: Final = "consumer sync"
CONSUMER_KINDS: Final = frozenset({CONSUMER_SESSION, CONSUMER_REBALANCE, CONSUMER_JOIN, CONSUMER_SYNC})


def timers_of(holder: Group, group: ConsumerGroup, member_id: str) -> MemberTimers:
    """The timers of a member, made when first needed."""
    timers = group.timers.get(member_id)
    if timers is None:
        timers = group.timers[member_id] = MemberTimers(
            Deadline(CONSUMER_SESSION, holder, member_id),
            Deadline(CONSUMER_REBALANCE, holder, member_id),
            Deadline(CONSUMER_JOIN, holder, member_id),
            Deadline(CONSUMER_SYNC, holder, member_id),
        )
    return timers


def renew(turn: Turn, holder: Group, group: ConsumerGroup, member: ConsumerMember) -> None:
    """The member is alive: its session ends one timeout from now."""
    if member.classic is not None:
        timeout_ms = member.classic.session_timeout_ms
    else:
        timeout_ms = turn.settings.consumer.session_timeout_of(group.group_id)
    turn.after(timers_of(holder, group, member.member_id).session, timeout_ms)


def await_revocation(turn: Turn, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> None:
    """A member of the consumer protocol has its rebalance timeout to give back what it was told to."""
    timers = group.timers[after.member_id]
    if after.state is not MemberState.UNREVOKED_PARTITIONS:
        turn.cancel(timers.rebalance)
    elif after.revoking != before.revoking or before.state is not MemberState.UNREVOKED_PARTITIONS:
        turn.after(timers.rebalance, after.rebalance_timeout_ms)


def forget_timers(turn: Turn, group: ConsumerGroup, member_id: str) -> None:
    """The member is gone."""
    timers = group.timers.pop(member_id, None)
    if timers is not None:
        for deadline in (timers.session, timers.rebalance, timers.join, timers.sync):
            turn.cancel(deadline)


def start_timers(turn: Turn, holder: Group, group: ConsumerGroup) -> None:
    """The group was just loaded, or taken over: everybody has one timeout to show up."""
    for member in group.members.values():
        renew(turn, holder, group, member)
        away = member.epoch == LEAVES_FOR_A_WHILE  # it has its session timeout to come back
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None and not away:
            turn.after(timers_of(holder, group, member.member_id).rebalance, member.rebalance_timeout_ms)
