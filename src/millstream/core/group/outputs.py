"""Inputs and outputs of a group coordinator."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec

from millstream.core.group.assigned_state.group import AnyGroup
from millstream.core.group.deadlines import Deadline
from millstream.core.group.member import Token
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerId
from millstream.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.schema import Message, Stored
from millstream.wire.stored import OffsetsKey


class AssignedSettings(msgspec.Struct, frozen=True):
    """Settings of one type of group whose members the coordinator assigns."""

    group_type: ClassVar[str]
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignment_interval_ms: int = 1_000
    of_groups: Mapping[str, Mapping[str, int]] = {}
    """Group id → property → value, which override the settings; follows changes."""
    live: Mapping[str, int] = {}
    """Settings of the broker that change while it runs, by Kafka's name; follows changes."""

    def session_timeout_of(self, group_id: str) -> int:
        return self._of(group_id, "session.timeout.ms", self.session_timeout_ms)

    def heartbeat_interval_of(self, group_id: str) -> int:
        return self._of(group_id, "heartbeat.interval.ms", self.heartbeat_interval_ms)

    def assignment_interval_of(self, group_id: str) -> int:
        default = self.live.get(f"group.{self.group_type}.assignment.interval.ms", self.assignment_interval_ms)
        return self._of(group_id, "assignment.interval.ms", default)

    def _of(self, group_id: str, name: str, default: int) -> int:
        own = self.of_groups.get(group_id)
        return default if own is None else own.get(f"{self.group_type}.{name}", default)


class ConsumerSettings(AssignedSettings, frozen=True):
    """Settings of consumer groups (KIP-848)."""

    group_type = "consumer"
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    regex_refresh_interval_ms: int = 600_000


class ShareSettings(AssignedSettings, frozen=True):
    """Settings of share groups (KIP-932) that their coordinator needs."""

    group_type = "share"
    max_size: int = 200
    assignor: str = "simple"


class StreamsSettings(AssignedSettings, frozen=True):
    """Settings of streams groups (KIP-1071)."""

    group_type = "streams"
    num_standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000

    def standby_replicas_of(self, group_id: str) -> int:
        return self._of(group_id, "num.standby.replicas", self.num_standby_replicas)

    def initial_rebalance_delay_of(self, group_id: str) -> int:
        return self._of(group_id, "initial.rebalance.delay.ms", self.initial_rebalance_delay_ms)


class GroupSettings(msgspec.Struct, frozen=True):
    """The settings that group decisions depend on."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    """Kafka's fixed limit on a first join in ms: its client has no member id and cannot send heartbeats."""
    max_size: int = 2**31 - 1
    pending_joins_max: int = 10_000
    """Maximum number of unused member ids of one group. Kafka has no such limit."""
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    consumer: ConsumerSettings = ConsumerSettings()
    share: ShareSettings = ShareSettings()
    streams: StreamsSettings = StreamsSettings()

    def of(self, group: AnyGroup) -> AssignedSettings:
        """The settings of a group's type."""
        return {"consumer": self.consumer, "share": self.share, "streams": self.streams}[group.group_type]


StateRequest: TypeAlias = InitializeShareGroupStateRequest | DeleteShareGroupStateRequest
StateResponse: TypeAlias = InitializeShareGroupStateResponse | DeleteShareGroupStateResponse


class StateAsk(msgspec.Struct, frozen=True):
    """A request to the share coordinator, to make or to delete the state of partitions. Then ``StateAnswered`` is
    stepped, exactly once. ``is_exclusive``: other requests about the group wait for that.
    """

    number: int
    group_id: str
    request: StateRequest
    is_exclusive: bool


# Inputs. ``version`` is the version of the request. The caller has resolved topic ids to names.


class GroupRequest(msgspec.Struct, frozen=True):
    """A request about one group. While a change of the group is in flight to the log, it waits."""

    token: Token
    request: Any


class Join(GroupRequest, frozen=True):
    """A JoinGroup. ``member_suffix`` is a new random text for the id of a new member."""

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    member_suffix: str
    principal: str = ""


class Sync(GroupRequest, frozen=True):
    """A SyncGroup."""

    request: SyncGroupRequest
    version: int


class Heartbeat(GroupRequest, frozen=True):
    """A Heartbeat."""

    request: HeartbeatRequest


class Leave(GroupRequest, frozen=True):
    """A LeaveGroup."""

    request: LeaveGroupRequest
    version: int


class Commit(GroupRequest, frozen=True):
    """An OffsetCommit. With ``producer`` (id, epoch) a TxnOffsetCommit: the offsets become the group's when the
    producer's transaction commits. ``version`` is then that of an OffsetCommit which is worded alike.
    """

    request: OffsetCommitRequest
    version: int
    producer: tuple[int, int] | None = None


class FetchOffsets(msgspec.Struct, frozen=True):
    """An OffsetFetch for one group. The response is an ``OffsetFetchResponseGroup``."""

    token: Token
    group: OffsetFetchRequestGroup
    require_stable: bool


class Delete(msgspec.Struct, frozen=True):
    """One group of a DeleteGroups. The response is a ``DeletableGroupResult``."""

    token: Token
    group_id: str


