"""Bytes as they stand on the wire and on disk, written out by hand: a change of one of them is a change of format.

Each entry is a message, a version, and its bytes field by field, with what the field is. The message classes of
Apache Kafka 4.3.1 decode every one of them and encode it to the same bytes again.
"""

import pytest

from millstream.wire.codec import decode_message, encode_message, encode_request_header, response_header_bytes
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from millstream.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.wire.records import batch_crc_ok, build_batch, iter_records
from millstream.wire.schema import Message, Stored, StoredKey
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key, encode_versioned

TOPIC_ID = bytes(range(16))
ID_HEX = "000102030405060708090a0b0c0d0e0f"

GOLDEN: dict[str, tuple[Message, int, list[tuple[str, str]]]] = {
    "produce request, classic": (
        ProduceRequest(None, -1, 1500, [TopicProduceData("ab", partition_data=[PartitionProduceData(7, b"\xca\xfe")])]),
        3,
        [
            ("ffff", "transactional id: null"),
            ("ffff", "acks: all"),
            ("000005dc", "timeout 1500 ms"),
            ("00000001", "one topic"),
            ("0002 6162", "name"),
            ("00000001", "one partition"),
            ("00000007", "index"),
            ("00000002 cafe", "records"),
        ],
    ),
    "produce request, flexible": (
        ProduceRequest("tx", 1, 1500, [TopicProduceData("ab", partition_data=[PartitionProduceData(7, b"\xca\xfe")])]),
        9,
        [
            ("03 7478", "transactional id: length + 1"),
            ("0001", "acks"),
            ("000005dc", "timeout"),
            ("02", "one topic: count + 1"),
            ("03 6162", "name"),
            ("02", "one partition"),
            ("00000007", "index"),
            ("03 cafe", "records"),
            ("00", "no tags of the partition"),
            ("00", "no tags of the topic"),
            ("00", "no tags of the request"),
        ],
    ),
    "produce request by topic id": (
        ProduceRequest(
            None, -1, 1, [TopicProduceData(topic_id=TOPIC_ID, partition_data=[PartitionProduceData(0, b"r" * 130)])]
        ),
        13,
        [
            ("00", "transactional id: null"),
            ("ffff 00000001", "acks, timeout"),
            ("02", "one topic"),
            (ID_HEX, "topic id"),
            ("02 00000000", "one partition, index"),
            ("8301" + "72" * 130, "records: 131 takes two bytes"),
            ("000000", "no tags"),
        ],
    ),
    "produce response with a new leader": (
        ProduceResponse(
            [
                TopicProduceResponse(
                    "ab",
                    partition_responses=[
                        PartitionProduceResponse(7, 6, -1, -1, 0, [], None, LeaderIdAndEpoch(3, 9)),
                    ],
                )
            ],
            20,
            [NodeEndpoint(3, "h", 9092, None)],
        ),
        10,
        [
            ("02", "one topic"),
            ("03 6162", "name"),
            ("02", "one partition"),
            ("00000007 0006", "index, NOT_LEADER_OR_FOLLOWER"),
            ("ffffffffffffffff ffffffffffffffff 0000000000000000", "base offset, append time, log start offset"),
            ("01", "no record errors"),
            ("00", "error message: null"),
            ("01 00 09", "one tag: number 0, nine bytes"),
            ("00000003 00000009 00", "leader, epoch, no tags"),
            ("00", "no tags of the topic"),
            ("00000014", "throttle time"),
            ("01 00 0d", "one tag: number 0, thirteen bytes"),
            ("02 00000003 02 68 00002384 00 00", "one node: id, host, port, rack null, no tags"),
        ],
    ),
    "fetch request in a session": (
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=0x03200000,
            session_id=77,
            session_epoch=2,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[FetchPartition(1, 4, 100, -1, -1, 0x100000)])],
        ),
        15,
        [
            ("000001f4 00000001 03200000", "max wait, min bytes, max bytes"),
            ("00", "read_uncommitted"),
            ("0000004d 00000002", "session id, session epoch"),
            ("02", "one topic"),
            (ID_HEX, "topic id"),
            ("02", "one partition"),
            ("00000001 00000004 0000000000000064", "partition, leader epoch, fetch offset"),
            ("ffffffff ffffffffffffffff 00100000", "last fetched epoch, log start offset, max bytes"),
            ("00 00", "no tags of partition and topic"),
            ("01", "nothing forgotten"),
            ("01", "rack: empty"),
            ("00", "no tags"),
        ],
    ),
    "fetch response": (
        FetchResponse(
            0,
            0,
            77,
            [
                FetchableTopicResponse(
                    "ab",
                    partitions=[
                        PartitionData(1, 0, 9, 8, 0, aborted_transactions=[AbortedTransaction(5, 6)], records=b"\xbe")
                    ],
                )
            ],
        ),
        11,
        [
            ("00000000 0000 0000004d", "throttle time, error, session id"),
            ("00000001 0002 6162", "one topic"),
            ("00000001", "one partition"),
            ("00000001 0000", "index, error"),
            ("0000000000000009 0000000000000008 0000000000000000", "high watermark, last stable, log start"),
            ("00000001 0000000000000005 0000000000000006", "one aborted transaction"),
            ("ffffffff", "preferred replica: none"),
            ("00000001 be", "records"),
        ],
    ),
    "metadata response": (
        MetadataResponse(
            0,
            [MetadataResponseBroker(1, "h", 9092)],
            "c",
            1,
            [MetadataResponseTopic(0, "ab", TOPIC_ID, False, [MetadataResponsePartition(0, 2, 1, 5, [1], [1], [])])],
        ),
        12,
        [
            ("00000000", "throttle time"),
            ("02 00000001 02 68 00002384 00 00", "one broker: id, host, port, rack null, no tags"),
            ("02 63", "cluster id"),
            ("00000001", "controller"),
            ("02 0000 03 6162", "one topic: error, name"),
            (ID_HEX, "topic id"),
            ("00", "not internal"),
            ("02 0000 00000002 00000001 00000005", "one partition: error, index, leader, epoch"),
            ("02 00000001 02 00000001 01 00", "replicas, in-sync, offline, no tags"),
            ("80000000 00", "operations not asked for, no tags of the topic"),
            ("00", "no tags"),
        ],
    ),
    "api versions response": (
        ApiVersionsResponse(0, [ApiVersion(0, 0, 13), ApiVersion(18, 0, 4)], 0, finalized_features_epoch=1),
        3,
        [
            ("0000", "error"),
            ("03", "two APIs"),
            ("0000 0000 000d 00", "Produce 0 to 13"),
            ("0012 0000 0004 00", "ApiVersions 0 to 4"),
            ("00000000", "throttle time"),
            ("01 01 08 0000000000000001", "one tag: number 1, the epoch of the features"),
        ],
    ),
    "offset key": (
        OffsetCommitKey("g", "t", 3),
        0,
        [("0001", "type"), ("0001 67", "group"), ("0001 74", "topic"), ("00000003", "partition")],
    ),
    "offset value": (
        OffsetCommitValue(42, 7, "m", 1000),
        3,
        [
            ("0003", "version"),
            ("000000000000002a 00000007", "offset, leader epoch"),
            ("0001 6d", "metadata"),
            ("00000000000003e8", "commit time"),
        ],
    ),
    "offset value with a topic id": (
        OffsetCommitValue(42, 7, "", 1000, topic_id=TOPIC_ID),
        4,
        [
            ("0004", "version"),
            ("000000000000002a 00000007 01", "offset, leader epoch, empty metadata"),
            ("00000000000003e8", "commit time"),
            ("01 00 10" + ID_HEX, "one tag: number 0, the topic id"),
        ],
    ),
    "group key": (GroupMetadataKey("group"), 0, [("0002", "type"), ("0005 67726f7570", "group")]),
    "group value": (
        GroupMetadataValue(
            "consumer", 3, "range", "m", 5, [MemberMetadata("m", "i", "c", "/h", 300, 10, b"\x01", b"\x02\x03")]
        ),
        3,
        [
            ("0003", "version"),
            ("0008 636f6e73756d6572", "protocol type"),
            ("00000003", "generation"),
            ("0005 72616e6765", "protocol"),
            ("0001 6d", "leader"),
            ("0000000000000005", "time of the state"),
            ("00000001", "one member"),
            ("0001 6d 0001 69 0001 63 0002 2f68", "member id, instance id, client id, host"),
            ("0000012c 0000000a", "rebalance timeout, session timeout"),
            ("00000001 01", "subscription"),
            ("00000002 0203", "assignment"),
        ],
    ),
    "subscription": (
        ConsumerProtocolSubscription(["a"], None, [TopicPartition("a", [0, 1])], 5, "r"),
        3,
        [
            ("0003", "version"),
            ("00000001 0001 61", "topics"),
            ("ffffffff", "user data: null"),
            ("00000001 0001 61 00000002 00000000 00000001", "owned partitions"),
            ("00000005", "generation"),
            ("0001 72", "rack"),
        ],
    ),
    "assignment": (
        ConsumerProtocolAssignment([TopicPartition("a", [4])], b"\x09"),
        1,
        [("0001", "version"), ("00000001 0001 61 00000001 00000004", "partitions"), ("00000001 09", "user data")],
    ),
}

