"""Record batches: built, read back, judged, and agreed upon with kafka-python and aiokafka."""

import struct
import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.compression import Codec
from millstream.wire.errors import BatchError
from millstream.wire.records import (
    ABORT,
    COMMIT,
    CRC_START,
    HEADER_BYTES,
    NewRecord,
    batch_crc_ok,
    build_batch,
    check_batch,
    checksum,
    control_record,
    iter_batches,
    iter_records,
    parse_header,
    unpack_header,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder

CODECS = list(Codec)
RECORDS: list[NewRecord] = [
    (b"key", b"value", [], 1_700_000_000_000),
    (None, b"no key" * 50, [("header", b"x"), ("header", b""), ("empty", None)], 1_700_000_000_500),
    (b"", None, [("ä", b"\xff" * 200)], 1_699_999_999_000),
    (b"k" * 300, b"v" * 70_000, [], 1_700_000_100_000),
]


def resum(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_START:])))
    return bytes(batch)


def patched(offset: int, form: str, value: int, codec: int = 0) -> bytes:
    """A good batch of four records with one header field changed and the checksum made to match."""
    batch = bytearray(build_batch(RECORDS, compression=codec))
    struct.pack_into(form, batch, offset, value)
    return resum(batch)


class TestBuildAndRead:
    @pytest.mark.parametrize("codec", CODECS)
    def test_records_come_back_with_dense_offsets(self, codec: int) -> None:
        batch = build_batch(RECORDS, base_offset=40, compression=codec)
        records = list(iter_records(batch))
        assert [(r.key, r.value, list(r.headers), r.timestamp) for r in records] == [
            (key, value, list(headers), timestamp) for key, value, headers, timestamp in RECORDS
        ]
        assert [r.offset for r in records] == [40, 41, 42, 43]

    def test_the_header_says_what_was_asked_for(self) -> None:
        batch = build_batch(
            RECORDS,
            base_offset=7,
            compression=Codec.ZSTD,
            producer_id=9,
            producer_epoch=2,
            base_sequence=11,
            leader_epoch=5,
            transactional=True,
        )
        header = parse_header(batch)
        assert (header.base_offset, header.last_offset, header.next_offset) == (7, 10, 11)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 11)
        assert (header.leader_epoch, header.record_count, header.size) == (5, 4, len(batch))
        assert (header.base_timestamp, header.max_timestamp) == (RECORDS[0][3], RECORDS[3][3])
        assert header.codec == Codec.ZSTD
        assert header.is_transactional
        assert not header.is_control
        assert unpack_header(batch)[0] == 7
        assert batch_crc_ok(batch)

    def test_log_append_time_stands_for_every_record(self) -> None:
        batch = build_batch(RECORDS, log_append_time=123)
        assert parse_header(batch).is_log_append_time
        assert {record.timestamp for record in iter_records(batch)} == {123}

    @pytest.mark.parametrize(("kind", "key"), [(ABORT, b"\0\0\0\0"), (COMMIT, b"\0\0\0\1")])
    def test_control_batches_carry_a_marker(self, kind: int, key: bytes) -> None:
        batch = build_batch(
            [control_record(kind, 3, 50)], producer_id=1, producer_epoch=0, transactional=True, control=True
        )
        assert parse_header(batch).is_control
        (record,) = iter_records(batch)
        assert (record.key, record.value, record.timestamp) == (key, b"\0\0\0\0\0\3", 50)

    def test_what_cannot_be_built_is_a_value_error(self) -> None:
        for wrong in ({"compression": 5}, {"producer_epoch": 1 << 20}):
            with pytest.raises(ValueError):
                build_batch(RECORDS, **wrong)
        with pytest.raises(ValueError):
            build_batch([])

    def test_batches_are_walked_and_a_cut_one_is_left_out(self) -> None:
        first, second = build_batch(RECORDS), build_batch(RECORDS[:1], base_offset=4, compression=Codec.LZ4)
        run = first + second
        assert [bytes(batch) for batch in iter_batches(run)] == [first, second]
        assert [bytes(batch) for batch in iter_batches(run[:-1])] == [first]
        assert list(iter_batches(first[:60])) == []

    def test_compacted_batches_may_have_gaps(self) -> None:
        batch = bytearray(build_batch([RECORDS[0]]))
        struct.pack_into(">i", batch, 23, 9)
        (record,) = iter_records(batch)
        assert record.offset == 0

    def test_a_checksum_over_pieces_is_that_of_the_whole(self) -> None:
        batch = build_batch(RECORDS)
        whole = parse_header(batch).crc
        for cut in (1, 20, 21, 22, 61, 5000, len(batch) - 1):
            assert checksum([batch[:cut], memoryview(batch)[cut:]]) == whole
        assert checksum([batch[i : i + 7] for i in range(0, len(batch), 7)]) == whole


class TestReadingGarbage:
    def test_a_bomb_is_stopped_at_the_limit(self) -> None:
        for codec in CODECS[1:]:
            batch = build_batch([(None, bytes(5_000_000), [], 0)], compression=codec)
            with pytest.raises(BatchError) as caught:
                list(iter_records(batch, limit=1_000_000))
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    @pytest.mark.parametrize("count", [-1, 5, 1 << 30])
    def test_a_wrong_record_count_is_found(self, count: int) -> None:
        with pytest.raises(BatchError):
            list(iter_records(patched(57, ">i", count)))

    def test_a_record_too_few_leaves_bytes_behind(self) -> None:
        with pytest.raises(BatchError, match="after the last record"):
            list(iter_records(patched(57, ">i", 3)))

    def test_an_offset_beyond_the_batch_is_refused(self) -> None:
        with pytest.raises(BatchError, match="offset delta"):
            list(iter_records(patched(23, ">i", 2)))

    def test_old_formats_and_short_lengths_are_no_headers(self) -> None:
        with pytest.raises(BatchError) as caught:
            parse_header(patched(16, ">b", 1))
        assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        with pytest.raises(BatchError):
            parse_header(patched(8, ">i", 48))


