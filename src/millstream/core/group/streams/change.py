"""A change of a streams group, and the deadlines of its members.

- Session: a member that is silent for ``group.streams.session.timeout.ms`` is removed.
- Rebalance: a member that must give tasks back is removed if it has not done so within its rebalance timeout.
- First assignment: a group that was empty assigns ``group.streams.initial.rebalance.delay.ms`` after its first member
  joined, so that members that start together share one assignment. A successor assigns at once.
"""

from collections.abc import Sequence
from typing import Final

from millstream.core.group.change import GroupChange
from millstream.core.group.consumer.install import end_classic
from millstream.core.group.deadlines import OFF, Deadline
from millstream.core.group.group import Group
from millstream.core.group.outputs import Key, StreamsGroupValue, Value
from millstream.core.group.step import Step
from millstream.core.group.streams_state.group import MemberTimers, StreamsGroup
from millstream.core.group.streams_state.member import MemberState, StreamsMember
from millstream.wire.stored import StreamsGroupKey

STREAMS_SESSION: Final = "streams session"
STREAMS_REBALANCE: Final = "streams rebalance"
STREAMS_FIRST_ASSIGNMENT: Final = "streams first assignment"
STREAMS_KINDS: Final = frozenset({STREAMS_SESSION, STREAMS_REBALANCE, STREAMS_FIRST_ASSIGNMENT})


class StreamsChange(GroupChange[StreamsGroupKey, StreamsGroupValue]):
    """The records that one request changes in ``streams``, the streams group of ``group``."""

    __slots__ = ("streams",)

    def __init__(self, group: Group, streams: StreamsGroup, before: Sequence[tuple[Key, Value | None]] = ()) -> None:
        """``before``: records that precede the group's own: the end of an empty classic group."""
        super().__init__(group, streams, before)
        self.streams = streams

    def show(self, step: Step) -> None:
        """Make the durable group the content of its holder."""
        if self.group.streams is not self.streams:
            end_classic(step, self.group)
            self.group.begin_streams(self.streams)
        self.group.follow_assigned()
        if not self.streams.members:
            self.streams.live.shutdown_by = None


def timers_of(holder: Group, streams: StreamsGroup, member_id: str) -> MemberTimers:
    """The timers of a member, created on first use."""
    timers = streams.live.timers.get(member_id)
    if timers is None:
        timers = streams.live.timers[member_id] = MemberTimers(
            Deadline(STREAMS_SESSION, holder, member_id), Deadline(STREAMS_REBALANCE, holder, member_id)
        )
    return timers


def renew(step: Step, holder: Group, streams: StreamsGroup, member_id: str) -> None:
    """The member is alive: let its session end one timeout from now."""
    timeout_ms = step.settings.streams.session_timeout_of(streams.group_id)
    step.after(timers_of(holder, streams, member_id).session, timeout_ms)


def await_tasks(step: Step, holder: Group, streams: StreamsGroup, before: StreamsMember, after: StreamsMember) -> None:
    """Give a member its rebalance timeout to give tasks back."""
    rebalance = timers_of(holder, streams, after.member_id).rebalance
    if after.state is not MemberState.UNREVOKED_TASKS:
        step.cancel(rebalance)
    elif after.revoking != before.revoking or before.state is not MemberState.UNREVOKED_TASKS:
        step.after(rebalance, after.rebalance_timeout_ms)


def forget_timers(step: Step, streams: StreamsGroup, member_id: str) -> None:
    """The member has been removed."""
    timers = streams.live.timers.pop(member_id, None)
    if timers is not None:
        step.cancel(timers.session)
        step.cancel(timers.rebalance)


def delay_first_assignment(step: Step, holder: Group, streams: StreamsGroup) -> None:
    """The first member joins an empty group: let others join before tasks are assigned."""
    delay_ms = step.settings.streams.initial_rebalance_delay_of(streams.group_id)
    live = streams.live
    if delay_ms <= 0 or is_delayed(streams):
        return
    live.first_assignment = Deadline(STREAMS_FIRST_ASSIGNMENT, holder)
    step.after(live.first_assignment, delay_ms)


def is_delayed(streams: StreamsGroup) -> bool:
    """Whether the group waits for more members before it assigns."""
    deadline = streams.live.first_assignment
    return deadline is not None and deadline.at_us != OFF


def start_timers(step: Step, holder: Group, streams: StreamsGroup) -> None:
    """Give every member of a loaded group one timeout to send a request."""
    for member in streams.members.values():
        renew(step, holder, streams, member.member_id)
        if member.state is MemberState.UNREVOKED_TASKS:
            step.after(timers_of(holder, streams, member.member_id).rebalance, member.rebalance_timeout_ms)
