"""Requests about share groups (KIP-932), as ``GroupCoordinator`` passes them on."""

from millstream.core.group.consumer_state.topics import Topics, described
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.outputs import DescribeShare, ShareGroupValue, ShareHeartbeat, ShareStatesOf
from millstream.core.group.share.change import ShareChange, renew
from millstream.core.group.share.heartbeat import SHARE_ANSWER, check_request, refusal
from millstream.core.group.share.heartbeat import heartbeat as live
from millstream.core.group.share.leaving import leave as go
from millstream.core.group.share.leaving import session_ended
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.member import JOINS, ShareMember
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_share_group_offsets import (
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.messages.share_group_describe import DescribedShareGroup, DescribedShareMember
from millstream.wire.messages.share_group_storage import ShareGroupMetadataKey
from millstream.wire.stored import ShareGroupKey


def heartbeat(step: Step, holder: Group | None, beat: ShareHeartbeat) -> None:
    """Handle a ShareGroupHeartbeat."""
    try:
        check_request(beat.request)
        change = _change(step, holder, beat)
        if beat.request.member_epoch < JOINS:
            go(step, change, beat)
        else:
            live(step, change, beat)
    except Rejected as error:
        step.out.answer(beat.token, refusal(error.code, error.message or None))


def _change(step: Step, holder: Group | None, beat: ShareHeartbeat) -> ShareChange:
    """The change that the heartbeat starts. Rejected if the group does not exist and is not to be created."""
    group_id, epoch = beat.request.group_id, beat.request.member_epoch
    if holder is None:
        if epoch == JOINS:
            return ShareChange(Group(group_id, step.wall_ms), ShareGroup(group_id))
        kind = "Group" if epoch < JOINS else "Share group"
        raise Rejected(f"{kind} {group_id} not found.", ErrorCode.GROUP_ID_NOT_FOUND)
    if holder.share is None:
        raise Rejected(f"Group {group_id} is not a share group.", ErrorCode.GROUP_ID_NOT_FOUND)
    return ShareChange(holder, holder.share)


def describe(step: Step, holder: Group | None, given: DescribeShare) -> None:
    """Handle one group of a ShareGroupDescribe."""
    share = None if holder is None else holder.share
    assignor = step.settings.share.assignor
    described = describe_share_group(
        given.group_id, share, is_known=holder is not None, topics=step.topics, assignor=assignor
    )
    step.out.answer(given.token, described)


def states_of(step: Step, holder: Group | None, given: ShareStatesOf) -> None:
    """Answer with the partitions of a group whose share state exists."""
    share = None if holder is None else holder.share
    step.out.answer(given.token, partitions_of(given.group_id, share, step.topics))


def time_is_over(step: Step, deadline: Deadline[Group]) -> None:
    """A deadline of a member was reached."""
    share = deadline.group.share
    if share is None:
        return
    if deadline.kind == SHARE_ANSWER:
        waits = share.requests.waits.get(deadline)
        if waits is not None:
            waits[1](step)
    else:
        session_ended(step, ShareChange(deadline.group, share), deadline)


def topic_deleted(step: Step, holder: Group, topic_id: bytes) -> None:
    """Forget the share state of a deleted topic: the share coordinator deletes it by itself."""
    share = holder.share
    if share is not None and share.states.knows(topic_id):
        change = ShareChange(holder, share)
        change.put_states(share.states.without((topic_id,)))
        # If that fails, the entry stays until the group is deleted: a topic without partitions is never assigned.
        change.write(step, None, unanswered, unanswered_failed)


# Loading


def replay(holder: Group, key: ShareGroupKey, value: ShareGroupValue | None) -> None:
    """Apply a record of the log."""
    share = holder.share
    if share is None:
        if value is None:
            return
        share = ShareGroup(holder.group_id)
        holder.begin_share(share)
    share.apply(key, value)
    if value is None and isinstance(key, ShareGroupMetadataKey) and not share.members:
        holder.begin_empty()


def loaded(step: Step, holder: Group) -> None:
    """The log has been read. From now on members have their session timeout to send a request."""
    share = holder.share
    assert share is not None
    holder.follow_assigned()
    for member_id in share.members:
        renew(step, holder, share, member_id)


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
        members=[_described_member(member, topics) for member in share.members.values()],
    )


def _described_member(member: ShareMember, topics: Topics) -> DescribedShareMember:
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
