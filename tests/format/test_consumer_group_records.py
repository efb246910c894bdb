"""Records of consumer groups as an Apache Kafka 4.3.1 wrote them: read, and written again to the same bytes."""

import pytest

from millstream.wire.messages.consumer_group_storage import (
    ClassicMemberMetadata,
    ClassicProtocol,
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
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from millstream.wire.schema import Stored, StoredKey
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key, encode_versioned

TOPIC_ID = bytes(range(16))
ID = "000102030405060708090a0b0c0d0e0f"

KEYS: list[tuple[StoredKey, str]] = [
    (ConsumerGroupMetadataKey("g"), "0003 0001 67"),
    (ConsumerGroupMemberMetadataKey("g", "m"), "0005 0001 67 0001 6d"),
    (ConsumerGroupTargetAssignmentMetadataKey("g"), "0006 0001 67"),
    (ConsumerGroupTargetAssignmentMemberKey("g", "m"), "0007 0001 67 0001 6d"),
    (ConsumerGroupCurrentMemberAssignmentKey("g", "m"), "0008 0001 67 0001 6d"),
    (ConsumerGroupRegularExpressionKey("g", "t|u"), "0010 0001 67 0003 74 7c 75"),
]

VALUES: list[tuple[Stored, str]] = [
    (ConsumerGroupMetadataValue(2, 1), "0000 00000002 01 00 08 0000000000000001"),
    (
        # A member of the consumer protocol: the classic metadata are a null behind their tag.
        ConsumerGroupMemberMetadataValue(None, None, "c", "/127.0.0.1", [], "t|u", 30000, None, None),
        "0000 00 00 02 63 0b 2f3132372e302e302e31 01 04 747c75 00007530 00 01 00 01 00",
    ),
    (
        ConsumerGroupMemberMetadataValue(
            "i",
            "r",
            "c",
            "/h",
            ["t"],
            "",
            100,
            "range",
            ClassicMemberMetadata(6000, [ClassicProtocol("range", b"\x01")]),
        ),
        (
            "0000 02 69 02 72 02 63 03 2f68 02 02 74 01 00000064 06 72616e6765 01 00 10 01 00001770 02 06 72616e6765"
            " 02 01 00 00"
        ),
    ),
    (ConsumerGroupTargetAssignmentMetadataValue(2, 3), "0000 00000002 01 00 08 0000000000000003"),
    (
        ConsumerGroupTargetAssignmentMemberValue([TargetTopicPartitions(TOPIC_ID, [0, 1])]),
        f"0000 02 {ID} 03 00000000 00000001 00 00",
    ),
    (
        ConsumerGroupCurrentMemberAssignmentValue(3, 2, 1, [CurrentTopicPartitions(TOPIC_ID, [0], [2])], []),
        f"0000 00000003 00000002 01 02 {ID} 02 00000000 01 00 05 02 00000002 01 00",
    ),
    (
        ConsumerGroupRegularExpressionValue(["t", "u"], 661, 1),
        "0000 03 02 74 02 75 0000000000000295 0000000000000001 00",
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


def test_keys_of_other_features_are_skipped() -> None:
    assert decode_offsets_key(bytes.fromhex("0018 0001 67")) is None
    assert decode_offsets_key(bytes.fromhex("0004 0001 67")) is None
