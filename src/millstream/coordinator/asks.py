"""Requests about groups between shards, as bytes.

Only processes of one broker, all of the same build, exchange these messages. They are the request structs themselves in
MessagePack: cheaper than Kafka's encoding, and topic names that one shard resolved travel along.
"""

from typing import Any, Final

import msgspec

from millstream.core.group.streams.heartbeat import StreamsBeaten
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from millstream.wire.messages.describe_groups import DescribedGroup
from millstream.wire.messages.describe_share_group_offsets import DescribeShareGroupOffsetsGroup, ShareOffsetsGroup
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.list_groups import ListedGroup
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from millstream.wire.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from millstream.wire.messages.streams_group_describe import DescribedStreamsGroup, StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from millstream.wire.schema import Message

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
TXN_OFFSET_COMMIT: Final = 28
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
STREAMS_GROUP_HEARTBEAT: Final = 88
STREAMS_GROUP_DESCRIBE: Final = 89
DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
ALTER_SHARE_GROUP_OFFSETS: Final = 91
DELETE_SHARE_GROUP_OFFSETS: Final = 92

# Methods of the mailbox.
ASK: Final = 60
LIST: Final = 61
DESCRIBE: Final = 62

_TYPES: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    OFFSET_FETCH: (OffsetFetchRequestGroup, OffsetFetchResponseGroup),
    TXN_OFFSET_COMMIT: (TxnOffsetCommitRequest, OffsetCommitResponse),
    JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    DELETE_GROUPS: (DeleteGroupsRequest, DeletableGroupResult),
    OFFSET_DELETE: (OffsetDeleteRequest, OffsetDeleteResponse),
    CONSUMER_GROUP_HEARTBEAT: (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    CONSUMER_GROUP_DESCRIBE: (ConsumerGroupDescribeRequest, DescribedConsumerGroup),
    SHARE_GROUP_HEARTBEAT: (ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
    SHARE_GROUP_DESCRIBE: (ShareGroupDescribeRequest, DescribedShareGroup),
    STREAMS_GROUP_HEARTBEAT: (StreamsGroupHeartbeatRequest, StreamsBeaten),
    STREAMS_GROUP_DESCRIBE: (StreamsGroupDescribeRequest, DescribedStreamsGroup),
    DESCRIBE_SHARE_GROUP_OFFSETS: (DescribeShareGroupOffsetsGroup, ShareOffsetsGroup),
    ALTER_SHARE_GROUP_OFFSETS: (AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
    DELETE_SHARE_GROUP_OFFSETS: (DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
}
_decoders: Final[dict[int, tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]]] = {
    api: (msgspec.msgpack.Decoder(request), msgspec.msgpack.Decoder(response))
    for api, (request, response) in _TYPES.items()
}


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A request for one group. ``require_stable`` belongs to OffsetFetch. ``body`` is empty within a shard."""

    api: int
    partition: int
    version: int
    client_id: str
    client_host: str
    require_stable: bool
    body: bytes
    principal: str = ""


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The response: a body, or the error code of the whole request."""

    error: int
    body: bytes


class ListAsk(msgspec.Struct, frozen=True, array_like=True):
    """Request for the list of a shard's groups."""

    states: list[str]
    types: list[str]


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """The groups of a shard. ``error`` is set while some are still being loaded."""

    error: int
    groups: list[ListedGroup]


class DescribeAsk(msgspec.Struct, frozen=True, array_like=True):
    """Request for the descriptions of groups, each as (partition, group id)."""

    version: int
    groups: list[tuple[int, str]]


class Described(msgspec.Struct, frozen=True, array_like=True):
    """The descriptions, in the order of the request."""

    groups: list[DescribedGroup]


encode: Final = msgspec.msgpack.Encoder().encode
decode_ask: Final = msgspec.msgpack.Decoder(Ask).decode
decode_answered: Final = msgspec.msgpack.Decoder(Answered).decode
decode_list_ask: Final = msgspec.msgpack.Decoder(ListAsk).decode
decode_listed: Final = msgspec.msgpack.Decoder(Listed).decode
decode_describe_ask: Final = msgspec.msgpack.Decoder(DescribeAsk).decode
decode_described: Final = msgspec.msgpack.Decoder(Described).decode


def decode_request(api: ApiKey, body: bytes) -> Message:
    """The request in an ``Ask``."""
    return _decoders[api][0].decode(body)


def encode_answer(answer: Message | ErrorCode) -> bytes:
    """Encode a response or an error code."""
    if isinstance(answer, ErrorCode):
        return encode(Answered(int(answer), b""))
    return encode(Answered(0, encode(answer)))


def decode_answer(api: ApiKey, data: bytes) -> Message | ErrorCode:
    """Decode what ``encode_answer`` encoded."""
    answered = decode_answered(data)
    return ErrorCode(answered.error) if answered.error else _decoders[api][1].decode(answered.body)
