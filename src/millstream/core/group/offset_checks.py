"""Checks of OffsetCommit, TxnOffsetCommit and OffsetFetch for groups whose members have epochs: consumer and streams
groups.

A member commits with its epoch. A member that is behind may commit partitions that it already had at the epoch it names
(KIP-1251), because the response with its newer epoch may have left after the commit: the partitions that it owned, or
in a streams group the source partitions of its active tasks. A client without membership commits to an empty group
only.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import StreamsMember
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion, MemberEpoch
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup

_MEMBER_EPOCHS_FROM: Final = 9
"""First version of OffsetCommit with epochs of members."""

_Member = TypeVar("_Member", ConsumerMember, StreamsMember)


def check_consumer_commit(group: ConsumerGroup, request: OffsetCommitRequest, version: ApiVersion) -> ErrorCode:
    """NONE if the commit may be written."""

    def since(member: ConsumerMember, topic: OffsetCommitRequestTopic, partition: int) -> int | None:
        for owned in (member.assigned, member.revoking):
            if (found := owned.get(topic.topic_id, {}).get(partition)) is not None:
                return found
        return None

    return _check_commit(group.members, request, version, since)


def check_streams_commit(group: StreamsGroup, request: OffsetCommitRequest, version: ApiVersion) -> ErrorCode:
    """NONE if the commit may be written. The topics of the request are named."""

    def since(member: StreamsMember, topic: OffsetCommitRequestTopic, partition: int) -> int | None:
        subtopology = None if group.topology is None else group.topology.sources.get(topic.name)
        if subtopology is None:
            return None
        for held in (member.assigned, member.revoking):
            if (found := held.active.get(subtopology, {}).get(partition)) is not None:
                return found
        return None

    return _check_commit(group.members, request, version, since)


def _check_commit(
    members: Mapping[str, _Member],
    request: OffsetCommitRequest,
    version: ApiVersion,
    since: Callable[[_Member, OffsetCommitRequestTopic, int], MemberEpoch | None],
) -> ErrorCode:
    """``since`` gives the epoch from which on a member has a partition; None if it does not have it."""
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not members:
        return ErrorCode.NONE
    member = members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if version < _MEMBER_EPOCHS_FROM and not _is_classic(member):
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch < member.epoch and all(
        (first := since(member, topic, partition.partition_index)) is not None and epoch >= first
        for topic in request.topics
        for partition in topic.partitions
    ):
        return ErrorCode.NONE
    return _stale(member)


def check_fetch(group: ConsumerGroup | StreamsGroup, asked: OffsetFetchRequestGroup) -> ErrorCode:
    """NONE if the offsets may be returned. An administrator names no member."""
    if asked.member_id is None and asked.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(asked.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if asked.member_epoch == member.epoch else _stale(member)


def _is_classic(member: ConsumerMember | StreamsMember) -> bool:
    """Whether the member speaks the classic protocol, with generations."""
    return isinstance(member, ConsumerMember) and member.classic is not None


def _stale(member: ConsumerMember | StreamsMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if _is_classic(member) else ErrorCode.STALE_MEMBER_EPOCH