class TestCheck:
    @pytest.mark.parametrize("codec", CODECS)
    def test_a_good_batch_passes_in_any_number_of_pieces(self, codec: int) -> None:
        batch = build_batch(RECORDS, compression=codec, producer_id=4, producer_epoch=0, base_sequence=0)
        for step in (len(batch), 61, 60, 16, 1000):
            pieces = [memoryview(batch)[i : i + step] for i in range(0, len(batch), step)]
            assert check_batch(pieces) == parse_header(batch)

    @pytest.mark.parametrize(
        ("batch", "code"),
        [
            (b"", ErrorCode.CORRUPT_MESSAGE),
            (build_batch(RECORDS)[:60], ErrorCode.CORRUPT_MESSAGE),
            (build_batch(RECORDS)[:-1], ErrorCode.CORRUPT_MESSAGE),
            (build_batch(RECORDS) + b"\0", ErrorCode.INVALID_RECORD),
            (build_batch(RECORDS) * 2, ErrorCode.INVALID_RECORD),
            (bytes(12) + b"\0\0\0\0" + b"\1" + bytes(20), ErrorCode.INVALID_RECORD),
            (patched(16, ">b", 1), ErrorCode.INVALID_RECORD),
            (patched(16, ">b", 3), ErrorCode.INVALID_RECORD),
            (patched(8, ">i", 48), ErrorCode.CORRUPT_MESSAGE),
            (patched(8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
            (patched(23, ">i", 4), ErrorCode.INVALID_RECORD),
            (patched(57, ">i", 3), ErrorCode.INVALID_RECORD),
            (patched(21, ">h", 5), ErrorCode.INVALID_RECORD),
            (patched(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
            (patched(43, ">q", 7), ErrorCode.INVALID_RECORD),
        ],
    )
    def test_a_bad_batch_is_told_apart(self, batch: bytes, code: ErrorCode) -> None:
        with pytest.raises(BatchError) as caught:
            check_batch([batch] if batch else [])
        assert caught.value.code is code

    def test_no_records_and_too_many_for_the_bytes_are_refused(self) -> None:
        empty = bytearray(build_batch(RECORDS)[:HEADER_BYTES])
        struct.pack_into(">i", empty, 8, 49)
        for count in (0, 1, 1_000_000):
            struct.pack_into(">i", empty, 23, count - 1)
            struct.pack_into(">i", empty, 57, count)
            with pytest.raises(BatchError) as caught:
                check_batch([resum(empty)])
            assert caught.value.code is ErrorCode.INVALID_RECORD


def _pairs(of_kafka_python: type, of_aiokafka: type) -> list[tuple[type, Codec]]:
    """Each with each codec; kafka-python has no snappy without a package that nothing else here needs."""
    known = [codec for codec in CODECS if codec is not Codec.SNAPPY]
    return [(of_kafka_python, codec) for codec in known] + [(of_aiokafka, codec) for codec in CODECS]


class TestOtherImplementations:
    """kafka-python and aiokafka each have a builder and a reader of their own."""

    @pytest.mark.parametrize(("builder", "codec"), _pairs(KafkaBuilder, AioBuilder))
    def test_we_read_what_they_build(self, builder: Any, codec: int) -> None:
        made = builder(
            magic=2,
            compression_type=codec,
            is_transactional=0,
            producer_id=5,
            producer_epoch=1,
            base_sequence=8,
            batch_size=1 << 20,
        )
        for offset, (key, value, headers, timestamp) in enumerate(RECORDS):
            assert made.append(offset, timestamp=timestamp, key=key, value=value, headers=list(headers)) is not None
        batch = bytes(made.build())
        assert batch_crc_ok(batch)
        assert check_batch([batch]).base_sequence == 8
        assert [(r.key, r.value, list(r.headers), r.timestamp) for r in iter_records(batch)] == [
            (key, value, list(headers), timestamp) for key, value, headers, timestamp in RECORDS
        ]

    @pytest.mark.parametrize(("reader", "codec"), _pairs(KafkaBatch, AioBatch))
    def test_they_read_what_we_build(self, reader: Any, codec: int) -> None:
        batch = build_batch(RECORDS, base_offset=100, compression=codec)
        theirs = reader(batch)
        assert theirs.validate_crc()
        assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == [
            (100 + i, timestamp, key, value, list(headers))
            for i, (key, value, headers, timestamp) in enumerate(RECORDS)
        ]

    def test_uncompressed_batches_are_the_same_bytes(self) -> None:
        theirs = AioBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for offset, (key, value, headers, timestamp) in enumerate(RECORDS):
            theirs.append(offset, timestamp=timestamp, key=key, value=value, headers=list(headers))
        ours = build_batch(RECORDS, leader_epoch=int.from_bytes(bytes(theirs.build())[12:16], "big", signed=True))
        assert ours == bytes(theirs.build())


@pytest.mark.parametrize(("base", "delta", "timestamp"), [((1 << 63) - 1, 11, -(1 << 63) + 10), (5, 11, 16)])
def test_a_timestamp_beyond_64_bits_comes_round_as_for_kafkas_clients(base: int, delta: int, timestamp: int) -> None:
    batch = bytearray(build_batch([(b"k", b"v", [], 0)]))
    batch[27:35] = base.to_bytes(8, "big")
    batch[HEADER_BYTES + 2] = delta << 1
    assert [record.timestamp for record in iter_records(batch)] == [timestamp]
