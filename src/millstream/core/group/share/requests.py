"""Requests about share groups (KIP-932), as ``GroupCoordinator`` passes them on."""

from typing import Final

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.requests import Verbs, not_described
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.outputs import ShareStatesOf
from millstream.core.group.share.heartbeat import check_request, heartbeat, leave, refusal
from millstream.core.group.share.initialize import put_states
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.member import ShareMember
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.core.group.topics import Topics, described
from millstream.wire.messages.describe_share_group_offsets import (
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.messages.share_group_describe import DescribedShareGroup, DescribedShareMember


def begin(step: Step, holder: Group) -> GroupChange[ShareGroup] | None:
    """The change that makes a share group of a new group. A group of another type never becomes one."""
    _ = step
    return GroupChange(holder, ShareGroup(holder.group_id)) if holder.standing.counts is None else None


SHARE: Final = Verbs(ShareGroup, check_request, begin, heartbeat, leave, refusal)


def states_of(step: Step, holder: Group | None, given: ShareStatesOf) -> None:
    """Answer with the partitions of a group whose share state exists."""
    share = None if holder is None else holder.share
    step.out.answer(given.token, partitions_of(given.group_id, share, step.topics))


def answer_is_late(step: Step, share: ShareGroup, deadline: Deadline[Group]) -> None:
    """A heartbeat has waited long enough for share state."""
    waits = share.requests.waits.get(deadline)
    if waits is not None:
        waits[1](step)


def topic_deleted(step: Step, holder: Group, topic_id: bytes) -> None:
    """Forget the share state of a deleted topic: the share coordinator deletes it by itself."""
    share = holder.share
    if share is not None and share.states.knows(topic_id):
        change = GroupChange(holder, share)
        put_states(change, share.states.without((topic_id,)))
        # If that fails, the entry stays until the group is deleted: a topic without partitions is never assigned.
        change.write(step, None, unanswered, unanswered_failed)


def describe_share_group(step: Step, group_id: str, holder: Group | None) -> DescribedShareGroup:
    """A share group and its members."""
    share = None if holder is None else holder.share
    if share is None:
        return not_described(DescribedShareGroup, ShareGroup.group_type, group_id, holder)
    return DescribedShareGroup(
        group_id=group_id,
        group_state=share.state.value,
        group_epoch=share.epoch,
        assignment_epoch=share.assignment_epoch,
        assignor_name=step.settings.share.assignor,
        members=[_described_member(member, step.topics) for member in share.members.values()],
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
