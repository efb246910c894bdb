"""Messages inside records and inside other messages: an int16, then the body.

For values, and for the consumer protocol that group members speak through the broker, the int16 is the version of the
body. For keys of ``__consumer_offsets`` it is the type of the record, whose body has one version.

Invalid bytes raise ``ProtocolError``. A key of an unknown type is no error: other features of this or a newer broker
write to the same topic, and a reader skips unknown types.
"""

from typing import Final, TypeAlias, TypeVar

from millstream.wire.codec import decode_message, encode_message
from millstream.wire.errors import ProtocolError, UnsupportedVersion
from millstream.wire.messages.assigned_group_storage import (
    AssignmentEpochKey,
    CurrentKey,
    GroupEpochKey,
    MemberKey,
    TargetKey,
)
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from millstream.wire.messages.share_state_storage import ShareSnapshotKey, ShareUpdateKey
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from millstream.wire.messages.transaction_storage import TransactionLogKey
from millstream.wire.schema import Embedded, Piece, Stored, StoredKey

_V = TypeVar("_V", bound=Stored | Embedded)

AssignedGroupKey: TypeAlias = (
    GroupEpochKey
    | MemberKey
    | AssignmentEpochKey
    | TargetKey
    | CurrentKey
    | ConsumerGroupRegularExpressionKey
    | ShareGroupStatePartitionMetadataKey
    | StreamsGroupTopologyKey
)
"""A key of a group whose members the coordinator assigns."""
OffsetsKey: TypeAlias = OffsetCommitKey | GroupMetadataKey | AssignedGroupKey

_OFFSETS_RECORDS: Final[dict[type[OffsetsKey], type[Stored]]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey: ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
    ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
    ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
    ShareGroupStatePartitionMetadataKey: ShareGroupStatePartitionMetadataValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    StreamsGroupMetadataKey: StreamsGroupMetadataValue,
    StreamsGroupMemberMetadataKey: StreamsGroupMemberMetadataValue,
    StreamsGroupTargetAssignmentMetadataKey: StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTargetAssignmentMemberKey: StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupCurrentMemberAssignmentKey: StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupTopologyKey: StreamsGroupTopologyValue,
}
"""Key and value of every record of ``__consumer_offsets`` that is read."""

_OFFSETS_KEYS: Final[dict[int, type[OffsetsKey]]] = {
    0: OffsetCommitKey,
    **{key.API_KEY: key for key in _OFFSETS_RECORDS},
}


def encode_key(key: StoredKey) -> bytes:
    """The key of a stored record, preceded by its type."""
    return bytes(encode_message(key, 0, bytearray(key.API_KEY.to_bytes(2, "big"))))


def decode_offsets_key(buf: Piece) -> OffsetsKey | None:
    """Decode a key of ``__consumer_offsets``; None for an unknown record type."""
    cls = _OFFSETS_KEYS.get(_lead(buf))
    return None if cls is None else decode_message(cls, 0, buf, 2)


def decode_offsets_value(key: OffsetsKey, buf: Piece) -> Stored:
    """Decode the value of the record with this key. Raises as ``decode_versioned``."""
    return decode_versioned(_OFFSETS_RECORDS[type(key)], buf)


def decode_transaction_key(buf: Piece) -> TransactionLogKey | None:
    """Decode a key of ``__transaction_state``; None for an unknown record type."""
    return decode_message(TransactionLogKey, 0, buf, 2) if _lead(buf) == TransactionLogKey.API_KEY else None


def decode_share_state_key(buf: Piece) -> ShareSnapshotKey | ShareUpdateKey | None:
    """Decode a key of ``__share_group_state``; None for an unknown record type."""
    cls = {0: ShareSnapshotKey, 1: ShareUpdateKey}.get(_lead(buf))
    return None if cls is None else decode_message(cls, 0, buf, 2)


def encode_versioned(message: Stored | Embedded, version: int) -> bytes:
    """The encoded message, preceded by its version."""
    return bytes(encode_message(message, version, bytearray(version.to_bytes(2, "big"))))


def decode_versioned(cls: type[_V], buf: Piece) -> _V:
    """Decode a message that is preceded by its version.

    Raises:
        UnsupportedVersion: the version is not declared. Embedded messages of newer versions are read as the newest
            declared one.
        ProtocolError: the bytes are not such a message.
    """
    version = _lead(buf)
    low, high = cls.VERSIONS
    if version > high and issubclass(cls, Embedded):
        version = high
    if not low <= version <= high:
        raise UnsupportedVersion(f"{cls.__name__} v{version} is not declared")
    return decode_message(cls, version, buf, 2)


def _lead(buf: Piece) -> int:
    if len(buf) < 2:
        raise ProtocolError("no room for a version")
    return int.from_bytes(buf[:2], "big", signed=True)