class DeleteOffsets(GroupRequest, frozen=True):
    """An OffsetDelete of existing topics."""

    request: OffsetDeleteRequest


class ConsumerHeartbeat(GroupRequest, frozen=True):
    """A ConsumerGroupHeartbeat. ``new_member_id`` is a new random id for a member without one."""

    request: ConsumerGroupHeartbeatRequest
    version: int
    client_id: str
    client_host: str
    new_member_id: str
    principal: str = ""


class DescribeConsumer(msgspec.Struct, frozen=True):
    """One group of a ConsumerGroupDescribe. The response is a ``DescribedConsumerGroup``."""

    token: Token
    group_id: str


class ShareHeartbeat(GroupRequest, frozen=True):
    """A ShareGroupHeartbeat."""

    request: ShareGroupHeartbeatRequest
    client_id: str
    client_host: str


class DescribeShare(msgspec.Struct, frozen=True):
    """One group of a ShareGroupDescribe. The response is a ``DescribedShareGroup``."""

    token: Token
    group_id: str


class ShareStatesOf(msgspec.Struct, frozen=True):
    """Which partitions of a group have share state. The response is a ``ShareOffsetsGroup``."""

    token: Token
    group_id: str


class AlterShareOffsets(GroupRequest, frozen=True):
    """An AlterShareGroupOffsets."""

    request: AlterShareGroupOffsetsRequest


class DeleteShareOffsets(GroupRequest, frozen=True):
    """A DeleteShareGroupOffsets."""

    request: DeleteShareGroupOffsetsRequest


class StreamsHeartbeat(GroupRequest, frozen=True):
    """A StreamsGroupHeartbeat. The response is a ``StreamsBeaten``."""

    request: StreamsGroupHeartbeatRequest
    client_id: str
    client_host: str


class DescribeStreams(msgspec.Struct, frozen=True):
    """One group of a StreamsGroupDescribe. The response is a ``DescribedStreamsGroup``."""

    token: Token
    group_id: str


class StateAnswered(msgspec.Struct, frozen=True):
    """The response to a ``StateAsk``."""

    ask: StateAsk
    response: StateResponse


class ForgetStates(msgspec.Struct, frozen=True):
    """A topic was deleted while its share group was being written. Only the coordinator creates it."""

    group_id: str
    topic_id: bytes


class ExpressionsResolved(msgspec.Struct, frozen=True):
    """Topics that the expressions of a ``Resolve`` match, at ``revision`` of the metadata."""

    group_id: str
    topics: Mapping[str, frozenset[str]]
    revision: int


class Due(msgspec.Struct, frozen=True):
    """A deadline that was reached while its group was being written. Only the coordinator creates it."""

    deadline: Deadline[Any]


class Persisted(msgspec.Struct, frozen=True):
    """Outcome of a ``Write``: durable, or (``error``) not in the log. Given in the order of the writes."""

    receipt: int
    error: ErrorCode = ErrorCode.NONE


class TransactionEnded(msgspec.Struct, frozen=True):
    """The marker of a producer's transaction is durable in this partition."""

    producer_id: ProducerId
    commits: bool


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic was deleted, and the offsets committed for it are to be deleted. A new topic may already have its
    name.
    """

    topic: str
    topic_id: bytes


class Expire(msgspec.Struct, frozen=True):
    """Search ``group_ids`` for expired offsets and groups."""

    group_ids: tuple[str, ...]


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The coordinator's ``deadline_us`` has been reached."""


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
    | ShareHeartbeat
    | DescribeShare
    | ShareStatesOf
    | AlterShareOffsets
    | DeleteShareOffsets
    | StreamsHeartbeat
    | DescribeStreams
    | StateAnswered
    | ForgetStates
    | ExpressionsResolved
    | Due
    | Persisted
    | TransactionEnded
    | TopicDeleted
    | Expire
    | DeadlinePassed
)


# Outputs.

Key: TypeAlias = OffsetsKey
Value: TypeAlias = Stored
"""The value of a key's type."""


class Write(msgspec.Struct, frozen=True):
    """Records to append in order (a value None is a tombstone). Then ``Persisted(receipt)`` is stepped. With
    ``producer`` (id, epoch) they are part of that producer's transaction.
    """

    receipt: int
    records: tuple[tuple[Key, Value | None], ...]
    producer: tuple[int, int] | None = None


class Resolve(msgspec.Struct, frozen=True):
    """Regular expressions to match against the topics that a client may describe: the one whose request came when they
    were due, as in Kafka. Then ``ExpressionsResolved`` is stepped.
    """

    group_id: str
    expressions: tuple[str, ...]
    principal: str = ""
    client_host: str = ""


class Outputs:
    """Effects of a step: responses to send, records to persist, expressions to match, share state to ask for.

    Log lines are for the operator.
    """

    __slots__ = ("answers", "asks", "log_lines", "resolve", "writes")

    def __init__(self) -> None:
        self.answers: list[tuple[Token, Message]] = []
        self.writes: list[Write] = []
        self.resolve: list[Resolve] = []
        self.asks: list[StateAsk] = []
        self.log_lines: list[str] = []

    def answer(self, token: Token, response: Message) -> None:
        self.answers.append((token, response))
