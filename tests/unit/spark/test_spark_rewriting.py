"""Rewriting archived segments: plans, another codec, and damage that stops it."""

import uuid

import msgspec
import pytest

from millstream.errors import Corruption
from millstream.format.archive import BLOCK_BYTES, decode_index, segment_key
from millstream.format.manifest import ArchivedSegment, ArchiveId
from millstream.format.segment import parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.objects import open_store
from millstream.spark.rewriting import Group, plan_merge, rewrite, with_codec
from millstream.wire.batch import iter_batches, parse_header
from millstream.wire.records import ABORT, build_batch, control_record, iter_records

OWNER = ArchiveId(uuid.UUID(int=5), 3)


def sized(*sizes):
    return [ArchivedSegment(at, at + 1, size, 0, 0, 0, 1) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([10], []),
        ([10, 10], [[0, 1]]),
        ([50, 50, 50], [[0, 1]]),
        ([51, 10, 10, 51], [[1, 2]]),
        ([10, 51, 10], []),
        ([20] * 7, [[0, 1, 2, 3, 4], [5, 6]]),
        ([1] * 9, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
    ],
)
def test_small_neighbours_are_joined_up_to_the_target(sizes, expected):
    assert [[one.base_offset for one in group] for group in plan_merge([sized(*sizes)], 100, 6)] == expected


def test_nothing_is_joined_over_the_border_of_a_part():
    segments = sized(10, 10, 10)
    assert plan_merge([segments[:1], segments[1:]], 100, 6) == [tuple(segments[1:])]


def batches(first=0):
    """Plain, idempotent, transactional and control batches, and one that nobody can decompress."""
    made = [
        build_batch([(b"k", b"plain" * 50, ((b"h".decode(), b"1"),), 1_000)] * 3, leader_epoch=1),
        build_batch(
            [(None, b"gz" * 90, (), 2_000)] * 2, compression=1, producer_id=4, producer_epoch=2, base_sequence=9
        ),
        build_batch(
            [(None, b"t" * 90, (), 3_000)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        ),
        build_batch(
            [control_record(ABORT, 0, 4_000)], producer_id=7, producer_epoch=0, transactional=True, control=True
        ),
        build_batch([(None, b"z" * 90, (), 5_000)], compression=4, log_append_time=6_000),
    ]
    broken = bytearray(build_batch([(None, b"b" * 90, (), 7_000)], compression=2))
    broken[61:] = b"\xff" * (len(broken) - 61)
    made.append(bytes(broken))
    out, offset = [], first
    for batch in made:
        data = bytearray(batch)
        data[0:8] = offset.to_bytes(8, "big")
        data[12:16] = (2).to_bytes(4, "big")
        header = parse_header(data)
        if batch is made[-1]:
            from crc32c import crc32c

            data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
        out.append(bytes(data))
        offset = header.next_offset
    return out, offset


def store_segment(store, first=0, aborted=()):
    found, end = batches(first)
    writer, parts = SegmentObject(OWNER, first, BLOCK_BYTES), []
    for batch in found:
        view = memoryview(batch)
        parts.append(writer.add(parse_batch(view, 0, 0, len(view)), view) or b"")
    parts += [writer.end_block() or b"", writer.end(aborted)]
    segment = writer.segment(2)
    store.put(segment_key(OWNER, segment), parts)
    return segment, found, end


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    return url, open_store(url)


def data_of(store, segment):
    return bytes(store.get(segment_key(OWNER, segment), 0, segment.size_bytes))


def test_joined_segments_have_every_batch_as_it_was(bucket):
    url, store = bucket
    one, first, end = store_segment(store, aborted=((7, 5, 6),))
    two, second, _ = store_segment(store, end, aborted=((7, 5, 6), (7, end + 5, end + 6)))
    done = rewrite(Group(OWNER.topic_id.hex, 3, (one, two)), url, None)
    assert (done.batches, done.reencoded, done.after.revision > 0) == (12, 0, True)
    assert data_of(store, done.after) == b"".join(first + second)
    assert (done.after.base_offset, done.after.end_offset) == (one.base_offset, two.end_offset)
    whole = store.get(segment_key(OWNER, done.after), 0, done.after.size_bytes + done.after.index_bytes)
    index = decode_index(OWNER, done.after, whole[done.after.size_bytes :])
    assert index.aborted == ((7, 5, 6), (7, end + 5, end + 6))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_another_codec_changes_nothing_but_the_bytes_of_the_records(bucket, codec):
    url, store = bucket
    segment, before, _ = store_segment(store)
    done = rewrite(Group(OWNER.topic_id.hex, 3, (segment,)), url, codec)
    assert done.left == (codec != 2)
    after = [bytes(one) for one in iter_batches(data_of(store, done.after))]
    assert len(after) == len(before)
    for old, new in zip(before[:-1], after[:-1], strict=True):
        was, is_now = parse_header(old), parse_header(new)
        fixed = {"length": 0, "crc": 0}
        assert is_now.codec == (0 if was.is_control else codec)
        same = msgspec.structs.replace(is_now, attributes=is_now.attributes & ~7 | was.codec, **fixed)
        assert same == msgspec.structs.replace(was, **fixed)
        assert list(iter_records(new)) == list(iter_records(old))
        if was.codec == codec or was.is_control:
            assert new == old
    assert after[-1] == before[-1], "what nobody can decompress stays"
    assert rewrite(Group(OWNER.topic_id.hex, 3, (done.after,)), url, codec).after is None, "there is nothing to change"


def test_damage_stops_the_rewriting_and_leaves_no_object(bucket):
    url, store = bucket
    segment, _, _ = store_segment(store)
    group = Group(OWNER.topic_id.hex, 3, (segment,))
    whole = bytearray(store.get(segment_key(OWNER, segment), 0, segment.size_bytes + segment.index_bytes))
    for at in range(0, segment.size_bytes, 7):
        wrong = bytearray(whole)
        wrong[at] ^= 4
        store.put(segment_key(OWNER, segment), [bytes(wrong)])
        with pytest.raises(Corruption):
            rewrite(group, url, None)
    store.put(segment_key(OWNER, segment), [bytes(whole)])
    other = msgspec.structs.replace(segment, checksum=1)
    with pytest.raises(Corruption, match="the checksum in the manifest"):
        rewrite(msgspec.structs.replace(group, before=(other,)), url, None)
    assert [info.key for info in store.list("topics/")] == [segment_key(OWNER, segment)]


def test_the_checksum_of_a_batch_with_another_codec_is_right():
    (plain, *_), _ = batches()
    made = with_codec(memoryview(plain), 4)
    assert parse_header(made).size == len(made)
    assert parse_batch(made, 0, 0, len(made)).last_offset == 2
