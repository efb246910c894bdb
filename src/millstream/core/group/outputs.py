"""What goes into a coordinator and what comes out of it."""

from typing import TypeAlias

import msgspec

from millstream.core.group.member import Token
from millstream.model.error_code import ErrorCode
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


class Persisted(msgspec.Struct, frozen=True):
    """The fate of a ``Write``: durable, or (``error``) not in the log. Given in the order of the writes."""

    receipt: int
    error: ErrorCode = ErrorCode.NONE


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic is gone; so are the offsets committed for it."""

    topic: str


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
    | Persisted
    | TopicDeleted
    | Expire
    | Tick
)


# Outputs.

Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue


class Write(msgspec.Struct, frozen=True):
    """Append these records in order (a value None is a tombstone), then step ``Persisted(receipt)``."""

    receipt: int
    records: tuple[tuple[Key, Value | None], ...]


class Outputs:
    """What a step wants done: answers to send, records to persist. Log lines are for an operator at night."""

    __slots__ = ("answers", "log_lines", "writes")

    def __init__(self) -> None:
        self.answers: list[tuple[Token, Message]] = []
        self.writes: list[Write] = []
        self.log_lines: list[str] = []

    def answer(self, token: Token, response: Message) -> None:
        self.answers.append((token, response))
