"""Stored records against bytes that Apache Kafka 4.3.1's own classes wrote for the same values."""

import tracemalloc

import msgspec
import pytest

from millstream.coordinator.hashing import java_string_hash, partition_of
from millstream.coordinator.records import decode_record, encode_record
from millstream.core.group.commit import offset_record, stored_offset
from millstream.core.group.image import group_tombstone
from millstream.core.group.offsets import CommittedOffset
from millstream.errors import Corruption
from millstream.wire.messages.group_storage import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from millstream.wire.records import Record

TOPIC_ID = bytes(range(1, 17))

# Written by org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde 4.3.1.
GOLDEN = [
    (
        offset_record("grüppe", "orders", 3, CommittedOffset(42, 7, "meta", 1700000000123, -1, TOPIC_ID)),
        "000100076772c3bc70706500066f726465727300000003",
        "0004000000000000002a00000007056d6574610000018bcfe5687b0100100102030405060708090a0b0c0d0e0f10",
    ),
    (
        offset_record("g", "t", 0, CommittedOffset(1, -1, "", 5)),
        "000100016700017400000000",
        "00040000000000000001ffffffff01000000000000000500",
    ),
    (
        offset_record("g", "t", 1, CommittedOffset(9, 7, "m", 5, 99, TOPIC_ID)),
        "000100016700017400000001",
        "0001000000000000000900016d00000000000000050000000000000063",
    ),
    (offset_record("g", "t", 1, None), "000100016700017400000001", None),
    (group_tombstone("g"), "0002000167", None),
    (
        (
            GroupMetadataKey(group="g"),
            GroupMetadataValue(
                protocol="range",
                protocol_type="consumer",
                generation=5,
                leader="c-1",
                current_state_timestamp=1700000000000,
                members=[
                    MemberMetadata(
                        member_id="c-1",
                        group_instance_id="i-1",
                        client_id="c",
                        client_host="/10.0.0.1",
                        rebalance_timeout=60000,
                        session_timeout=10000,
                        subscription=b"\1\2",
                        assignment=b"\3",
                    ),
                    MemberMetadata(
                        member_id="c-2",
                        client_id="",
                        client_host="/::1",
                        rebalance_timeout=300000,
                        session_timeout=45000,
                    ),
                ],
            ),
        ),
        "0002000167",
        (
            "00030008636f6e73756d657200000005000572616e67650003632d310000018bcfe56800000000020003632d310003692d31000163"
            "00092f31302e302e302e310000ea600000271000000002010200000001030003632d32ffff000000042f3a3a31000493e00000afc8"
            "0000000000000000"
        ),
    ),
    (
        (
            GroupMetadataKey(group="g"),
            GroupMetadataValue(protocol=None, protocol_type="", generation=0, leader=None, current_state_timestamp=7),
        ),
        "0002000167",
        "0003000000000000ffffffff000000000000000700000000",
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_records_are_written_as_kafka_writes_them(record, key, value):
    encoded_key, encoded_value = encode_record(*record)
    assert encoded_key.hex() == key
    assert (None if encoded_value is None else encoded_value.hex()) == value


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_what_kafka_wrote_is_read_back(record, key, value):
    stored = Record(0, 0, bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    decoded = decode_record(stored)
    assert decoded is not None
    assert decoded[0] == record[0]
    if value is not None and value.startswith("0001"):  # version 1 knows neither epochs nor topic ids
        assert _of(stored_offset(decoded[1], 7)) == CommittedOffset(9, -1, "m", 5, 99)
    else:
        assert decoded[1] == record[1]


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_every_version_are_read(version: int):
    from millstream.wire.messages.group_storage import OffsetCommitKey, OffsetCommitValue
    from millstream.wire.stored import encode_key, encode_versioned

    value = OffsetCommitValue(offset=3, metadata="m", commit_timestamp=8)
    record = Record(0, 0, encode_key(OffsetCommitKey(group="g", topic="t")), encode_versioned(value, version))
    decoded = decode_record(record)
    assert decoded is not None
    assert _of(stored_offset(decoded[1], 7)) == CommittedOffset(3, -1, "m", 8)


def _of(offset: CommittedOffset) -> CommittedOffset:
    """The offset without its place in the log."""
    return msgspec.structs.replace(offset, order=0)


def test_records_of_other_features_are_skipped():
    assert decode_record(Record(0, 0, bytes.fromhex("0018000167"), b"anything")) is None
    assert decode_record(Record(0, 0, bytes.fromhex("7fff"), None)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\0", b""),
        (bytes.fromhex("0001000967"), b""),
        (bytes.fromhex(GOLDEN[0][1]), b"\0\4"),
        (bytes.fromhex(GOLDEN[0][1]), bytes.fromhex(GOLDEN[0][2])[:-1]),
        (bytes.fromhex(GOLDEN[0][1]), b"\0\5" + bytes.fromhex(GOLDEN[0][2])[2:]),
        (bytes.fromhex("0002000167"), b"\0\3\0\1"),
    ],
)
def test_a_record_that_says_nothing_is_corruption_and_named_by_its_offset(key, value):
    with pytest.raises(Corruption, match="offset 77"):
        decode_record(Record(77, 0, key, value))


@pytest.mark.parametrize(
    ("group", "value", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("my-group", -1906497762, 12),
        ("grüppe", -1233264812, 12),
        ("polygenelubricants", -2147483648, 0),
        ("😀", 1772899, 49),
    ],
)
def test_groups_hash_as_in_java(group: str, value: int, partition: int):
    assert java_string_hash(group) == value
    assert partition_of(group, 50) == partition


def test_long_names_of_groups_are_not_kept():
    tracemalloc.start()
    for i in range(20):
        partition_of(f"{i}{'x' * 5_000}", 50)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50_000
