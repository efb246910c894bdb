"""The group epoch and the target assignment of a share group: when they change, and to what.

The group epoch increases when a member joins, leaves or changes its subscription, when the subscribed topics change,
and when partitions whose share state exists have no member. A target that gives nothing to any member delays no other.
"""

from millstream.core.group.assign.simple import Assignable, assign_simple
from millstream.core.group.assign.spec import NOTHING, Subscriber
from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.target import is_too_early, next_epoch, put_targets
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.step import Step
from millstream.core.group.topics import Topics


def follow_topics(step: Step, change: GroupChange[ShareGroup], *, bump: bool) -> bool:
    """Increase the group epoch if ``bump``, or if the subscribed topics have changed. Returns whether it did."""
    metadata = change.content.next_metadata(step.topics)
    if not bump and metadata.metadata_hash == change.content.metadata.metadata_hash:
        return False
    next_epoch(step, change, metadata)
    return True


def is_incomplete(share: ShareGroup, topics: Topics) -> bool:
    """Whether the target assignment is up to date by its epoch, but not in its partitions."""
    if not share.members or share.assignment_epoch < share.epoch:
        return False
    assigned: dict[bytes, set[int]] = {}
    for target in share.targets.values():
        for topic_id, partitions in target.items():
            assigned.setdefault(topic_id, set()).update(partitions)
    return any(assigned.get(topic_id) != set(partitions) for topic_id, partitions in _assignable(share, topics).items())


def follow_epoch(step: Step, change: GroupChange[ShareGroup]) -> None:
    """Compute the target assignment if the group epoch is ahead of it and the interval has passed."""
    share = change.content
    if share.epoch <= share.assignment_epoch or (any(share.targets.values()) and is_too_early(step, share)):
        return
    members = {
        member_id: Subscriber(share.topic_ids_of(member, step.topics), share.targets.get(member_id, NOTHING))
        for member_id, member in share.members.items()
    }
    put_targets(step, change, assign_simple(members, _assignable(share, step.topics)), NOTHING)


def _assignable(share: ShareGroup, topics: Topics) -> Assignable:
    """The partitions of subscribed topics whose share state exists. Topics that were deleted have none."""
    found: dict[bytes, frozenset[int]] = {}
    for name in share.subscribed_names():
        topic = topics.by_name(name)
        named = None if topic is None else share.states.initialized.get(topic.topic_id)
        if topic is not None and named is not None:
            found[topic.topic_id] = named.partitions
    return found
