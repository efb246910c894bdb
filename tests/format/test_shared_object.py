"""The object of many partitions: its bytes stay as they are, and damaged ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Corruption, Rejected
from millstream.format.shared_object import (
    FOOTER_BYTES,
    BlockBytes,
    check_block,
    decode_object_index,
    encode_object,
    index_place,
    parse_shared_key,
    shared_key,
)
from millstream.model.shared import SharedPartition

A = SharedPartition(bytes(range(16)), 0)
B = SharedPartition(bytes(range(16)), 7)
GOLDEN = (
    "616161616262636363634d534f4901000000e8000000f6f311d52a0000000000000003000000000102030405060708090a0b"
    "0c0d0e0f0000000000000000000000000a00000000000000000000000000000004000000ffffffffffffffff050000000000"
    "000000000000b0ee526a000102030405060708090a0b0c0d0e0f000000000a000000000000000c0000000000000004000000"
    "0000000002000000ffffffffffffffff050000000000000000000000af8145d6000102030405060708090a0b0c0d0e0f0700"
    "000003000000000000000900000000000000060000000000000004000000ffffffffffffffff050000000000000000000000"
    "25df245c000000000a00000000000000f8000000c49ae2f6000000004d534f46"
)


def block(partition, base, end, data=b"x", newest=5):
    return BlockBytes(partition, base, end, newest, data)


def whole(encoded):
    return b"".join(bytes(one) for one in encoded.parts)


def read(object_id, data):
    start, end = index_place(data[-FOOTER_BYTES:], len(data))
    index = decode_object_index(object_id, data[start:end])
    for one in index.blocks:
        check_block(one, data[one.position : one.position + one.size_bytes])
    return index


def test_the_bytes_of_an_object_stay_as_they_are():
    encoded = encode_object(42, [block(B, 3, 9, b"cccc"), block(A, 10, 12, b"bb"), block(A, 0, 10, b"aaaa")])
    data = whole(encoded)
    assert encoded.size_bytes == len(data)
    assert data.hex() == GOLDEN
    assert read(42, data) == encoded.index


def test_a_block_is_found_by_offset():
    index = encode_object(1, [block(A, 0, 10), block(A, 10, 12), block(B, 3, 9)]).index
    assert index.find(A, 10).base_offset == 10
    assert index.find(B, 8).end_offset == 9
    assert index.find(B, 9) is None
    assert index.find(B, 2) is None


def test_epochs_times_and_aborted_transactions_come_back_with_their_block():
    first = BlockBytes(A, 0, 10, 5, b"a", 2, 7, ((9, 0, 4), (9, 5, 8)))
    second = BlockBytes(B, 3, 9, 6, b"b", 3, 8, ((1, 3, 5),))
    index = read(42, whole(encode_object(42, [second, first, block(A, 10, 12)])))
    assert [(one.min_timestamp, one.leader_epoch, one.aborted) for one in index.blocks] == [
        (2, 7, first.aborted),
        (-1, 0, ()),
        (3, 8, second.aborted),
    ]
    assert index.within(A, 0, 12) == index.blocks[:2]
    assert index.within(A, 1, 10) == ()


def test_any_changed_bit_and_any_lost_end_is_found():
    data = whole(encode_object(42, [block(A, 0, 10, b"aaaa"), block(B, 3, 9, b"bb")]))
    for at in range(len(data)):
        bent = bytearray(data)
        bent[at] ^= 0x10
        with pytest.raises(Corruption):
            read(42, bytes(bent))
    for length in range(len(data)):
        with pytest.raises(Corruption):
            read(42, data[:length])


def test_the_object_of_another_number_is_refused():
    data = whole(encode_object(42, [block(A, 0, 10)]))
    with pytest.raises(Corruption, match="shared object 42, that of 43"):
        read(43, data)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([], "without a block"),
        ([block(A, 0, 10, b"")], "0 bytes"),
        ([block(A, 4, 4)], "has no offsets"),
        ([block(A, 0, 10), block(A, 9, 12)], "overlaps"),
        ([block(SharedPartition(b"short", 0), 0, 1)], "topic id of 5 bytes"),
    ],
)
def test_blocks_that_make_no_object_are_refused(blocks, words):
    with pytest.raises(Rejected, match=words):
        encode_object(1, blocks)


def test_keys_are_spread_and_can_be_read():
    assert shared_key(0x1A2B) == "shared/b2a1000000000000"
    assert parse_shared_key("shared/b2a1000000000000") == 0x1A2B
    for other in ("topics/b2a1000000000000", "shared/b2a1", "shared/B2A1000000000000", "shared/zzzz000000000000"):
        assert parse_shared_key(other) is None


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 3)),
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.binary(min_size=1, max_size=9)), min_size=1),
        min_size=1,
    ),
    st.integers(0, 2**64 - 1),
)
def test_what_was_encoded_is_read_again(layout, object_id):
    blocks = []
    for (topic, index), lengths in layout.items():
        at = 0
        for gap, count, data in lengths:
            at += gap
            blocks.append(block(SharedPartition(bytes([topic]) * 16, index), at, at + count, data))
            at += count
    encoded = encode_object(object_id, reversed(blocks))
    data = whole(encoded)
    found = read(object_id, data)
    assert found == encoded.index
    for one in blocks:
        place = found.find(one.partition, one.base_offset)
        assert data[place.position : place.position + place.size_bytes] == one.data
