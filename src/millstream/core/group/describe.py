"""Lists and describes groups."""

from collections.abc import Iterable

from millstream.core.group.group import Group
from millstream.core.group.member import Member
from millstream.core.group.state import GroupState
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion
from millstream.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from millstream.wire.messages.list_groups import ListedGroup

CLASSIC = "classic"
UNKNOWN_GROUP_IS_ERROR_FROM = 6


def list_groups(groups: Iterable[Group], states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
    """The groups in one of ``states`` and of one of ``types``, ignoring case. An empty filter passes every group."""
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {name.lower() for name in types}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=type_of(group),
        )
        for group in groups
        if (not wanted_states or group.state.value.lower() in wanted_states)
        and (not wanted_types or type_of(group) in wanted_types)
    ]


def type_of(group: Group) -> str:
    """The type of a group, as ListGroups names it."""
    return CLASSIC if group.assigned is None else group.assigned.group_type


def describe_group(group_id: str, group: Group | None, version: ApiVersion) -> DescribedGroup:
    """A group and its members. A group that does not exist is ``Dead`` (and an error from version 6 on, KIP-1043)."""
    if group is None or group.assigned is not None:
        if version < UNKNOWN_GROUP_IS_ERROR_FROM:
            return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {'not found' if group is None else 'is not a classic group'}.",
        )
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.assignors.chosen or "") if stable else "",
        members=[
            _describe_member(member, group.assignors.chosen if stable else None) for member in group.members.values()
        ],
    )


def _describe_member(member: Member, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.metadata(protocol),
        member_assignment=member.assignment,
    )
