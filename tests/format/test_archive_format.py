"""The bytes of an archived segment's index, of the entries that a group commits, and of a topic's description."""

import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Corruption
from millstream.format.archive import (
    Archived,
    Block,
    Replaced,
    SegmentIndex,
    Spilled,
    TopicDescription,
    decode_entry,
    decode_index,
    decode_topic,
    encode_entry,
    encode_index,
    encode_topic,
    parse_segment_name,
    segment_key,
)
from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart

OWNER = ArchiveId(uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF), 7)
SEGMENT = ArchivedSegment(100, 300, 4096, 0xDEADBEEF, 1000, 2000, 5, 133)
INDEX = SegmentIndex(
    100, 300, (Block(100, 0, 1500, 0xCAFE), Block(200, 2048, 2000, 0xBEEF)), ((4, 90), (5, 200)), ((9, 105, 400),)
)
INDEX_HEX = (
    "4d534149 0200 0000 a0000000 {crc}"
    "0123456789abcdef0123456789abcdef 07000000 6400000000000000 2c01000000000000 02000000 02000000"
    "6400000000000000 0000000000000000 dc05000000000000 feca0000"
    "c800000000000000 0008000000000000 d007000000000000 efbe0000"
    "0400000000000000 5a00000000000000 0500000000000000 c800000000000000"
    "01000000 0900000000000000 6900000000000000 9001000000000000"
).replace(" ", "")
ARCHIVED_HEX = (
    "83a47479706501a77365676d656e7488ab626173655f6f666673657464aa656e645f6f6666736574cd012caa73697a655f62"
    "79746573cd1000a8636865636b73756dcedeadbeefad6d696e5f74696d657374616d70cd03e8ad6d61785f74696d65737461"
    "6d70cd07d0a47465726d05ab696e6465785f6279746573cc85ac73746172745f6f666673657432"
)
SPILLED_HEX = (
    "82a47479706502a47061727486ab626173655f6f666673657400aa656e645f6f666673657464ad6d696e5f74696d65737461"
    "6d7005ad6d61785f74696d657374616d7006ad7365676d656e745f636f756e7403aa73697a655f6279746573cd03e7"
)


def test_the_bytes_of_an_index_are_as_documented():
    data = encode_index(OWNER, INDEX)
    assert data.hex() == INDEX_HEX.format(crc=data[12:16].hex())
    assert decode_index(OWNER, SEGMENT, data) == INDEX
    assert [INDEX.find(offset) for offset in (100, 199, 200, 299)] == [0, 0, 1, 1]


def test_an_index_without_transactions_says_that_they_are_unknown():
    old = msgspec.structs.replace(INDEX, aborted=None)
    data = encode_index(OWNER, old)
    assert data[4] == 1
    assert data[16:] == bytes.fromhex(INDEX_HEX.format(crc="00000000"))[16:-28]
    assert decode_index(OWNER, SEGMENT, data) == old


def test_the_index_of_another_segment_is_corruption():
    data = encode_index(OWNER, INDEX)
    with pytest.raises(Corruption, match="is not that of"):
        decode_index(ArchiveId(OWNER.topic_id, 8), SEGMENT, data)
    with pytest.raises(Corruption, match="is not that of"):
        decode_index(OWNER, msgspec.structs.replace(SEGMENT, end_offset=301), data)


@given(st.integers(0, 175), st.integers(0, 7))
def test_a_flipped_bit_is_corruption(place, bit):
    data = bytearray(encode_index(OWNER, INDEX))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Corruption):
        decode_index(OWNER, SEGMENT, data)


def test_the_bytes_of_entries_never_change():
    part = ManifestPart(0, 100, 5, 6, 3, 999)
    for entry, data in (
        (Archived(SEGMENT, 50), ARCHIVED_HEX),
        (Spilled(part), SPILLED_HEX),
    ):
        assert encode_entry(entry).hex() == data
        assert decode_entry(bytes.fromhex(data)) == entry
    with pytest.raises(Corruption):
        decode_entry(b"\x93")


def test_the_bytes_of_a_replacement_never_change():
    new = msgspec.structs.replace(SEGMENT, revision=9)
    entry = Replaced(bytes(range(16)), 3, (SEGMENT,), (new,))
    data = encode_entry(entry)
    assert data.startswith(bytes.fromhex("87a47479706503a26964c410000102030405060708090a0b0c0d0e0f"))
    assert data.count(b"\xa8revision\x09") == 1
    assert data.count(b"base_offset") == 2
    assert decode_entry(data) == entry
    part = ManifestPart(0, 300, 5, 6, 3, 999, 1)
    spilled = Spilled(part, 2)
    assert decode_entry(encode_entry(spilled)) == spilled
    assert encode_entry(Spilled(ManifestPart(0, 300, 5, 6, 3, 999))).count(b"version") == 0


def test_the_name_of_a_segment_of_a_job_has_its_revision():
    new = msgspec.structs.replace(SEGMENT, revision=77)
    name = segment_key(OWNER, new).rpartition("/")[2]
    assert name == "00000000000000000100-00000000000000000300-5-77.segment"
    assert parse_segment_name(name) == (100, 300, 5, 77)
    assert parse_segment_name(segment_key(OWNER, SEGMENT).rpartition("/")[2]) == (100, 300, 5, 0)
    assert parse_segment_name("manifest") is None


def test_a_topic_is_described_in_json():
    topic = TopicDescription("flights", "ab" * 16, 3, {"storage.mode": "tiered"}, "cluster")
    assert decode_topic(encode_topic(topic)) == topic
    assert decode_topic(b'{"name":"a","topic_id":"b","partitions":1,"configs":{},"later":1}').name == "a"
    with pytest.raises(Corruption):
        decode_topic(b"{}")


def test_two_leaders_upload_the_same_offsets_under_different_keys():
    folder = "topics/0123456789abcdef0123456789abcdef/7/"
    assert segment_key(OWNER, SEGMENT) == f"{folder}00000000000000000100-00000000000000000300-5.segment"
    assert segment_key(OWNER, msgspec.structs.replace(SEGMENT, term=6)) != segment_key(OWNER, SEGMENT)
