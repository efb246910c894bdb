"""The target assignment of a streams group: when it is computed, and to what.

While the group epoch is ahead of the target assignment's epoch, the next heartbeat of any member computes the
assignment again, at most once in ``group.streams.assignment.interval.ms``, so that members that arrive together share
one computation. A group whose topics are not there assigns nothing.
"""

from typing import Final

from millstream.core.group.step import Step
from millstream.core.group.streams.change import StreamsChange, is_delayed
from millstream.core.group.streams.sticky import TaskMember, TaskSpec, assign_tasks
from millstream.core.group.streams_state.configured import Configured, Status
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.tasks import NOTHING, TaskSets
from millstream.wire.messages.streams_group_heartbeat import StreamsStatus
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)

_DELAYED: Final = StreamsStatus(
    Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay."
)
_TOO_EARLY: Final = StreamsStatus(
    Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."
)


def follow_epoch(step: Step, change: StreamsChange, configured: Configured) -> list[StreamsStatus]:
    """Compute the target assignment if the group epoch is ahead of it. Returns why that has to wait."""
    streams = change.streams
    if is_delayed(streams):
        return [_DELAYED]
    if streams.epoch <= streams.assignment_epoch:
        return []
    interval_ms = step.settings.streams.assignment_interval_of(streams.group_id)
    computed_ms = streams.assignment.assignment_timestamp
    # Negative: the clock was put back; do not wait for it.
    if computed_ms and 0 <= step.wall_ms - computed_ms < interval_ms:
        return [_TOO_EARLY]
    assign(step, change, configured)
    return []


def assign(step: Step, change: StreamsChange, configured: Configured) -> None:
    """Compute the target assignment of the group epoch."""
    streams = change.streams
    group_id = streams.group_id
    targets = _computed(step, streams, configured)
    for member_id in streams.members:
        target = targets.get(member_id, NOTHING)
        if streams.targets.get(member_id) != target:
            change.put(StreamsGroupTargetAssignmentMemberKey(group_id, member_id), target.value())
    change.put(
        StreamsGroupTargetAssignmentMetadataKey(group_id),
        StreamsGroupTargetAssignmentMetadataValue(streams.epoch, max(step.wall_ms, 1)),
    )


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