BATCH = [
    ("0000000000000064", "base offset 100"),
    ("00000045", "length 69: what follows"),
    ("00000007", "leader epoch"),
    ("02", "magic"),
    ("1ec816fd", "CRC-32C of what follows"),
    ("0000", "attributes: no codec, create time"),
    ("00000001", "last offset delta"),
    ("00000000000003e8", "base timestamp 1000"),
    ("00000000000003ea", "max timestamp 1002"),
    ("0000000000000009", "producer id"),
    ("0001", "producer epoch"),
    ("0000000b", "base sequence"),
    ("00000002", "record count"),
    ("18 00 00 00 02 6b 02 76 02 02 68 02 78", "record 0: length 12, key, value, one header"),
    ("0c 00 04 02 01 01 00", "record 1: length 6, 2 ms later, null key, null value"),
]


def joined(fields: list[tuple[str, str]]) -> bytes:
    return bytes.fromhex("".join(text for text, _ in fields))


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_are_these_bytes(name: str) -> None:
    message, version, fields = GOLDEN[name]
    if isinstance(message, StoredKey):
        assert encode_key(message).hex() == joined(fields).hex()
        assert decode_offsets_key(joined(fields)) == message
    elif isinstance(message, Stored | ConsumerProtocolSubscription | ConsumerProtocolAssignment):
        assert encode_versioned(message, version).hex() == joined(fields).hex()
        assert decode_versioned(type(message), joined(fields)) == message
    else:
        assert encode_message(message, version).hex() == joined(fields).hex()
        assert decode_message(type(message), version, joined(fields)) == message


def test_headers_are_these_bytes() -> None:
    assert encode_request_header(1, 11, 7, "me").hex(" ", 2) == "0001 000b 0000 0007 0002 6d65"
    assert encode_request_header(1, 12, 7, None).hex() == "0001000c00000007ffff00"
    assert response_header_bytes(1, 11, 7).hex() == "00000007"
    assert response_header_bytes(1, 12, 7).hex() == "0000000700"


def test_a_batch_is_these_bytes() -> None:
    batch = build_batch(
        [(b"k", b"v", [("h", b"x")], 1000), (None, None, [], 1002)],
        base_offset=100,
        producer_id=9,
        producer_epoch=1,
        base_sequence=11,
        leader_epoch=7,
    )
    assert batch.hex() == joined(BATCH).hex()
    assert batch_crc_ok(joined(BATCH))
    assert [record.offset for record in iter_records(joined(BATCH))] == [100, 101]
