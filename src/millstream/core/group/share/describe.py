"""Describes a share group, and for which partitions its share state exists."""

from millstream.core.group.consumer_state.topics import Topics, described
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.member import ShareMember
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_share_group_offsets import (
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.messages.share_group_describe import DescribedShareGroup, DescribedShareMember


def describe_share_group(
    group_id: str, share: ShareGroup | None, *, is_known: bool, topics: Topics, assignor: str
) -> DescribedShareGroup:
    """A share group and its members. ``is_known``: a group of another kind has that name."""
    if not group_id:
        return DescribedShareGroup(error_code=ErrorCode.INVALID_GROUP_ID)
    if share is None:
        words = "is not a share group." if is_known else "not found."
        return DescribedShareGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {words}"
        )
    return DescribedShareGroup(
        group_id=group_id,
        group_state=share.state.value,
        group_epoch=share.epoch,
        assignment_epoch=share.assignment_epoch,
        assignor_name=assignor,
        members=[_member(member, topics) for member in share.members.values()],
    )


def _member(member: ShareMember, topics: Topics) -> DescribedShareMember:
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        assignment=described(member.assigned, topics),
    )


def partitions_of(group_id: str, share: ShareGroup | None, topics: Topics) -> ShareOffsetsGroup:
    """The partitions of a group whose state exists, without what it is. A group that does not exist has none."""
    found: list[ShareOffsetsTopic] = []
    for topic_id, named in share.states.initialized.items() if share is not None else ():
        topic = topics.by_id(topic_id)
        if topic is not None:
            partitions = [ShareOffsetsPartition(index, -1) for index in sorted(named.partitions)]
            found.append(ShareOffsetsTopic(topic.name, topic_id, partitions))
    return ShareOffsetsGroup(group_id, found)
