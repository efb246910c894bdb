"""Records of ``__consumer_offsets``: which versions are written, and which are read.

Written exactly as by Apache Kafka 4.3, so that each reads the other's logs: offsets in version 4 (with the topic id as
a tagged field), or in version 1 if the commit has its own retention time; groups in version 3; consumer groups
(KIP-848), share groups (KIP-932) and streams groups (KIP-1071) in their only version. A null value deletes. All
versions that Kafka ever wrote are read. Keys of other features are skipped.

A record that does not decode raises ``Corruption``, because skipping it could lose committed offsets.
"""

from typing import Final

from millstream.core.group.outputs import Key, Value
from millstream.errors import Corruption
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.group_storage import GroupMetadataValue, OffsetCommitValue
from millstream.wire.records import Record
from millstream.wire.stored import decode_offsets_key, decode_offsets_value, encode_key, encode_versioned

_GROUP_VERSION: Final = 3
_OFFSET_VERSION: Final = 4
_EXPIRING_OFFSET_VERSION: Final = 1
_ASSIGNED_GROUP_VERSION: Final = 0


def encode_record(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """Key and value of the record that stores ``value``, or (None) deletes the stored one."""
    if value is None:
        return encode_key(key), None
    if isinstance(value, GroupMetadataValue):
        version = _GROUP_VERSION
    elif not isinstance(value, OffsetCommitValue):
        version = _ASSIGNED_GROUP_VERSION
    elif value.expire_timestamp != -1:
        version = _EXPIRING_OFFSET_VERSION
    else:
        version = _OFFSET_VERSION
    return encode_key(key), encode_versioned(value, version)


def decode_record(record: Record) -> tuple[Key, Value | None] | None:
    """Key and value of a record; None for a record of another feature.

    Raises:
        Corruption: the record is invalid.
    """
    try:
        if record.key is None:
            raise ProtocolError("it has no key")
        key = decode_offsets_key(record.key)
        if key is None:
            return None
        if record.value is None:
            return key, None
        return key, decode_offsets_value(key, record.value)
    except ProtocolError as error:
        raise Corruption(f"the record at offset {record.offset} does not decode: {error.message}") from None
