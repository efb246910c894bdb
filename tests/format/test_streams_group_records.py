"""Records of streams groups, byte by byte: Kafka 4.3.1 lays them out so."""

import pytest

from millstream.wire.messages.streams_group_heartbeat import (
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTopicInfo,
)
from millstream.wire.messages.streams_group_storage import (
    StoredTaskIds,
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
from millstream.wire.schema import Stored, StoredKey
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key, encode_versioned

KEYS: list[tuple[StoredKey, str]] = [
    (StreamsGroupMetadataKey("g"), "0011 0001 67"),
    (StreamsGroupMemberMetadataKey("g", "m"), "0013 0001 67 0001 6d"),
    (StreamsGroupTargetAssignmentMetadataKey("g"), "0014 0001 67"),
    (StreamsGroupTargetAssignmentMemberKey("g", "m"), "0015 0001 67 0001 6d"),
    (StreamsGroupCurrentMemberAssignmentKey("g", "m"), "0016 0001 67 0001 6d"),
    (StreamsGroupTopologyKey("g"), "0017 0001 67"),
]
VALUES: list[tuple[Stored, str]] = [
    (StreamsGroupMetadataValue(2, 1), "0000 00000002 0000000000000001 00"),
    (
        StreamsGroupMetadataValue(2, 1, 3, [StreamsKeyValue("k", "1")]),
        "0000 00000002 0000000000000001 02 00 04 00000003 01 06 02 02 6b 02 31 00",
    ),
    (
        StreamsGroupMemberMetadataValue(
            None, "r", "c", "/h", 9, 0, "p", StreamsEndpoint("e", 80), [StreamsKeyValue("k", "v")]
        ),
        "0000 00 02 72 02 63 03 2f68 00000009 00000000 02 70 01 02 65 0050 00 02 02 6b 02 76 00 00",
    ),
    (StreamsGroupTargetAssignmentMetadataValue(2, 3), "0000 00000002 01 00 08 0000000000000003"),
    (
        StreamsGroupTargetAssignmentMemberValue([StreamsTaskIds("0", [0, 1])], [StreamsTaskIds("1", [2])]),
        "0000 02 02 30 03 00000000 00000001 00 02 02 31 02 00000002 00 01 00",
    ),
    (
        StreamsGroupCurrentMemberAssignmentValue(3, 2, 1, [StoredTaskIds("0", [4], [3])], [StoredTaskIds("1", [5])]),
        "0000 00000003 00000002 01 02 02 30 02 00000004 01 00 05 02 00000003 02 02 31 02 00000005 00 01 01 01 01 00",
    ),
    (
        StreamsGroupTopologyValue(
            1, [StreamsSubtopology("0", ["t"], state_changelog_topics=[StreamsTopicInfo("c", 0, 3)])]
        ),
        "0000 00000001 02 02 30 02 02 74 01 02 02 63 00000000 0003 01 00 01 01 01 00 00",
    ),
]


@pytest.mark.parametrize(("key", "golden"), KEYS)
def test_keys(key: StoredKey, golden: str) -> None:
    assert encode_key(key) == bytes.fromhex(golden)
    assert decode_offsets_key(bytes.fromhex(golden)) == key


@pytest.mark.parametrize(("value", "golden"), VALUES)
def test_values(value: Stored, golden: str) -> None:
    assert encode_versioned(value, 0) == bytes.fromhex(golden)
    assert decode_versioned(type(value), bytes.fromhex(golden)) == value
