"""Groups that change their protocol while they are active (KIP-848, "Online Migration").

- **Upgrade.** A member of the consumer protocol joins a classic group of consumers. The group becomes a consumer group
  with the classic members in it, each with its assignment of the last classic rebalance, and with the old generation as
  epoch. Classic members then see the next epoch as a rebalance (``classic``).
- **Downgrade.** The last member of the consumer protocol leaves while classic members remain. The group becomes a
  classic group again, and rebalances.
- An empty group of either kind takes the kind of the next member that joins.

``group.consumer.migration.policy`` allows one, both or none of the first two. If it allows none, no classic member can
join a consumer group that has members. Committed offsets stay in all cases. A conversion is written in one batch, so
that after a crash the group is of one kind or the other.
"""

from collections.abc import Mapping, Sequence

import msgspec

from millstream.core.group.assigned.change import Done, Failed, GroupChange
from millstream.core.group.assigned.timers import forget_timers
from millstream.core.group.commit import PendingCommit
from millstream.core.group.consumer.protocol import assignment_bytes, read_assignment, read_subscription
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember, MemberState, partitions_of
from millstream.core.group.deadlines import SESSION, Deadline
from millstream.core.group.group import CONSUMER_PROTOCOL, Group
from millstream.core.group.image import group_record, group_tombstone
from millstream.core.group.member import Member, Token
from millstream.core.group.outputs import Key, Value
from millstream.core.group.rebalance import prepare, renew_session
from millstream.core.group.state import GroupState
from millstream.core.group.step import Step
from millstream.core.group.topics import Topics, metadata_hash
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.consumer_group_storage import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

UPGRADES = frozenset({"bidirectional", "upgrade"})
DOWNGRADES = frozenset({"bidirectional", "downgrade"})


def begin_consumer_group(step: Step, holder: Group) -> GroupChange[ConsumerGroup] | None:
    """The change that makes a consumer group of ``holder``, a classic or a new group; None if it is of another type.

    Raises:
        Rejected: its members cannot be converted.
    """
    if holder.assigned is not None:
        return None
    group = ConsumerGroup(holder.group_id)
    before: list[tuple[Key, Value | None]] = []
    if holder.standing.counts is not None:
        before.append(group_tombstone(holder.group_id))
    change = GroupChange(holder, group, before)
    if not holder.is_empty:
        _check_upgrade(step, holder)
        _take_members_over(step, change)
    return change


def may_migrate(step: Step) -> bool:
    """Whether groups may change their protocol in any direction."""
    return step.settings.consumer.migration_policy in UPGRADES | DOWNGRADES


def _check_upgrade(step: Step, holder: Group) -> None:
    why = None
    if step.settings.consumer.migration_policy not in UPGRADES:
        why = "online upgrade is disabled."
    elif holder.protocol_type != CONSUMER_PROTOCOL or not holder.members:
        why = "the group does not use the consumer embedded protocol."
    elif len(holder.members) > step.settings.consumer.max_size:
        why = "the group size exceeds the consumer group maximum size."
    if why is not None:
        raise _no_upgrade(holder, why)
    if any(pending.group is holder and not isinstance(pending, PendingCommit) for pending in step.writes.values()):
        # The assignment in flight to the log decides what members own, so that is not known yet.
        raise Rejected("The classic group is being written.", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _no_upgrade(holder: Group, why: str) -> Rejected:
    return Rejected(
        f"Cannot upgrade classic group {holder.group_id} to consumer group because {why}",
        ErrorCode.GROUP_ID_NOT_FOUND,
    )


def _take_members_over(step: Step, change: GroupChange[ConsumerGroup]) -> None:
    holder = change.group
    group_id, epoch = holder.group_id, holder.generation
    try:
        members = [_as_consumer_member(member, epoch, step.topics) for member in holder.members.values()]
    except ProtocolError:
        raise _no_upgrade(holder, "the embedded consumer protocol is malformed.") from None
    if any(member is None for member in members):
        raise _no_upgrade(
            holder,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade.",
        )
    taken: set[tuple[bytes, int]] = set()
    for member in members:
        assert member is not None
        member = _without(member, taken)
        change.put(ConsumerGroupMemberMetadataKey(group_id, member.member_id), member.metadata_value())
        change.put(
            ConsumerGroupTargetAssignmentMemberKey(group_id, member.member_id),
            change.content.target_value(partitions_of(member.assigned)),
        )
        change.put(ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id), member.current_value())
    names = change.content.subscriptions.topics()
    wanted = sum(topic.partitions for name in names if (topic := step.topics.by_name(name)))
    # If the classic leader left something unassigned, such as new partitions, the topics count as changed.
    now = metadata_hash(names, step.topics.by_name) if len(taken) == wanted else 0
    change.put(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=now))
    change.put(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
    )
    step.log(holder, f"becomes a consumer group with {len(members)} classic members")


