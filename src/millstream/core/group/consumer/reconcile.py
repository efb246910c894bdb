"""Moves a member from its current to its target assignment, one step at a time (KIP-848, "Reconciliation").

::

                                    new target
    STABLE ────────────────► something is to be given back? ──yes──► UNREVOKED (epoch stays)
      ▲  ▲                        │ no                                    │ the member no longer owns any of it
      │  │                        ▼                                       ▼
      │  └──nothing missing── takes what is free, at the target's epoch ◄─┘
      │                           │ some is still owned by others
      └──all of it is free── UNRELEASED (tries again with each heartbeat)

A partition is given to a member only if no member owns it or has yet to revoke it, so two members never own it at the
same time. Topics that a member no longer subscribes to are revoked at once, even if its target has them.
"""

from collections.abc import Iterable, Mapping

from millstream.core.group.assign.spec import Partitions
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import NOTHING_OWNED, ConsumerMember, MemberState, Owned
from millstream.core.group.topics import Topics
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

Reported = Mapping[bytes, Iterable[int]] | None
"""Partitions that a member reports as owned: topic id → partitions; None if it reports nothing."""


def reconcile(
    group: ConsumerGroup, member: ConsumerMember, reported: Reported, topics: Topics, *, subscription_changed: bool
) -> ConsumerMember:
    """The member after this heartbeat; unchanged if no step is possible.

    ``member`` is a member of ``group`` in the state of the group's records.
    """
    if not subscription_changed and member.is_reconciled_to(group.assignment_epoch):
        return member
    match member.state:
        case MemberState.STABLE:
            if member.epoch == group.assignment_epoch:
                return _without_unsubscribed(group, member, reported, topics)
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns(reported, member.revoking):
                return _without_unsubscribed(group, member, reported, topics) if subscription_changed else member
        case MemberState.UNRELEASED_PARTITIONS:
            pass
        case MemberState.UNKNOWN:
            if reported is None or any(reported.values()):
                raise Rejected(
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                    ErrorCode.FENCED_MEMBER_EPOCH,
                )
    return _toward_target(group, member, reported, topics)


def _owns(reported: Reported, revoking: Owned) -> bool:
    """Whether the member may still own partitions that it must revoke. True if it reports nothing."""
    if reported is None:
        return True
    nothing: Mapping[int, int] = {}
    return any(
        partition in revoking.get(topic_id, nothing)
        for topic_id, partitions in reported.items()
        for partition in partitions
    )


def _without_unsubscribed(
    group: ConsumerGroup, member: ConsumerMember, reported: Reported, topics: Topics
) -> ConsumerMember:
    """The member without topics that it no longer subscribes to."""
    subscribed = group.topic_ids_of(member, topics)
    dropped = {topic_id: owned for topic_id, owned in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    kept = {topic_id: owned for topic_id, owned in member.assigned.items() if topic_id in subscribed}
    revoking = {topic_id: {**member.revoking.get(topic_id, {}), **owned} for topic_id, owned in dropped.items()}
    revoking = {**member.revoking, **revoking}
    if _owns(reported, revoking):
        return member.at(member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return member.at(member.epoch, member.state, kept, NOTHING_OWNED)


def _toward_target(group: ConsumerGroup, member: ConsumerMember, reported: Reported, topics: Topics) -> ConsumerMember:
    subscribed = group.topic_ids_of(member, topics)
    target: Partitions = {
        topic_id: partitions for topic_id, partitions in group.target(member).items() if topic_id in subscribed
    }
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    free: dict[bytes, list[int]] = {}
    is_waiting = False
    nothing: Mapping[int, int] = {}
    for topic_id in {**target, **member.assigned}:
        wanted = target.get(topic_id, frozenset())
        owned = member.assigned.get(topic_id, nothing)
        kept = {partition: epoch for partition, epoch in owned.items() if partition in wanted}
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(owned):
            revoking[topic_id] = {partition: epoch for partition, epoch in owned.items() if partition not in wanted}
        pending = member.revoking.get(topic_id, nothing)
        for partition in sorted(wanted - kept.keys()):
            # A partition that the member itself has yet to revoke is its own again.
            if partition in pending or not group.is_owned(topic_id, partition):
                free.setdefault(topic_id, []).append(partition)
            else:
                is_waiting = True
    if revoking and _owns(reported, revoking):
        return member.at(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    epoch = group.assignment_epoch
    for topic_id, partitions in free.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return member.at(epoch, state, assigned, NOTHING_OWNED)
