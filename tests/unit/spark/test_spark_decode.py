"""Batches to Arrow: equal to the slow reader of the wire layer for every codec, cut and limit; garbage is refused."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_logs import EVERYTHING, expected, marker, plain, read, rows_of

from millstream.errors import Corruption
from millstream.spark.columns import arrow_schema
from millstream.spark.decode import Aborted, AbortedSpans, Decoder, TransactionInSegment
from millstream.spark.wanted import Column, Wanted
from millstream.wire.compression import Codec
from millstream.wire.records import ABORT, COMMIT, build_batch

BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4).map(tuple)
TIMES = st.integers(0, 4_102_444_800_000)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, TIMES), min_size=1, max_size=12)


@st.composite
def log_bytes(draw):
    out, offset = b"", 0
    for records in draw(st.lists(RECORDS, min_size=1, max_size=6)):
        codec = draw(st.sampled_from(list(Codec)))
        out += build_batch(records, base_offset=offset, compression=codec)
        offset += len(records) + draw(st.integers(0, 3))
    return out


@settings(max_examples=150)
@given(
    log=log_bytes(),
    rows=st.integers(1, 7),
    size=st.integers(1, 700),
    pieces=st.integers(1, 5),
    low=st.integers(0, 40),
    span=st.integers(0, 60),
)
def test_any_log_decodes_to_what_the_wire_layer_reads(log, rows, size, pieces, low, span):
    wanted = Wanted(EVERYTHING, row_limit=rows, byte_limit=size)
    batches = read(log, start=low, end=low + span, wanted=wanted, pieces=pieces)
    assert rows_of(batches) == expected(log, low=low, high=low + span)
    assert all(batch.num_rows <= rows for batch in batches)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_gives_the_same_rows(codec):
    log = plain(3000, value_bytes=100, compression=codec) + plain(10, start=3000, compression=codec)
    assert rows_of(read(log)) == expected(log)


def test_a_batch_is_closed_at_its_row_limit_and_at_its_byte_limit():
    log = b"".join(plain(1000, start=start, value_bytes=1000) for start in range(0, 12_000, 1000))
    sizes = [batch.num_rows for batch in read(log)]
    assert sum(sizes) == 12_000
    assert max(sizes) < 1500
    sizes = [batch.num_rows for batch in read(log, wanted=Wanted((Column("offset"),)))]
    assert sizes == [10_000, 2000]


def test_a_record_larger_than_a_batch_comes_alone():
    big = build_batch([(b"k", bytes(5_000_000), (), 1)], base_offset=10)
    log = plain(10) + big + plain(5, start=11)
    batches = read(log)
    assert [batch.num_rows for batch in batches] == [10, 1, 5]
    assert rows_of(batches) == expected(log)


def test_more_headers_than_a_batch_has_room_for():
    many = build_batch([(b"k", b"v", [(f"h{i}", b"x") for i in range(200)], 1)] * 30)
    wanted = Wanted(EVERYTHING, row_limit=20, byte_limit=1000)
    assert rows_of(read(many, wanted=wanted)) == expected(many)


def test_only_wanted_columns_are_built_in_the_order_of_the_query():
    columns = (Column("offset"), Column("value", nullable=False))
    (batch,) = read(plain(3), wanted=Wanted(columns))
    assert batch.schema == pa.schema([("offset", pa.int64()), pa.field("value", pa.binary(), nullable=False)])
    assert batch.column("offset").to_pylist() == [0, 1, 2]


def test_the_schema_is_the_one_that_spark_derives():
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    from millstream.spark.schema import spark_schema

    assert arrow_schema(EVERYTHING) == pandas_types.to_arrow_schema(spark_schema(include_headers=True), timezone="UTC")


def test_log_append_time_is_the_time_of_the_batch():
    log = plain(3, timestamp=5, log_append_time=777)
    rows = rows_of(read(log))
    assert [row["timestamp"] for row in rows] == [777_000] * 3
    assert [row["timestampType"] for row in rows] == [1] * 3


def test_timestamps_beyond_what_spark_can_hold_become_its_bounds():
    log = build_batch([(None, b"v", (), (1 << 63) - 1)])
    (row,) = rows_of(read(log))
    assert row["timestamp"] == 9_223_372_036_854_775_000


def test_rows_outside_the_wanted_times_are_left_out():
    log = plain(100, timestamp=1000)
    rows = rows_of(read(log, wanted=Wanted(EVERYTHING, from_timestamp=1010, last_timestamp=1019)))
    assert [row["offset"] for row in rows] == list(range(10, 20))


def test_buffers_are_not_used_again_while_somebody_holds_them():
    log = b"".join(plain(100, start=start) for start in range(0, 3000, 100))
    kept = read(log, wanted=Wanted(EVERYTHING, row_limit=100))
    assert rows_of(kept) == expected(log)


@pytest.mark.parametrize("column", ["key", "value", "offset", "timestamp", "headers"])
def test_a_slice_of_one_column_holds_its_buffers(column):
    records = [(b"k%d" % i, b"v%d" % i, ((f"h{i}", b"%d" % i),), 1_000 + i) for i in range(3000)]
    log = b"".join(build_batch(records[start : start + 100], base_offset=start) for start in range(0, 3000, 100))
    decoder = Decoder(Wanted(EVERYTHING, row_limit=100), "t", 0, 0, 1 << 62)
    batches = decoder.decode(decoder.scan(memoryview(log), "test"), "test", ())
    kept = [batch.column(column).slice(7, 80) for batch in batches]
    tail = list(decoder.finish())
    assert len(kept) + len(tail) == 30
    rows = rows_of(read(log))
    for at, piece in enumerate(kept):
        rows_at = rows[at * 100 + 7 : at * 100 + 87]
        assert rows_of([pa.record_batch([piece], [column])]) == [{column: row[column]} for row in rows_at]


def test_a_reader_that_holds_one_batch_while_it_asks_for_the_next_needs_two_sets_of_buffers():
    decoder = Decoder(Wanted(EVERYTHING, row_limit=100), "t", 0, 0, 1 << 62)
    log = b"".join(plain(100, start=start) for start in range(0, 3000, 100))
    addresses = set()
    for batch in decoder.decode(decoder.scan(memoryview(log), "test"), "test", ()):
        addresses.add(batch.column("offset").buffers()[1].address)
    assert len(addresses) == 2


def test_the_end_inside_a_batch_is_kept():
    rows = rows_of(read(plain(10) + plain(10, start=10), start=4, end=13))
    assert [row["offset"] for row in rows] == list(range(4, 13))


def test_two_sources_that_overlap_give_each_row_once():
    decoder = Decoder(Wanted(EVERYTHING), "t", 0, 0, 1 << 62)
    first, second = plain(10) + plain(10, start=10), plain(10, start=10) + plain(10, start=20)
    batches = []
    for piece in (first, second):
        batches += decoder.decode(decoder.scan(memoryview(piece), "test"), "test", ())
    batches += decoder.finish()
    assert [row["offset"] for row in rows_of(batches)] == list(range(30))
    assert decoder.position == 30


def test_control_batches_are_dropped_and_their_offsets_counted():
    log = (
        plain(2, producer_id=9, producer_epoch=0, transactional=True)
        + marker(COMMIT, offset=2, producer_id=9)
        + plain(1, start=3)
    )
    decoder = Decoder(Wanted(EVERYTHING), "t", 0, 0, 1 << 62)
    batches = [*decoder.decode(decoder.scan(memoryview(log), "test"), "test", ()), *decoder.finish()]
    assert [row["offset"] for row in rows_of(batches)] == [0, 1, 3]
    assert decoder.position == 4


def test_aborted_records_are_dropped_and_those_of_others_stay():
    transaction = {"producer_epoch": 0, "transactional": True}
    log = (
        plain(2, producer_id=1, **transaction)
        + plain(2, start=2, producer_id=2, **transaction)
        + marker(ABORT, offset=4, producer_id=1)
        + plain(2, start=5, producer_id=1, **transaction)
        + marker(COMMIT, offset=7, producer_id=2)
        + marker(COMMIT, offset=8, producer_id=1)
    )
    aborted = [Aborted(producer_id=1, first_offset=0)]
    assert [row["offset"] for row in rows_of(read(log, aborted=aborted))] == [2, 3, 5, 6]
    uncommitted = Wanted(EVERYTHING, read_committed=False)
    assert [row["offset"] for row in rows_of(read(log, aborted=None, wanted=uncommitted))] == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("start", [0, 4])
def test_with_known_ends_each_piece_of_a_file_tells_aborted_records_from_later_ones(pieces, start):
    transaction = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    log = (
        plain(2, **transaction)
        + marker(ABORT, offset=2, producer_id=1)
        + plain(3, start=3, **transaction)
        + marker(COMMIT, offset=6, producer_id=1)
        + plain(1, start=7, **transaction)
        + marker(ABORT, offset=8, producer_id=1)
    )
    aborted = AbortedSpans([(1, 0, 2), (1, 7, 8)])
    assert [row["offset"] for row in rows_of(read(log, start=start, aborted=aborted, pieces=pieces))] == [
        offset for offset in (3, 4, 5) if offset >= start
    ]


def test_a_transaction_in_a_segment_is_left_to_the_leader():
    log = plain(5) + plain(2, start=5, producer_id=1, producer_epoch=0, transactional=True)
    decoder = Decoder(Wanted(EVERYTHING), "t", 0, 0, 1 << 62)
    batches = []
    with pytest.raises(TransactionInSegment) as stop:
        batches += decoder.decode(decoder.scan(memoryview(log), "test"), "test", None)
    assert stop.value.offset == 5
    batches += decoder.finish()
    assert [row["offset"] for row in rows_of(batches)] == list(range(5))


def test_a_flipped_bit_is_found_and_named():
    log = bytearray(plain(10) + plain(10, start=10))
    log[-5] ^= 1
    with pytest.raises(Corruption, match=r"orders-0, offset 10: .*checksum.*somewhere"):
        decoder = Decoder(Wanted(EVERYTHING), "orders", 0, 0, 100)
        list(decoder.decode(decoder.scan(memoryview(log), "somewhere"), "somewhere", ()))


def test_batches_out_of_order_are_refused():
    log = plain(10) + plain(10, start=5)
    with pytest.raises(Corruption, match="comes after offset 9"):
        read(log)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic):
    log = bytearray(plain(10))
    log[16] = magic
    with pytest.raises(Corruption, match="older than 2"):
        read(bytes(log))


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 30))
def test_broken_records_under_a_right_checksum_never_read_outside(seed):
    # A producer may send anything with a checksum that matches; bounds have to hold by themselves.
    from crc32c import crc32c

    chance = random.Random(seed)
    log = bytearray(build_batch([(b"k", b"v" * 30, [("h", b"x")], 1)] * 5, compression=0))
    for _ in range(chance.randint(1, 4)):
        log[chance.randrange(61, len(log))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    log[17:21] = crc32c(log[21:]).to_bytes(4, "big")
    try:
        batches = read(bytes(log))
    except Corruption:
        return
    assert sum(batch.num_rows for batch in batches) <= 5


def test_garbage_behind_a_codec_is_corruption():
    from crc32c import crc32c

    log = bytearray(plain(100, compression=Codec.ZSTD))
    log[70:90] = bytes(20)
    log[17:21] = crc32c(log[21:]).to_bytes(4, "big")
    with pytest.raises(Corruption, match="zstd"):
        read(bytes(log))
