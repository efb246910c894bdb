"""The group epoch and the target assignment of a share group: when they change, and to what.

The group epoch increases when a member joins, leaves or changes its subscription, when the subscribed topics change,
and when partitions whose share state exists have no member. While it is ahead of the target assignment's epoch, the
next heartbeat of any member computes the assignment again, at most once in ``group.share.assignment.interval.ms``, so
that members that arrive together share one computation. A target that gives nothing to any member delays no other.
"""

from millstream.core.group.assign.simple import Assignable, assign_simple
from millstream.core.group.assign.spec import NOTHING, Subscriber
from millstream.core.group.consumer_state.topics import Topics, metadata_hash
from millstream.core.group.share.change import ShareChange
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.member import stored
from millstream.core.group.step import Step
from millstream.wire.messages.share_group_storage import (
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)


def follow_topics(step: Step, change: ShareChange, *, bump: bool) -> bool:
    """Increase the group epoch if ``bump``, or if the subscribed topics have changed. Returns whether it did."""
    share = change.share
    if not bump and metadata_hash(share.subscribed_names(), step.topics.by_name) == share.metadata_hash:
        return False
    next_epoch(step, change)
    return True


def next_epoch(step: Step, change: ShareChange) -> None:
    """Increase the group epoch, and note the topics as they are."""
    share = change.share
    now = metadata_hash(share.subscribed_names(), step.topics.by_name)
    change.put(ShareGroupMetadataKey(share.group_id), ShareGroupMetadataValue(share.epoch + 1, now))
    step.counts.rebalances += 1


def is_incomplete(share: ShareGroup, topics: Topics) -> bool:
    """Whether the target assignment is up to date by its epoch, but not in its partitions."""
    if not share.members or share.assignment_epoch < share.epoch:
        return False
    assigned: dict[bytes, set[int]] = {}
    for target in share.targets.values():
        for topic_id, partitions in target.items():
            assigned.setdefault(topic_id, set()).update(partitions)
    return any(assigned.get(topic_id) != set(partitions) for topic_id, partitions in _assignable(share, topics).items())


def follow_epoch(step: Step, change: ShareChange) -> None:
    """Compute the target assignment if the group epoch is ahead of it and the interval has passed."""
    share = change.share
    if share.epoch <= share.assignment_epoch:
        return
    interval_ms = step.settings.share.assignment_interval_of(share.group_id)
    since_ms = step.wall_ms - share.assignment_ms
    # Negative: the clock was put back; do not wait for it.
    if share.assignment_ms and any(share.targets.values()) and 0 <= since_ms < interval_ms:
        return
    members = {
        member_id: Subscriber(share.topic_ids_of(member, step.topics), share.targets.get(member_id, NOTHING))
        for member_id, member in share.members.items()
    }
    assignment = assign_simple(members, _assignable(share, step.topics))
    group_id = share.group_id
    for member_id in share.members:
        target = assignment[member_id]
        if share.targets.get(member_id) != target:
            change.put(
                ShareGroupTargetAssignmentMemberKey(group_id, member_id),
                ShareGroupTargetAssignmentMemberValue(stored(target)),
            )
    change.put(
        ShareGroupTargetAssignmentMetadataKey(group_id),
        ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=share.epoch, assignment_timestamp=max(step.wall_ms, 1)
        ),
    )


def _assignable(share: ShareGroup, topics: Topics) -> Assignable:
    """The partitions of subscribed topics whose share state exists. Topics that were deleted have none."""
    found: dict[bytes, frozenset[int]] = {}
    for name in share.subscribed_names():
        topic = topics.by_name(name)
        named = None if topic is None else share.states.initialized.get(topic.topic_id)
        if topic is not None and named is not None:
            found[topic.topic_id] = named.partitions
    return found
