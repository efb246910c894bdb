"""Records of share groups, byte by byte: Kafka 4.3.1's classes read them and write them the same."""

import pytest

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
    ShareTopicPartitions,
    StateTopic,
    StateTopicPartitions,
)
from millstream.wire.schema import Stored, StoredKey
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key, encode_versioned

TOPIC_ID = bytes(range(16))
ID = "000102030405060708090a0b0c0d0e0f"

KEYS: list[tuple[StoredKey, str]] = [
    (ShareGroupMemberMetadataKey("g", "m"), "000a 0001 67 0001 6d"),
    (ShareGroupMetadataKey("g"), "000b 0001 67"),
    (ShareGroupTargetAssignmentMetadataKey("g"), "000c 0001 67"),
    (ShareGroupTargetAssignmentMemberKey("g", "m"), "000d 0001 67 0001 6d"),
    (ShareGroupCurrentMemberAssignmentKey("g", "m"), "000e 0001 67 0001 6d"),
    (ShareGroupStatePartitionMetadataKey("g"), "000f 0001 67"),
]
VALUES: list[tuple[Stored, str]] = [
    (
        ShareGroupMemberMetadataValue("r", "c", "/127.0.0.1", ["t"]),
        "0000 02 72 02 63 0b 2f3132372e302e302e31 02 02 74 00",
    ),
    (ShareGroupMemberMetadataValue(None, "c", "/h", []), "0000 00 02 63 03 2f68 01 00"),
    (ShareGroupMetadataValue(2, 1), "0000 00000002 0000000000000001 00"),
    (ShareGroupTargetAssignmentMetadataValue(2, 3), "0000 00000002 01 00 08 0000000000000003"),
    (
        ShareGroupTargetAssignmentMemberValue([ShareTopicPartitions(TOPIC_ID, [0, 1])]),
        f"0000 02 {ID} 03 00000000 00000001 00 00",
    ),
    (
        ShareGroupCurrentMemberAssignmentValue(3, 2, 0, [ShareTopicPartitions(TOPIC_ID, [1])]),
        f"0000 00000003 00000002 00 02 {ID} 02 00000001 00 00",
    ),
    (
        ShareGroupStatePartitionMetadataValue(
            [StateTopicPartitions(TOPIC_ID, "t", [0])],
            [StateTopicPartitions(TOPIC_ID, "u", [1])],
            [StateTopic(TOPIC_ID, "v")],
        ),
        f"0000 02 {ID} 02 74 02 00000000 00 02 {ID} 02 75 02 00000001 00 02 {ID} 02 76 00 00",
    ),
]


@pytest.mark.parametrize(("key", "text"), KEYS)
def test_keys_are_these_bytes(key: StoredKey, text: str) -> None:
    assert encode_key(key).hex() == bytes.fromhex(text).hex()
    assert decode_offsets_key(bytes.fromhex(text)) == key


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_values_are_these_bytes(value: Stored, text: str) -> None:
    assert encode_versioned(value, 0).hex() == bytes.fromhex(text).hex()
    assert decode_versioned(type(value), bytes.fromhex(text)) == value
