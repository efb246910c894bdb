"""The group epoch and the target assignment: when they change, and to what.

The group epoch increases when a member changes its subscription, joins or leaves, or when the subscribed topics change.
While it is ahead of the target assignment's epoch, the next heartbeat of any member computes the assignment again, at
most once in ``group.consumer.assignment.interval.ms``, so that members that arrive together share one computation.
"""

from typing import Final

from millstream.core.group.assign.ranges import assign_ranges
from millstream.core.group.assign.spec import NOTHING, Assignor, Subscriber
from millstream.core.group.assign.uniform import assign_uniform
from millstream.core.group.consumer.change import Change
from millstream.core.group.consumer_state.group import ConsumerGroup, target_value
from millstream.core.group.consumer_state.topics import Topics, metadata_hash
from millstream.core.group.step import Step
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_ranges}
"""The assignors by Kafka's names."""


def follow_topics(step: Step, change: Change, *, bump: bool) -> None:
    """Increase the group epoch if ``bump``, or if the subscribed topics have changed."""
    group = change.consumer
    revision = step.topics.revision
    if not bump and group.checked_revision == revision:
        return
    group.checked_revision = revision
    now = metadata_hash(group.subscribed_names(), step.topics.by_name)
    if bump or now != group.metadata_hash:
        next_epoch(step, change, now)


def next_epoch(step: Step, change: Change, now_hash: int) -> None:
    """Increase the group epoch."""
    group = change.consumer
    key = ConsumerGroupMetadataKey(group.group_id)
    change.put(key, ConsumerGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=now_hash))
    step.counts.rebalances += 1


def after_departure(step: Step, change: Change) -> None:
    """Increase the group epoch after members have left."""
    next_epoch(step, change, metadata_hash(change.consumer.subscribed_names(), step.topics.by_name))


def follow_epoch(step: Step, change: Change) -> None:
    """Compute the target assignment if the group epoch is ahead of it and the interval has passed."""
    group = change.consumer
    if group.epoch <= group.assignment_epoch:
        return
    interval_ms = step.settings.consumer.assignment_interval_of(group.group_id)
    since_ms = step.wall_ms - group.assignment_ms
    if group.assignment_ms and 0 <= since_ms < interval_ms:  # negative: the clock was put back; do not wait for it
        return
    assignment = ASSIGNORS[_assignor(group, step)](*_spec(group, step.topics))
    group_id = group.group_id
    for member_id in group.members:
        target = assignment.get(member_id, NOTHING)
        if group.targets.get(member_id) != target:
            change.put(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), target_value(target))
    change.put(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.epoch, assignment_timestamp=max(step.wall_ms, 1)
        ),
    )


def _assignor(group: ConsumerGroup, step: Step) -> str:
    preferred = group.preferred_assignor()
    offered = step.settings.consumer.assignors
    return preferred if preferred in offered else offered[0]


def _spec(group: ConsumerGroup, topics: Topics) -> tuple[dict[str, Subscriber], dict[bytes, int]]:
    sizes: dict[bytes, int] = {}
    for name in group.subscribed_names():
        topic = topics.by_name(name)
        if topic is not None:
            sizes[topic.topic_id] = topic.partitions
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    members: dict[str, Subscriber] = {}
    for member_id, member in group.members.items():
        names = group.names_of(member)
        topic_ids = ids.get(names)
        if topic_ids is None:
            topic_ids = ids[names] = group.topic_ids_of(member, topics)
        members[member_id] = Subscriber(topic_ids, group.targets.get(member_id, NOTHING), member.instance_id)
    return members, sizes
