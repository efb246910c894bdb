"""The target assignment of a streams group: when it is computed, and to what.

A group that was empty assigns ``group.streams.initial.rebalance.delay.ms`` after its first member joined, so that
members that start together share one assignment; a successor assigns at once. A group whose topics are not there
assigns nothing.
"""

from typing import Final

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.target import is_too_early, put_targets
from millstream.core.group.deadlines import OFF, Deadline
from millstream.core.group.group import Group
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.core.group.streams.sticky import TaskMember, TaskSpec, assign_tasks
from millstream.core.group.streams.topics import configured_on
from millstream.core.group.streams_state.configured import Configured, Status
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.tasks import NOTHING, TaskSets
from millstream.wire.messages.streams_group_heartbeat import StreamsStatus

STREAMS_FIRST_ASSIGNMENT: Final = "streams first assignment"
_DELAYED: Final = StreamsStatus(
    Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay."
)
_TOO_EARLY: Final = StreamsStatus(
    Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."
)


def follow_epoch(step: Step, change: GroupChange[StreamsGroup], configured: Configured) -> list[StreamsStatus]:
    """Compute the target assignment if the group epoch is ahead of it. Returns why that has to wait."""
    streams = change.content
    if is_delayed(streams):
        return [_DELAYED]
    if streams.epoch <= streams.assignment_epoch:
        return []
    if is_too_early(step, streams):
        return [_TOO_EARLY]
    put_targets(step, change, _computed(step, streams, configured), NOTHING)
    return []


def delay_first_assignment(step: Step, holder: Group, streams: StreamsGroup) -> None:
    """The first member joins an empty group: let others join before tasks are assigned."""
    delay_ms = step.settings.streams.initial_rebalance_delay_of(streams.group_id)
    if delay_ms > 0 and not is_delayed(streams):
        streams.live.first_assignment = Deadline(STREAMS_FIRST_ASSIGNMENT, holder)
        step.after(streams.live.first_assignment, delay_ms)


def is_delayed(streams: StreamsGroup) -> bool:
    """Whether the group waits for more members before it assigns."""
    deadline = streams.live.first_assignment
    return deadline is not None and deadline.at_us != OFF


def assign_at_last(step: Step, holder: Group, streams: StreamsGroup, deadline: Deadline[Group]) -> None:
    """The group has waited long enough. If the assignment cannot be written, the next heartbeat makes it."""
    if streams.live.first_assignment is not deadline:
        return
    streams.live.first_assignment = None
    if streams.members and streams.epoch > streams.assignment_epoch:
        change = GroupChange(holder, streams)
        put_targets(step, change, _computed(step, streams, configured_on(step, streams)), NOTHING)
        change.write(step, None, unanswered, unanswered_failed)


def _computed(step: Step, streams: StreamsGroup, configured: Configured) -> dict[str, TaskSets]:
    topology = streams.topology
    if configured.problem is not None or topology is None:
        return {}
    members = {
        member_id: TaskMember(member.process_id, streams.target(member_id))
        for member_id, member in streams.members.items()
    }
    subtopologies = {
        key: TaskSpec(tasks, bool(topology.subtopologies[key].state_changelog_topics))
        for key, tasks in configured.tasks.items()
    }
    return assign_tasks(members, subtopologies, step.settings.streams.standby_replicas_of(streams.group_id))
