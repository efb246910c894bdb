"""The bytes of a chunk are on people's disks, and its layout is the seed's."""

import uuid

import pytest
from seed_reader import read_partition

from millstream.format.events import (
    ChunkEnds,
    ChunkLimits,
    EventBatch,
    Segment,
    SidecarHeader,
    StrideView,
    SubView,
    UnstructuredView,
    batch_pieces,
    build_event_batch,
    chunk_name,
    decode_descriptor,
    decode_event_batch,
    encode_descriptor,
    encode_descriptors,
    encode_index,
    parse_chunk_name,
    partition_directory_name,
    partition_uuid,
    read_index,
)
from millstream.format.events.batch import Producer
from millstream.format.events.descriptor import LOCATION, DataDescriptor, Location, decode_location
from millstream.format.events.sidecar import decode_entry, decode_header, encode_entry, encode_header, entry_of
from millstream.wire.batch import batch_crc_ok

EVENTS = [(b'{"n":1}', b"xyz"), (b"{}", b"")]
BATCH = (
    "0000000000000000 0000004d ffffffff 02"  # base offset, length, leader epoch, magic
    "3843ad39"  # CRC-32C
    "0100 00000001"  # attributes: EVENTS; last offset delta
    "00000000000003e8 00000000000003e8"  # base time, largest time
    "0000000000000007 0002 00000005 00000002"  # producer id, epoch, base sequence; count
    "07000000 02000000 7b226e223a317d 7b7d"  # metadata sizes, metadata
    "03000000 00000000 78797a"  # data sizes, data
)


def two_events() -> EventBatch:
    pieces = build_event_batch(
        [meta for meta, _ in EVENTS], [[data] for _, data in EVENTS], now_ms=1000, producer=Producer(7, 2, 5)
    )
    return decode_event_batch(b"".join(pieces), event_bytes_max=100)


def test_batch_bytes_never_change() -> None:
    pieces = build_event_batch(
        [meta for meta, _ in EVENTS], [[b"x", b"", b"yz"], []], now_ms=1000, producer=Producer(7, 2, 5)
    )
    data = b"".join(pieces)
    assert batch_crc_ok(data)
    assert data.hex() == BATCH.replace(" ", "")
    batch = two_events()
    assert [bytes(one) for one in batch.metadata_of_each()] == [b'{"n":1}', b"{}"]
    assert [bytes(one) for one in batch.data_of_each()] == [b"xyz", b""]


def test_bytes_of_a_chunk_of_two_events_never_change() -> None:
    batch = two_events()
    index = encode_index(ChunkEnds(), batch.metadata_sizes, batch.data_sizes)
    descriptors = encode_descriptors(3, ChunkEnds(), batch.data_sizes)
    assert index.hex() == (
        "0000000000000000 07000000  0000000000000000 03000000  0000000000000000 30000000"
        "0700000000000000 02000000  0300000000000000 00000000  3000000000000000 30000000"
    ).replace(" ", "")
    assert descriptors.hex() == (
        "0300000000000000 0300000000000000 1000000000000000  03000000 0000000000000000 03000000  0000000000000000"
        "0000000000000000 0000000000000000 1000000000000000  03000000 0300000000000000 00000000  0000000000000000"
    ).replace(" ", "")
    assert bytes(batch.metadata) == b'{"n":1}{}'
    assert bytes(batch.data) == b"xyz"


