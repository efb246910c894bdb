"""Checks of OffsetCommit, TxnOffsetCommit and OffsetFetch for streams groups.

A member commits with its epoch. A member that is behind may commit the source partitions of active tasks that it had at
the epoch it names, because the response with its newer epoch may have left after the commit. Anybody commits to an
empty group.
"""

from millstream.core.group.consumer_state.offsets import MEMBER_EPOCHS_FROM
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import StreamsMember
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion, MemberEpoch
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup


def check_streams_commit(group: StreamsGroup, request: OffsetCommitRequest, version: ApiVersion) -> ErrorCode:
    """NONE if the commit may be written. The topics of the request are named."""
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if version < MEMBER_EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch < member.epoch and all(
        _had(group, member, topic.name, partition.partition_index, epoch)
        for topic in request.topics
        for partition in topic.partitions
    ):
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH


def _had(group: StreamsGroup, member: StreamsMember, topic: str, partition: int, epoch: MemberEpoch) -> bool:
    """Whether the member had the active task that reads a partition at that epoch, and ever since."""
    subtopology = None if group.topology is None else group.topology.sources.get(topic)
    for held in (member.assigned, member.revoking):
        since = None if subtopology is None else held.active.get(subtopology, {}).get(partition)
        if since is not None:
            return epoch >= since
    return False


def check_streams_fetch(group: StreamsGroup, asked: OffsetFetchRequestGroup) -> ErrorCode:
    """NONE if the offsets may be returned. An administrator names no member."""
    if asked.member_id is None and asked.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(asked.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if asked.member_epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH
