"""What goes into a coordinator and what comes out of it."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from millstream.core.group.deadlines import Deadline
from millstream.core.group.member import Token
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.schema import Message
from millstream.wire.stored import ConsumerGroupKey


class ConsumerSettings(msgspec.Struct, frozen=True):
    """Settings of consumer groups (KIP-848). ``of_groups`` are what single groups have been given instead."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    of_groups: Mapping[str, Mapping[str, int]] = {}
    """Group id → property → value; follows changes."""

    def session_timeout_of(self, group_id: str) -> int:
        return self._of(group_id, "consumer.session.timeout.ms", self.session_timeout_ms)

    def heartbeat_interval_of(self, group_id: str) -> int:
        return self._of(group_id, "consumer.heartbeat.interval.ms", self.heartbeat_interval_ms)

    def assignment_interval_of(self, group_id: str) -> int:
        return self._of(group_id, "consumer.assignment.interval.ms", self.assignment_interval_ms)

    def _of(self, group_id: str, name: str, default: int) -> int:
        own = self.of_groups.get(group_id)
        return default if own is None else own.get(name, default)


class GroupSettings(msgspec.Struct, frozen=True):
    """The settings that group decisions depend on."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    """Kafka's fixed limit on a first join: its sender has no member id and cannot heartbeat."""
    max_size: int = 2**31 - 1
    pending_joins_max: int = 10_000
    """Member ids of one group given out and not yet used. Kafka has no such bound."""
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    consumer: ConsumerSettings = ConsumerSettings()


# Inputs. ``version`` is the request's; topics are named (ids resolved) by the caller.


class Join(msgspec.Struct, frozen=True):
    """A JoinGroup. ``member_suffix`` is fresh randomness for the id of a new member."""

    token: Token
    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    member_suffix: str


class Sync(msgspec.Struct, frozen=True):
    """A SyncGroup."""

    token: Token
    request: SyncGroupRequest
    version: int


class Heartbeat(msgspec.Struct, frozen=True):
    """A Heartbeat."""

    token: Token
    request: HeartbeatRequest


class Leave(msgspec.Struct, frozen=True):
    """A LeaveGroup."""

    token: Token
    request: LeaveGroupRequest
    version: int


class Commit(msgspec.Struct, frozen=True):
    """An OffsetCommit."""

    token: Token
    request: OffsetCommitRequest
    version: int


class FetchOffsets(msgspec.Struct, frozen=True):
    """An OffsetFetch for one group; the answer is an ``OffsetFetchResponseGroup``."""

    token: Token
    group: OffsetFetchRequestGroup
    require_stable: bool


class Delete(msgspec.Struct, frozen=True):
    """One group of a DeleteGroups; the answer is a ``DeletableGroupResult``."""

    token: Token
    group_id: str


class DeleteOffsets(msgspec.Struct, frozen=True):
    """An OffsetDelete, of topics that exist."""

    token: Token
    request: OffsetDeleteRequest


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """A ConsumerGroupHeartbeat. ``new_member_id`` is fresh randomness for a member that has no id yet."""

    token: Token
    request: ConsumerGroupHeartbeatRequest
    version: int
    client_id: str
    client_host: str
    new_member_id: str


class DescribeConsumer(msgspec.Struct, frozen=True):
    """One group of a ConsumerGroupDescribe; the answer is a ``DescribedConsumerGroup``."""

    token: Token
    group_id: str


class ExpressionsResolved(msgspec.Struct, frozen=True):
    """What the expressions of a ``Resolve`` match, as of ``revision`` of the metadata."""

    group_id: str
    topics: Mapping[str, frozenset[str]]
    revision: int


class Due(msgspec.Struct, frozen=True):
    """A deadline that came while its group was being written; only the coordinator makes these."""

    deadline: Deadline


class Persisted(msgspec.Struct, frozen=True):
    """The fate of a ``Write``: durable, or (``error``) not in the log. Given in the order of the writes."""

    receipt: int
    error: ErrorCode = ErrorCode.NONE


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic is gone; so are the offsets committed for it. There may be another one of that name already."""

    topic: str
    topic_id: bytes


class Expire(msgspec.Struct, frozen=True):
    """Time to look for expired offsets and groups among ``group_ids``."""

    group_ids: tuple[str, ...]


class Tick(msgspec.Struct, frozen=True):
    """The time is the coordinator's ``deadline_us``, or later."""


Input: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | Commit
    | FetchOffsets
    | Delete
    | DeleteOffsets
    | ConsumerHeartbeat
    | DescribeConsumer
    | ExpressionsResolved
    | Due
    | Persisted
    | TopicDeleted
    | Expire
    | Tick
)


# Outputs.

Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey
Value: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


class Write(msgspec.Struct, frozen=True):
    """Append these records in order (a value None is a tombstone), then step ``Persisted(receipt)``."""

    receipt: int
    records: tuple[tuple[Key, Value | None], ...]


class Resolve(msgspec.Struct, frozen=True):
    """Find the topics that these expressions match, then step ``ExpressionsResolved``."""

    group_id: str
    expressions: tuple[str, ...]


class Outputs:
    """What a step wants done: answers to send, records to persist, expressions to look up.

    Log lines are for an operator at night.
    """

    __slots__ = ("answers", "log_lines", "resolve", "writes")

    def __init__(self) -> None:
        self.answers: list[tuple[Token, Message]] = []
        self.writes: list[Write] = []
        self.resolve: list[Resolve] = []
        self.log_lines: list[str] = []

    def answer(self, token: Token, response: Message) -> None:
        self.answers.append((token, response))
