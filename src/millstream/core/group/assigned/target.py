"""The group epoch and the target assignment: what is the same in each type of group.

While the group epoch is ahead of the target assignment's epoch, the next heartbeat of any member computes the
assignment again, at most once in ``group.<type>.assignment.interval.ms``, so that members that arrive together share
one computation.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned_state.group import AnyGroup
from millstream.core.group.step import Step
from millstream.wire.messages.assigned_group_storage import GroupEpochValue

T = TypeVar("T")


def next_epoch(step: Step, change: GroupChange[Any], metadata: GroupEpochValue | None = None) -> None:
    """Increase the group epoch. ``metadata`` is the record of the next one, if that is known already."""
    content: AnyGroup = change.content
    value = content.next_metadata(step.topics) if metadata is None else metadata
    change.put(content.records.epoch_key(content.group_id), value)
    step.counts.rebalances += 1


def is_too_early(step: Step, content: AnyGroup) -> bool:
    """Whether the last target assignment is so new that the next one must wait."""
    assigned_ms = content.assignment.assignment_timestamp
    # Negative: the clock was put back; do not wait for it.
    since_ms = step.wall_ms - assigned_ms
    return bool(assigned_ms) and 0 <= since_ms < step.settings.of(content).assignment_interval_of(content.group_id)


def put_targets(step: Step, change: GroupChange[Any], targets: Mapping[str, T], nothing: T) -> None:
    """Store the target assignment of the group epoch. A member without a target is to have ``nothing``."""
    content: AnyGroup = change.content
    types, group_id = content.records, content.group_id
    for member_id in content.members:
        target = targets.get(member_id, nothing)
        if content.targets.get(member_id) != target:
            change.put(types.target_key(group_id, member_id), content.target_value(target))
    change.put(types.assignment_key(group_id), types.assignment(content.epoch, max(step.wall_ms, 1)))
