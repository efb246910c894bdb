"""The groups of all partitions of ``__consumer_offsets`` whose home is this shard."""

import base64
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from millstream.coordinator.asks import Ask
from millstream.coordinator.groups_partition import Done, GroupsPartition, OffsetsPartition
from millstream.coordinator.share_asks import AskStates, no_share_coordinator
from millstream.coordinator.state_partition import State
from millstream.coordinator.state_topic import Loads
from millstream.core.group.counts import GroupCounts
from millstream.core.group.describe import describe_group, list_groups
from millstream.core.group.outputs import (
    AlterShareOffsets,
    Commit,
    ConsumerHeartbeat,
    Delete,
    DeleteOffsets,
    DeleteShareOffsets,
    DescribeConsumer,
    DescribeShare,
    DescribeStreams,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    Input,
    Join,
    Leave,
    ShareHeartbeat,
    ShareStatesOf,
    StreamsHeartbeat,
    Sync,
)
from millstream.core.group.state import GroupState
from millstream.core.group.topics import Topics
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion
from millstream.partition.append.verification import Ask as VerifyAsk
from millstream.partition.append.verification import no_coordinator
from millstream.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from millstream.wire.messages.describe_groups import DescribedGroup
from millstream.wire.messages.describe_share_group_offsets import DescribeShareGroupOffsetsGroup
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListedGroup
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from millstream.wire.schema import ZERO_UUID, Message

if TYPE_CHECKING:
    from millstream.shard.context import Shard

_EXPIRY_SHARE: Final = 0.1
_NEWEST_COMMIT: Final = OffsetCommitRequest.VERSIONS[1]
_COUNT_US: Final = 1_000_000
_ADDS_FROM: Final = 5
"""First version of TxnOffsetCommit whose client leaves adding the partition to the broker."""