def _as_consumer_member(member: Member, epoch: int, topics: Topics) -> ConsumerMember | None:
    """A classic member as a member of the consumer group; None if its assignor's user data cannot be kept.

    Raises:
        ProtocolError: it does not speak the consumers' embedded protocol.
    """
    subscription = read_subscription(member.protocols[0][1])
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        return None
    assigned: dict[bytes, dict[int, int]] = {}
    for entry in assignment.assigned_partitions:
        topic = topics.by_name(entry.topic)
        if topic is not None and entry.partitions:
            assigned.setdefault(topic.topic_id, {}).update(dict.fromkeys(entry.partitions, epoch))
    return ConsumerMember(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in member.protocols],
        ),
        epoch=epoch,
        previous_epoch=epoch,
        state=MemberState.STABLE,
        assigned=assigned,
    )


def _without(member: ConsumerMember, taken: set[tuple[bytes, int]]) -> ConsumerMember:
    """The member without partitions that an invalid classic assignment also gave to another: a partition has one
    owner.
    """
    assigned: dict[bytes, dict[int, int]] = {}
    for topic_id, owned in member.assigned.items():
        for partition, epoch in owned.items():
            if (topic_id, partition) not in taken:
                taken.add((topic_id, partition))
                assigned.setdefault(topic_id, {})[partition] = epoch
    return msgspec.structs.replace(member, assigned=assigned)


# Downgrade


def may_downgrade(
    step: Step, group: ConsumerGroup, leaving: Sequence[ConsumerMember], *, replaced: bool = False
) -> bool:
    """Whether only classic members remain after these have left, and the group may then become a classic group.

    ``replaced``: a classic member takes the place of the one that leaves.
    """
    gone = {member.member_id for member in leaving}
    left = len(group.members) - len(gone)
    classic_gone = sum(member.classic is not None for member in leaving)
    return (
        0 < left + replaced <= step.settings.max_size
        and any(member.classic is None for member in leaving)
        and group.classic_members - classic_gone == left
        and step.settings.consumer.migration_policy in DOWNGRADES
    )


def begin_downgrade(
    step: Step,
    change: GroupChange[ConsumerGroup],
    leaving: Sequence[ConsumerMember],
    token: Token | None,
    done: Done,
    failed: Failed,
    *,
    successor: ConsumerMember | None = None,
    rebalances: bool = True,
) -> None:
    """Make a classic group of the remaining members and of ``successor``, which inherits the assignment of the one that
    leaves.
    """
    change.undo()
    group, holder = change.content, change.group
    gone = {member.member_id for member in leaving}
    image = Group(holder.group_id, step.wall_ms)
    assignments: dict[str, bytes] = {}
    for member in [*group.members.values(), *([] if successor is None else [successor])]:
        if member.member_id not in gone:
            image.add(_as_classic_member(member, holder), None)
            assignments[member.member_id] = assignment_bytes(member, step.topics)
    for member in image.members.values():
        member.assignment = assignments[member.member_id]
    image.generation, image.protocol_type = group.epoch, CONSUMER_PROTOCOL
    image.assignors.chosen = image.select_protocol()
    image.standing.state = GroupState.STABLE
    _convert(step, holder, image, assignments, token, done, failed, rebalances=rebalances)


def _as_classic_member(member: ConsumerMember, holder: Group) -> Member:
    assert member.classic is not None
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
        Deadline(SESSION, holder, member.member_id),
    )


def begin_classic_group(step: Step, holder: Group, token: Token, done: Done, failed: Failed) -> None:
    """Turn an empty consumer or streams group into an empty classic one."""
    _convert(step, holder, Group(holder.group_id, step.wall_ms), {}, token, done, failed)


def _convert(
    step: Step,
    holder: Group,
    image: Group,
    assignments: Mapping[str, bytes],
    token: Token | None,
    done: Done,
    failed: Failed,
    *,
    rebalances: bool = False,
) -> None:
    """Write ``image``, a classic group, in the place of the group; then complete the conversion, or undo everything."""
    content = holder.assigned
    assert content is not None

    def settled(step: Step, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            failed(step, error)
            return
        for member_id in list(content.timers):
            forget_timers(step, content, member_id)
        holder.begin_classic(image)
        if holder.members:
            for member in holder.members.values():
                renew_session(step, member)
            step.log(holder, f"is a classic group again, with {len(holder.members)} members")
            if rebalances:
                prepare(step, holder)
        done(step)

    step.write_alone(holder, (*content.tombstones(), group_record(image, assignments)), token, settled)
