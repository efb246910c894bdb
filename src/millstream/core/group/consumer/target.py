"""The group epoch and the target assignment of a consumer group: when they change, and to what.

The group epoch increases when a member changes its subscription, joins or leaves, or when the subscribed topics change.
"""

from typing import Final

from millstream.core.group.assign.ranges import assign_ranges
from millstream.core.group.assign.spec import NOTHING, Assignor, Subscriber
from millstream.core.group.assign.uniform import assign_uniform
from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.target import is_too_early, next_epoch, put_targets
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.step import Step
from millstream.core.group.topics import Topics

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_ranges}
"""The assignors by Kafka's names."""


def follow_topics(step: Step, change: GroupChange[ConsumerGroup], *, bump: bool) -> None:
    """Increase the group epoch if ``bump``, or if the subscribed topics have changed."""
    group = change.content
    revision = step.topics.revision
    if not bump and group.checked_revision == revision:
        return
    group.checked_revision = revision
    metadata = group.next_metadata(step.topics)
    if bump or metadata.metadata_hash != group.metadata.metadata_hash:
        next_epoch(step, change, metadata)


def follow_epoch(step: Step, change: GroupChange[ConsumerGroup]) -> None:
    """Compute the target assignment if the group epoch is ahead of it and the interval has passed."""
    group = change.content
    if group.epoch > group.assignment_epoch and not is_too_early(step, group):
        put_targets(step, change, ASSIGNORS[_assignor(group, step)](*_spec(group, step.topics)), NOTHING)


def _assignor(group: ConsumerGroup, step: Step) -> str:
    preferred = group.preferred_assignor()
    offered = step.settings.consumer.assignors
    return preferred if preferred in offered else offered[0]


def _spec(group: ConsumerGroup, topics: Topics) -> tuple[dict[str, Subscriber], dict[bytes, int]]:
    sizes: dict[bytes, int] = {}
    for name in group.subscriptions.topics():
        topic = topics.by_name(name)
        if topic is not None:
            sizes[topic.topic_id] = topic.partitions
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    members: dict[str, Subscriber] = {}
    for member_id, member in group.members.items():
        names = group.subscriptions.topics_of(member)
        topic_ids = ids.get(names)
        if topic_ids is None:
            topic_ids = ids[names] = group.topic_ids_of(member, topics)
        members[member_id] = Subscriber(topic_ids, group.targets.get(member_id, NOTHING), member.instance_id)
    return members, sizes
