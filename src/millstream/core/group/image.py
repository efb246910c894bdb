"""Conversion of a group to its stored record, and back.

The format is Kafka's (``GroupMetadataKey``, ``GroupMetadataValue``): a stored group is the group at its last completed
rebalance, with each member's metadata for the chosen assignor only. After loading, members have one session timeout to
send a request.
"""

from collections.abc import Mapping

from millstream.core.group.deadlines import SESSION, Deadline
from millstream.core.group.group import Group
from millstream.core.group.member import Member
from millstream.core.group.outputs import Key, Value
from millstream.core.group.state import GroupState
from millstream.wire.messages.group_storage import GroupMetadataKey, GroupMetadataValue, MemberMetadata


def group_record(group: Group, assignments: Mapping[str, bytes]) -> tuple[Key, Value]:
    """The record that stores ``group`` with these assignments (by member id; missing ones are empty)."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.assignors.chosen),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    return GroupMetadataKey(group=group.group_id), GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.assignors.chosen,
        leader=group.leader_id,
        current_state_timestamp=group.standing.since_ms,
        members=members,
    )


def group_tombstone(group_id: str) -> tuple[Key, None]:
    """The record that deletes a classic group."""
    return GroupMetadataKey(group=group_id), None


def group_tombstones(group: Group) -> tuple[tuple[Key, Value | None], ...]:
    """The records that delete a group of any kind."""
    if group.assigned is not None:
        return tuple(group.assigned.tombstones())
    return (group_tombstone(group.group_id),)


def restore(group: Group, stored: GroupMetadataValue) -> None:
    """Set ``group`` to the content of the record; its offsets stay. Deadlines are set after the whole log was read."""
    group.members.clear()
    state = GroupState.STABLE if stored.members else GroupState.EMPTY
    group.standing.restore(state, stored.current_state_timestamp)
    group.statics.clear()
    group.assignors.supporters.clear()
    group.generation = stored.generation
    group.assignors.chosen = stored.protocol
    group.leader_id = stored.leader
    for kept in stored.members:
        group.add(
            Member(
                kept.member_id,
                kept.group_instance_id,
                kept.client_id,
                kept.client_host,
                kept.session_timeout if kept.rebalance_timeout == -1 else kept.rebalance_timeout,
                kept.session_timeout,
                ((stored.protocol or "", kept.subscription),),
                Deadline(SESSION, group, kept.member_id),
                kept.assignment,
            ),
            None,
        )
    if group.leader_id not in group.members:
        group.leader_id = next(iter(group.members), None)
    group.protocol_type = stored.protocol_type or None
    group.assignors.refresh(group)
