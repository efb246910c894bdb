"""Records of the state of share groups, byte by byte: Kafka 4.3.1's classes read them and write them the same."""

import pytest

from millstream.wire.messages.read_share_group_state import StateBatch
from millstream.wire.messages.share_state_storage import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from millstream.wire.schema import Stored, StoredKey
from millstream.wire.stored import decode_share_state_key, decode_versioned, encode_key, encode_versioned

TOPIC_ID = bytes(range(16))
ID = "000102030405060708090a0b0c0d0e0f"

STATE_KEYS: list[tuple[StoredKey, str]] = [
    (ShareSnapshotKey("g", TOPIC_ID, 3), f"0000 0001 67 {ID} 00000003"),
    (ShareUpdateKey("g", TOPIC_ID, 3), f"0001 0001 67 {ID} 00000003"),
]

VALUES: list[tuple[Stored, str]] = [
    (
        ShareSnapshotValue(1, 2, 3, 40, 5, 1000, 2000, [StateBatch(40, 44, 2, 1)]),
        (
            "0000 00000001 00000002 00000003 0000000000000028 00000000000003e8 00000000000007d0"
            " 02 0000000000000028 000000000000002c 02 0001 00 01 00 04 00000005"
        ),
    ),
    (ShareUpdateValue(1, 3, -1, -1, []), "0000 00000001 00000003 ffffffffffffffff 01 00"),
]


@pytest.mark.parametrize(("key", "text"), STATE_KEYS)
def test_keys_are_these_bytes(key: StoredKey, text: str) -> None:
    assert encode_key(key).hex() == bytes.fromhex(text).hex()


@pytest.mark.parametrize(("key", "text"), STATE_KEYS)
def test_keys_of_the_state_are_read(key: StoredKey, text: str) -> None:
    assert decode_share_state_key(bytes.fromhex(text)) == key


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_values_are_these_bytes(value: Stored, text: str) -> None:
    assert encode_versioned(value, 0).hex() == bytes.fromhex(text).hex()
    assert decode_versioned(type(value), bytes.fromhex(text)) == value


def test_keys_of_other_records_are_skipped() -> None:
    assert decode_share_state_key(bytes.fromhex("0002 0001 67")) is None