def test_sidecar_bytes_never_change() -> None:
    header = SidecarHeader(3, 40, bytes(range(16)))
    data = encode_header(header)
    assert data[:-4].hex() == ("4d534343 0100 0000 03000000 2800000000000000 000102030405060708090a0b0c0d0e0f").replace(
        " ", ""
    )
    assert decode_header(data) == header
    batch = two_events()
    index = encode_index(ChunkEnds(), batch.metadata_sizes, batch.data_sizes)
    entry = entry_of(batch, ChunkEnds(), index, encode_descriptors(3, ChunkEnds(), batch.data_sizes))
    stored = encode_entry(entry)
    assert len(stored) == 96
    assert stored[:72].hex() == (
        "4d534342 0000000000000000 02000000 02000000 0900000000000000 0300000000000000"
        "ffffffff 0001 0200 05000000 0700000000000000 e803000000000000 e803000000000000"
    ).replace(" ", "")
    assert decode_entry(data + stored, len(data)) == entry
    for at in range(96 * 8):
        flipped = bytearray(stored)
        flipped[at // 8] ^= 1 << at % 8
        assert decode_entry(flipped, 0) is None


def test_a_batch_is_rebuilt_byte_for_byte() -> None:
    batch = two_events()
    index = encode_index(ChunkEnds(), batch.metadata_sizes, batch.data_sizes)
    entry = entry_of(batch, ChunkEnds(), index, b"")
    pieces = batch_pieces(entry, read_index(index), batch.metadata, batch.data)
    assert b"".join(pieces).hex() == BATCH.replace(" ", "")


def test_the_second_batch_begins_where_the_first_ends() -> None:
    ends = ChunkEnds().plus(2, 9, 3)
    index = encode_index(ends, [4], [6])
    (record,) = read_index(index, ends)
    assert record == (9, 4, 3, 6, 96, 48)
    assert ends.plus(1, 4, 6) == ChunkEnds(3, 13, 9)


def test_descriptor_bytes_with_views_never_change() -> None:
    location = Location(3, 1 << 33, 52)
    views = (SubView(1, 50), StrideView(2, 3, 4, 5), UnstructuredView((Segment(0, 1), Segment(4, 2))))
    descriptor = DataDescriptor(LOCATION.pack(location.chunk, location.position, location.size), 52, views)
    data = encode_descriptor(descriptor)
    assert data.hex() == (
        "0300000000000000 3400000000000000 1000000000000000 03000000 0000000002000000 34000000 0300000000000000"
        "01 0100000000000000 3200000000000000"
        "02 0200000000000000 0300000000000000 0400000000000000 0500000000000000"
        "03 0200000000000000 0000000000000000 0100000000000000 0400000000000000 0200000000000000"
    ).replace(" ", "")
    assert decode_descriptor(data) == descriptor
    assert decode_location(descriptor.location) == location


def test_names_are_the_seeds() -> None:
    assert chunk_name(7, ".meta") == "chunk-000007.meta"
    assert chunk_name(1_000_000, ".idx") == "chunk-1000000.idx"
    for name, chunk in (("chunk-000007.desc", 7), ("chunk-1000000.crc", 1_000_000), ("chunk-000000.data", 0)):
        assert parse_chunk_name(name) == chunk
    for name in ("chunk-7.meta", "chunk-0000007.meta", "chunk-000007.log", "xchunk-000007.meta", "chunk-000007.meta~"):
        assert parse_chunk_name(name) is None


def test_the_directory_of_a_partition_is_the_same_for_all_time() -> None:
    topic_id = bytes(range(16))
    assert partition_directory_name("images", topic_id, 2) == f"images-{partition_uuid(topic_id, 2)}"
    assert partition_uuid(topic_id, 2) == uuid.UUID("575f82de-20d6-5356-bc9a-24be667ff330")
    assert len({partition_uuid(bytes([one]) * 16, two) for one in range(5) for two in range(5)}) == 25


@pytest.mark.parametrize(
    ("events", "meta", "data", "full"),
    [(9, 50, 49, False), (10, 0, 0, True), (1, 50, 50, True), (1, 0, 100, True), (1, 100, 0, True), (0, 0, 0, False)],
)
def test_a_chunk_is_full_by_events_or_by_metadata_and_data_together(events, meta, data, full) -> None:
    assert ChunkLimits(max_chunk_size=100, max_events_per_chunk=10).full(ChunkEnds(events, meta, data)) is full


def test_the_limits_of_the_seed_are_the_defaults() -> None:
    assert ChunkLimits() == ChunkLimits(64 << 20, 1_000_000)


def test_a_reader_that_knows_the_seed_only_reads_what_is_written(tmp_path) -> None:
    written = []
    for chunk in range(3):
        ends = ChunkEnds()
        files = dict.fromkeys((".meta", ".data", ".desc", ".idx"), b"")
        for batch_number in range(2):
            events = [(b"%d/%d/%d" % (chunk, batch_number, n), bytes([n]) * (n * 37)) for n in range(4)]
            batch = decode_event_batch(
                b"".join(build_event_batch([m for m, _ in events], [[d] for _, d in events], now_ms=1)),
                event_bytes_max=1000,
            )
            files[".meta"] += bytes(batch.metadata)
            files[".data"] += bytes(batch.data)
            files[".desc"] += encode_descriptors(chunk, ends, batch.data_sizes)
            files[".idx"] += encode_index(ends, batch.metadata_sizes, batch.data_sizes)
            ends = ends.plus(batch.count, len(batch.metadata), len(batch.data))
            written += events
        for suffix, data in files.items():
            (tmp_path / chunk_name(chunk, suffix)).write_bytes(data)
    assert read_partition(tmp_path) == written
