"""A manifest reads back as it was written, and a damaged one is refused."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Corruption
from millstream.format.manifest import (
    ArchivedSegment,
    ArchiveId,
    Manifest,
    ManifestPart,
    Run,
    decode_manifest,
    decode_part,
    describe_part,
    encode_manifest,
    encode_part,
    pack_run,
    parse_part_name,
    part_name,
    unpack_run,
)
from millstream.model.quantities import ManifestVersion, Offset, TimestampMs
from millstream.model.replication import Term

OWNER = ArchiveId(uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF), 7)
SEGMENTS = [
    ArchivedSegment(Offset(100), Offset(300), 4096, 0xDEADBEEF, TimestampMs(1_000), TimestampMs(2_000), Term(1), 100),
    ArchivedSegment(Offset(300), Offset(301), 100, 0x00000001, TimestampMs(-1), TimestampMs(-1), Term(1), 140),
    ArchivedSegment(
        Offset(301), Offset(1000), 70_000, 0xFFFFFFFF, TimestampMs(1_500), TimestampMs(9_000), Term(4), 180
    ),
]
EPOCHS = ((Term(0), Offset(0)), (Term(4), Offset(300)))
RUN_HEX = (
    "c801 8040 d00f d00f 02 c801 efbeadde"  # 200 offsets, 4096 bytes, from 1000, for 1000, term 1, index, checksum
    "01 b73e a11f 00 00 50 01000000"
    "bb05 98c408 ba17 9875 06 50 ffffffff"
).replace(" ", "")
MANIFEST_HEX = (
    "4d534d46 0100 0000 aa000000 88ef9f2c"
    "0123456789abcdef0123456789abcdef 07000000 0a00000000000000 01000000 01000000 02000000"
    "0a00000000000000 6400000000000000 0500000000000000 0600000000000000 0200000000000000 02000000"
    "0000000000000000 0000000000000000 0400000000000000 2c01000000000000"
    "6400000000000000 0300 2a00"
).replace(" ", "") + RUN_HEX


def golden() -> Manifest:
    old = [
        ArchivedSegment(Offset(10), Offset(20), 1, 0, TimestampMs(5), TimestampMs(5), Term(1)),
        ArchivedSegment(Offset(20), Offset(100), 1, 0, TimestampMs(6), TimestampMs(6), Term(1)),
    ]
    return Manifest(OWNER, Offset(10), (describe_part([pack_run(old)]),), (pack_run(SEGMENTS),), EPOCHS)


def test_the_bytes_of_a_run_are_as_documented():
    assert pack_run(SEGMENTS).data.hex() == RUN_HEX
    assert unpack_run(pack_run(SEGMENTS)) == SEGMENTS


def test_the_bytes_of_a_manifest_are_as_documented():
    assert encode_manifest(golden()).hex() == MANIFEST_HEX
    assert decode_manifest(bytes.fromhex(MANIFEST_HEX)) == golden()


def test_a_part_is_read_back_only_as_what_it_is():
    runs = (pack_run(SEGMENTS[:2]), pack_run(SEGMENTS[2:]))
    part = describe_part(runs)
    data = encode_part(OWNER, runs)
    assert data[:4] == b"MSMP"
    assert decode_part(OWNER, part, data) == runs
    with pytest.raises(Corruption, match="another partition"):
        decode_part(ArchiveId(OWNER.topic_id, 8), part, data)
    with pytest.raises(Corruption, match="not what its name says"):
        decode_part(OWNER, describe_part(runs[:1]), data)
    with pytest.raises(Corruption, match="MSMF"):
        decode_manifest(data)


def test_the_name_of_a_part_says_its_offsets_and_times():
    part = describe_part([pack_run(SEGMENTS)])
    name = part_name(part)
    assert name == "00000000000000000100-00000000000000001000_-1_9000_3_74196.part"
    assert parse_part_name(name) == part
    assert parse_part_name("00000000000000000100.log") is None


@pytest.mark.parametrize("position", range(0, len(MANIFEST_HEX) // 2, 3))
def test_a_flipped_bit_is_corruption(position):
    data = bytearray.fromhex(MANIFEST_HEX)
    data[position] ^= 0x10
    with pytest.raises(Corruption):
        decode_manifest(data)


@pytest.mark.parametrize("size", [0, 4, 15, 16, 60, len(MANIFEST_HEX) // 2 - 1])
def test_a_truncated_manifest_is_corruption(size):
    with pytest.raises(Corruption):
        decode_manifest(bytes.fromhex(MANIFEST_HEX)[:size])


def test_gaps_and_overlaps_are_corruption():
    one, two = pack_run(SEGMENTS[:1]), pack_run(SEGMENTS[1:])
    for runs in ((two, one), (one, one), (one, pack_run(SEGMENTS[2:]))):
        with pytest.raises(Corruption, match="does not follow"):
            decode_manifest(encode_manifest(Manifest(OWNER, Offset(0), (), runs)))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_no_bytes_of_a_run_raise_anything_but_corruption(data, count):
    try:
        segments = unpack_run(Run(Offset(0), count, data))
    except Corruption:
        return
    assert len(segments) == count


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2**40),
            st.integers(0, 2**40),
            st.integers(0, 2**32 - 1),
            st.integers(-1, 2**45),
            st.integers(-1, 2**45),
            st.integers(0, 2**31),
            st.integers(0, 2**53 - 1),
        ),
        min_size=1,
        max_size=64,
    )
)
def test_whatever_is_packed_is_unpacked(rows):
    segments, base = [], 0
    for length, size, checksum, low, high, term, revision in rows:
        end = Offset(base + length)
        times = TimestampMs(low), TimestampMs(high)
        segments.append(ArchivedSegment(Offset(base), end, size, checksum, *times, Term(term), 5, revision))
        base = end
    assert unpack_run(pack_run(segments)) == segments


REVISED = [
    msgspec.structs.replace(SEGMENTS[0], revision=0x1234),
    SEGMENTS[1],
]
REVISED_RUN_HEX = ("c801 8040 d00f d00f 02 c801 efbeadde b42401 b73e a11f 00 00 50 01000000 00").replace(" ", "")
REPLACED_HEX = (
    "4d534d46 0200 0000 {size} {crc}"
    "0123456789abcdef0123456789abcdef 07000000 0a00000000000000 01000000 01000000 00000000"
    "0300000000000000 01000000 000102030405060708090a0b0c0d0e0f 0300000000000000"
    "0a00000000000000 6400000000000000 0500000000000000 0500000000000000 0100000000000000 01000000 0200000000000000"
    "6400000000000000 0280 1e00"
).replace(" ", "") + REVISED_RUN_HEX


def replaced() -> Manifest:
    part = ManifestPart(Offset(10), Offset(100), TimestampMs(5), TimestampMs(5), 1, 1, ManifestVersion(2))
    done = ((bytes(range(16)), 3),)
    return Manifest(OWNER, Offset(10), (part,), (pack_run(REVISED),), (), ManifestVersion(3), done)


def test_the_bytes_of_a_manifest_with_replacements_are_as_documented():
    data = encode_manifest(replaced())
    assert data.hex() == REPLACED_HEX.format(size=data[8:12].hex(), crc=data[12:16].hex())
    assert decode_manifest(data) == replaced()
    assert unpack_run(pack_run(REVISED)) == REVISED


def test_a_part_with_a_version_has_it_in_its_name_and_revised_runs_are_version_2():
    runs = (pack_run(REVISED),)
    part = describe_part(runs, ManifestVersion(4))
    name = part_name(part)
    assert name == "00000000000000000100-00000000000000000301_-1_2000_2_4196_4.part"
    assert parse_part_name(name) == part
    data = encode_part(OWNER, runs)
    assert data[4] == 2
    assert decode_part(OWNER, part, data) == runs
    with pytest.raises(Corruption, match="not what its name says"):
        decode_part(OWNER, msgspec.structs.replace(part, size_bytes=1), data)
