"""Requests about groups whose members the coordinator assigns: from the request to the change, and from the log.

A heartbeat starts a change and lets the verbs of its type of group decide. If they refuse, it is answered with the
error and nothing changes.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from millstream.core.group.assigned.change import Failed, GroupChange
from millstream.core.group.assigned.timers import start_timers
from millstream.core.group.assigned_state.group import AnyGroup
from millstream.core.group.assigned_state.member import JOINS, AssignedMember
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import ConsumerHeartbeat, ShareHeartbeat, StreamsHeartbeat, Value
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.step import Step
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.assigned_group_storage import GroupEpochKey
from millstream.wire.messages.consumer_group_describe import DescribedConsumerGroup
from millstream.wire.messages.share_group_describe import DescribedShareGroup
from millstream.wire.messages.streams_group_describe import DescribedStreamsGroup
from millstream.wire.schema import Message
from millstream.wire.stored import AssignedGroupKey

G = TypeVar("G", bound=AnyGroup)
B = TypeVar("B", ConsumerHeartbeat, ShareHeartbeat, StreamsHeartbeat)
M = TypeVar("M", bound=AssignedMember)
D = TypeVar("D", DescribedConsumerGroup, DescribedShareGroup, DescribedStreamsGroup)

Refusal = Callable[[ErrorCode, str | None], Message]
"""The response with an error only."""


class Verbs(NamedTuple, Generic[G, B]):
    """How one type of group handles a heartbeat. All but ``refusal`` raise Rejected to refuse it."""

    group: type[G]
    check: Callable[[Step, B], None]
    """Checks the request itself, with Kafka's messages."""
    begin: Callable[[Step, Group], GroupChange[G] | None]
    """The change that makes such a group of a new one, or of one of another type; None if it does not become one."""
    live: Callable[[Step, GroupChange[G], B], None]
    leave: Callable[[Step, GroupChange[G], B], None]
    refusal: Refusal


def heartbeat(step: Step, holder: Group | None, beat: B, verbs: Verbs[G, B]) -> None:
    """Handle a heartbeat."""
    change: GroupChange[G] | None = None
    try:
        verbs.check(step, beat)
        change = _change(step, holder, beat, verbs)
        decide = verbs.leave if beat.request.member_epoch < JOINS else verbs.live
        decide(step, change, beat)
    except Rejected as error:
        if change is not None:
            change.undo()
        step.out.answer(beat.token, verbs.refusal(error.code, error.message or None))


def _change(step: Step, holder: Group | None, beat: B, verbs: Verbs[G, B]) -> GroupChange[G]:
    """The change that the heartbeat starts. Rejected if the group does not exist and is not to be created."""
    group_id, epoch = beat.request.group_id, beat.request.member_epoch
    group_type = verbs.group.group_type
    if holder is not None and isinstance(holder.assigned, verbs.group):
        return GroupChange(holder, holder.assigned)
    if epoch == JOINS:
        change = verbs.begin(step, Group(group_id, step.wall_ms) if holder is None else holder)
        if change is not None:
            return change
    if holder is None:
        kind = "Group" if epoch < JOINS else f"{group_type.capitalize()} group"
        raise Rejected(f"{kind} {group_id} not found.", ErrorCode.GROUP_ID_NOT_FOUND)
    raise Rejected(f"Group {group_id} is not a {group_type} group.", ErrorCode.GROUP_ID_NOT_FOUND)


def refused(token: Token, refusal: Refusal) -> Failed:
    """What follows the write of a heartbeat that has failed."""

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(token, refusal(error, None))

    return failed


# Errors, with Kafka's messages


def invalid(message: str) -> Rejected:
    """The request itself is wrong."""
    return Rejected(message, ErrorCode.INVALID_REQUEST)


def known_member(members: dict[str, M], group_id: str, member_id: str) -> M:
    """A member of the group. Raises Rejected if the group does not have it."""
    member = members.get(member_id)
    if member is None:
        raise Rejected(f"Member {member_id} is not a member of group {group_id}.", ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def check_room(step: Step, content: AnyGroup, member_id: str) -> None:
    """Rejected if the member is new and the group is full."""
    limit = step.settings.of(content).max_size
    if len(content.members) >= limit and member_id not in content.members:
        raise Rejected(
            f"The {content.group_type} group has reached its maximum capacity of {limit} members.",
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        )


def fenced(content: AnyGroup, member: AssignedMember, epoch: MemberEpoch, why: str = "") -> Rejected:
    """A member does not know its last response, and must start again."""
    word = "greater" if epoch > member.epoch else "smaller"
    return Rejected(
        f"The {content.group_type} group member has a {word} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}){why}. The member must abandon all its partitions and rejoin.",
        ErrorCode.FENCED_MEMBER_EPOCH,
    )


def not_described(described: type[D], group_type: str, group_id: str, holder: Group | None) -> D:
    """The description of a group that does not exist, or is of another type."""
    if not group_id:
        return described(error_code=ErrorCode.INVALID_GROUP_ID)
    words = "not found." if holder is None else f"is not a {group_type} group."
    return described(
        group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {words}"
    )


# Loading

_TYPE_OF: Final = {key: group for group in (ConsumerGroup, ShareGroup, StreamsGroup) for key in group.records.keys}


def replay(holder: Group, key: AssignedGroupKey, value: Value | None) -> None:
    """Apply a record of the log."""
    group = _TYPE_OF[type(key)]
    content = holder.assigned
    if not isinstance(content, group):
        if value is None:
            return
        content = group(holder.group_id)
        holder.begin_assigned(content)
    content.apply(key, value)
    if value is None and isinstance(key, GroupEpochKey) and not content.members:
        holder.begin_empty()


def loaded(step: Step, holder: Group, content: AnyGroup) -> None:
    """The log has been read. From now on members have their session timeout to send a request."""
    if content.epoch < content.assignment_epoch:
        # A member joined during the group's deletion: the epoch's record is deleted, and the later ones are there.
        content.metadata = msgspec.structs.replace(content.metadata, epoch=content.assignment_epoch)
    holder.begin_assigned(content)
    holder.follow_assigned()
    start_timers(step, holder, content)
