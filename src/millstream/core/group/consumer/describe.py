"""Describes a consumer group."""

from collections.abc import Mapping

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.assigned.requests import not_described
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.group import Group
from millstream.core.group.step import Step
from millstream.core.group.topics import Topics, described
from millstream.wire.messages.consumer_group_describe import (
    DescribedConsumerGroup,
    DescribedConsumerMember,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_consumer_group(step: Step, group_id: str, holder: Group | None) -> DescribedConsumerGroup:
    """A consumer group and its members."""
    group = None if holder is None else holder.consumer
    if group is None:
        return not_described(DescribedConsumerGroup, ConsumerGroup.group_type, group_id, holder)
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or step.settings.consumer.assignors[0],
        members=[_member(group.targets, member, step.topics) for member in group.members.values()],
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
    held: dict[bytes, frozenset[int]] = {}
    for topic_id, partitions in member.held():
        held[topic_id] = held.get(topic_id, frozenset()) | partitions.keys()
    return held