class LocalGroups:
    """All groups of one shard.

    Lifecycle: one per shard. ``opened`` and ``closed`` follow the partitions; ``stop`` refuses all waiting requests.
    """

    def __init__(
        self, shard: "Shard", settings: GroupSettings, expiry_interval_ms: int, topics: Topics | None = None
    ) -> None:
        self._shard = shard
        self._topics = topics
        self._settings = settings
        self._expiry_interval_us = expiry_interval_ms * 1000
        self._counts = GroupCounts()
        self._meters = _Meters(shard, self._counts)
        self.partitions: dict[int, GroupsPartition] = {}
        self.loads = Loads()
        self.ask_coordinator: VerifyAsk = no_coordinator
        """Asks the coordinator of a transaction, wherever it is. Set before a partition opens."""
        self.ask_states: AskStates = no_share_coordinator
        """Asks for share state, wherever its coordinator is. Set before a partition opens."""
        shard.reactor.call_later(self._expiry_interval_us, self._expire)

    def opened(self, partition: OffsetsPartition) -> None:
        """A partition of ``__consumer_offsets`` opened on this shard: load its groups."""
        self.loads.began()
        reactor = self._shard.reactor
        groups = GroupsPartition(
            partition, reactor, self._settings, self._counts, self.loads.ended, self._topics, self._meters.refresh
        )
        groups.verified.ask = self.ask_coordinator
        groups.ask_states = self.ask_states
        self.partitions[partition.index] = groups

    def when_loaded(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no partition of this shard is loading, maybe at once."""
        self.loads.when_none(done)

    def closed(self, partition: OffsetsPartition) -> None:
        """The partition is about to close."""
        groups = self.partitions.pop(partition.index, None)
        if groups is not None:
            groups.close()

    def stop(self) -> None:
        """Refuse all waiting requests, so that clients look for the next coordinator."""
        for groups in self.partitions.values():
            groups.stop()

    # Requests

    def ask(self, ask: Ask, request: Message, done: Done) -> None:
        """Process the request of ``ask``. ``done`` gets the response or the code that refuses it."""
        groups = self.partitions.get(ask.partition)
        if groups is None:
            done(ErrorCode.NOT_COORDINATOR)
        elif groups.state is not State.ACTIVE:
            done(groups.refusal)
        elif isinstance(request, TxnOffsetCommitRequest):
            self._commit_in_transaction(groups, ask.version, request, done)
        else:
            groups.step(_input(ask, request, done))

    def _commit_in_transaction(
        self, groups: GroupsPartition, version: ApiVersion, request: TxnOffsetCommitRequest, done: Done
    ) -> None:
        def verified(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                done(error)
            elif groups.state is not State.ACTIVE:
                done(groups.refusal)
            else:
                groups.step(_transactional(done, request, self._topics))

        groups.verified.verify(request, verified, adds=version >= _ADDS_FROM)

    def list(self, states: list[str], types: list[str]) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups of this shard that pass the filters; an error while some are being loaded."""
        error = ErrorCode.NONE
        listed: list[ListedGroup] = []
        for groups in self.partitions.values():
            if groups.state is State.LOADING:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            elif groups.state is State.ACTIVE:
                listed += list_groups(groups.core.groups.values(), states, types)
        return error, listed

    def describe(self, partition: int, group_id: str, version: ApiVersion) -> DescribedGroup:
        """One group of a partition."""
        groups = self.partitions.get(partition)
        if groups is None:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
        if groups.state is not State.ACTIVE:
            return DescribedGroup(group_id=group_id, error_code=groups.refusal)
        return describe_group(group_id, groups.core.groups.get(group_id), version)

    # Housekeeping

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """Drop the offsets that groups of this shard committed for a deleted topic."""
        for groups in list(self.partitions.values()):
            groups.topic_deleted(topic, topic_id)

    def _expire(self) -> None:
        def walk() -> Generator[None, None, None]:
            for groups in list(self.partitions.values()):
                yield from groups.expire()

        def done() -> None:
            self._meters.refresh()
            self._shard.reactor.call_later(self._expiry_interval_us, self._expire)

        self._shard.reactor.background("expiry", walk(), _EXPIRY_SHARE, done)


def _input(ask: Ask, request: Message, done: Done) -> Input:
    """The core's input for a request."""
    client_id, client_host, version, principal = ask.client_id, ask.client_host, ask.version, ask.principal
    match request:
        case HeartbeatRequest():
            return Heartbeat(done, request)
        case OffsetCommitRequest():
            return Commit(done, request, version)
        case ConsumerGroupHeartbeatRequest():
            return ConsumerHeartbeat(done, request, version, client_id, client_host, _member_id(), principal)
        case ShareGroupHeartbeatRequest():
            return ShareHeartbeat(done, request, client_id, client_host)
        case StreamsGroupHeartbeatRequest():
            return StreamsHeartbeat(done, request, client_id, client_host)
        case OffsetFetchRequestGroup():
            return FetchOffsets(done, request, ask.require_stable)
        case JoinGroupRequest():
            return Join(done, request, version, client_id, client_host, _member_suffix(), principal)
        case SyncGroupRequest():
            return Sync(done, request, version)
        case LeaveGroupRequest():
            return Leave(done, request, version)
        case _:
            return _administration(request, done)


def _administration(request: Message, done: Done) -> Input:
    """The core's input for a request of an administrator."""
    match request:
        case ConsumerGroupDescribeRequest():
            return DescribeConsumer(done, *request.group_ids)
        case ShareGroupDescribeRequest():
            return DescribeShare(done, *request.group_ids)
        case StreamsGroupDescribeRequest():
            return DescribeStreams(done, *request.group_ids)
        case DeleteGroupsRequest():
            return Delete(done, *request.groups_names)
        case OffsetDeleteRequest():
            return DeleteOffsets(done, request)
        case DescribeShareGroupOffsetsGroup():
            return ShareStatesOf(done, request.group_id)
        case AlterShareGroupOffsetsRequest():
            return AlterShareOffsets(done, request)
        case _:
            assert isinstance(request, DeleteShareGroupOffsetsRequest)
            return DeleteShareOffsets(done, request)


def _transactional(
    done: Callable[[Message | ErrorCode], None], request: TxnOffsetCommitRequest, existing: Topics | None
) -> Commit:
    """The commit of a transaction, worded as an OffsetCommit, which names topics by id, too."""

    def topic_id(name: str) -> bytes:
        topic = None if existing is None else existing.by_name(name)
        return ZERO_UUID if topic is None else topic.topic_id

    topics = [
        OffsetCommitRequestTopic(
            name=topic.name,
            topic_id=topic_id(topic.name),
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=one.partition_index,
                    committed_offset=one.committed_offset,
                    committed_leader_epoch=one.committed_leader_epoch,
                    committed_metadata=one.committed_metadata,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    commit = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )
    return Commit(done, commit, _NEWEST_COMMIT, (request.producer_id, request.producer_epoch))


def _member_suffix() -> str:
    """A random UUID in its usual notation."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _member_id() -> str:
    """A random UUID in the notation of Kafka's own member ids."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


class _Meters:
    """Copies the group counts into the shard's metrics, at most once a second and only after a change."""

    def __init__(self, shard: "Shard", counts: GroupCounts) -> None:
        stats = shard.stats
        self._reactor = shard.reactor
        self._counts = counts
        self._states = {state: stats.gauge("group_count", state=state.value) for state in GroupState}
        self._members = stats.gauge("group_members")
        self._counters = {
            name: stats.counter(metric)
            for name, metric in (
                ("rebalances", "group_rebalances"),
                ("expired_members", "group_expired_members"),
                ("committed_offsets", "group_offset_commits"),
                ("expired_offsets", "group_expired_offsets"),
            )
        }
        self._waiting = False

    def refresh(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._reactor.call_later(_COUNT_US, self._copy)

    def _copy(self) -> None:
        self._waiting = False
        for state, gauge in self._states.items():
            gauge.set(self._counts.states[state])
        self._members.set(self._counts.members)
        for name, counter in self._counters.items():
            counter.inc(getattr(self._counts, name) - counter.value)
