"""Checks of OffsetCommit and OffsetFetch for consumer groups.

A member commits with its epoch. A member that is behind may commit partitions that it already owned at the epoch it
names (KIP-1251), because the response with its newer epoch may have left after the commit. A consumer without
membership commits to an empty group only.
"""

from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup

MEMBER_EPOCHS_FROM = 9


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest, version: ApiVersion) -> ErrorCode:
    """NONE if the commit may be written."""
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and version < MEMBER_EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch < member.epoch and all(
        _had(member, topic.topic_id, partition.partition_index, epoch)
        for topic in request.topics
        for partition in topic.partitions
    ):
        return ErrorCode.NONE
    return _stale(member)


def _had(member: ConsumerMember, topic_id: bytes, partition: int, epoch: int) -> bool:
    """Whether the member owned this partition at that epoch, and ever since."""
    for owned in (member.assigned, member.revoking):
        since = owned.get(topic_id, {}).get(partition)
        if since is not None:
            return epoch >= since
    return False


def check_fetch(group: ConsumerGroup, asked: OffsetFetchRequestGroup) -> ErrorCode:
    """NONE if the offsets may be returned. An administrator names no member."""
    if asked.member_id is None and asked.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(asked.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if asked.member_epoch == member.epoch else _stale(member)


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
