"""Describes a consumer group."""

from collections.abc import Mapping

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember, partitions_of
from millstream.core.group.consumer_state.topics import Topics, described
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    DescribedConsumerGroup,
    DescribedConsumerMember,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_consumer_group(
    group_id: str, group: ConsumerGroup | None, *, is_known: bool, topics: Topics, default_assignor: str
) -> DescribedConsumerGroup:
    """A consumer group and its members. ``is_known``: a group of another kind has that name."""
    if not group_id:
        return DescribedConsumerGroup(error_code=ErrorCode.INVALID_GROUP_ID)
    if group is None:
        words = "is not a consumer group." if is_known else "not found."
        return DescribedConsumerGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {words}",
        )
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[_member(group.targets, member, topics) for member in group.members.values()],
    )


def _member(targets: Mapping[str, Partitions], member: ConsumerMember, topics: Topics) -> DescribedConsumerMember:
    return DescribedConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=described(_held(member), topics),
        target_assignment=described(targets.get(member.member_id, NOTHING), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _held(member: ConsumerMember) -> Partitions:
    """All partitions that a member owns, including those that it has yet to revoke."""
    held = dict(partitions_of(member.assigned))
    for topic_id, partitions in partitions_of(member.revoking).items():
        held[topic_id] = held.get(topic_id, frozenset()) | partitions
    return held
