"""What is found in a batch when its records are looked at, and how it is written anew."""

import struct
import time
import tracemalloc

import pytest
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.compression import Codec, compress, decompress
from millstream.wire.inspection import AS_IT_CAME, NAMED_MAX, RECORD_COUNT_MAX, Refused, Rules, inspect_batch
from millstream.wire.records import HEADER, HEADER_BYTES, batch_crc_ok, build_batch, iter_records, parse_header
from millstream.wire.varint import varlong

NOW = 1_700_000_000_000


def rules(codec=AS_IT_CAME, **changed):
    wanted = {
        "level": None,
        "batch_bytes_max": 1 << 20,
        "keyed": False,
        "append_time": False,
        "oldest_ms": NOW - 1000,
        "newest_ms": NOW + 1000,
    }
    return Rules(codec, **{**wanted, **changed})


def record(delta, key=b"k", value=b"v", *, at=0, size=None, headers=b"\0", extra=b""):
    def sized(data):
        return varlong(-1) if data is None else varlong(len(data)) + data

    body = b"\0" + varlong(at) + varlong(delta) + sized(key) + sized(value) + headers + extra
    return varlong(len(body) if size is None else size) + body


def raw(*records, count=None, codec=0, attributes=0, base=NOW, largest=NOW, behind=b""):
    """A batch of records as they are, with a checksum that holds."""
    payload = compress(codec, b"".join(records) + behind)
    n = len(records) if count is None else count
    out = bytearray(
        HEADER.pack(0, 49 + len(payload), -1, 2, 0, attributes | codec, n - 1, base, largest, -1, -1, -1, n)
    )
    out += payload
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def refusal(batch, wanted):
    with pytest.raises(Refused) as refused:
        inspect_batch(batch, wanted)
    return refused.value


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_is_as_it_should_be_is_left_alone(codec):
    batch = build_batch([(b"k", b"v" * 50, [("h", b"x")], NOW + i) for i in range(20)], compression=codec)
    assert inspect_batch(batch, rules()) is None
    assert inspect_batch(batch, rules(codec)) is None


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_a_batch_changes_its_codec_and_nothing_else(source, target):
    records = [(b"k%d" % i, b"v" * 50, [("h", None)], NOW + i) for i in range(20)]
    numbered = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11}
    batch = build_batch(records, compression=source, **numbered)
    out = inspect_batch(batch, rules(target))
    if source == target:
        assert out is None
        return
    before, after = parse_header(batch), parse_header(out)
    assert batch_crc_ok(out) and after.size == len(out) and after.codec == target
    for field in ("producer_id", "producer_epoch", "base_sequence", "record_count", "base_timestamp", "max_timestamp"):
        assert getattr(after, field) == getattr(before, field)
    assert list(iter_records(out)) == list(iter_records(batch))


def test_a_level_is_the_codecs_own():
    batch = build_batch([(None, bytes(range(256)) * 200, [], NOW)])
    sizes = {}
    for codec, level in ((1, 1), (1, 9), (3, 9), (3, 17), (4, 1), (4, 19)):
        out = inspect_batch(batch, rules(codec, level=level))
        sizes[codec, level] = len(out)
        assert [r.value for r in iter_records(out)] == [r.value for r in iter_records(batch)]
    assert sizes[1, 9] < sizes[1, 1]


MALFORMED = {
    "a record that is shorter than its fields": record(0, size=3),
    "a record that is longer than the batch": record(0, size=40),
    "a record with bytes behind its fields": record(0, extra=b"xx"),
    "a negative length": record(0, size=-5),
    "a negative number of headers": record(0, headers=varlong(-3)),
    "more headers than bytes": record(0, headers=varlong(9999)),
    "a header without a name": record(0, headers=varlong(1) + varlong(-1) + varlong(-1)),
    "a length that never ends": b"\xff" * 40,
}


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("what", MALFORMED)
def test_records_that_do_not_fit_their_batch_are_refused(what, codec):
    error = refusal(raw(MALFORMED[what], codec=codec), rules(2))
    assert error.code is ErrorCode.INVALID_RECORD and not error.refusal.records


@pytest.mark.parametrize("codec", [0, 2])
def test_the_header_counts_the_records(codec):
    three = [record(i) for i in range(3)]
    for count in (2, 4):
        assert refusal(raw(*three, count=count, codec=codec), rules()).code is ErrorCode.INVALID_RECORD
    assert refusal(raw(record(0), codec=codec, behind=b"abc"), rules()).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("deltas", [(1, 0), (0, 0), (0, 5), (5, 6), (-1, 1)])
def test_offset_deltas_that_are_not_dense_are_refused_or_made_so(deltas):
    """Refused where the bytes stay, made dense where they are written anew, which is what Kafka does."""
    batch = raw(*[record(delta, b"k%d" % i, at=i) for i, delta in enumerate(deltas)], codec=1, largest=NOW + 1)
    assert refusal(batch, rules()).code is ErrorCode.INVALID_RECORD
    got = list(iter_records(inspect_batch(batch, rules(3))))
    assert [(one.offset, one.key, one.timestamp) for one in got] == [(0, b"k0", NOW), (1, b"k1", NOW + 1)]


def test_broken_compression_is_refused():
    batch = bytearray(build_batch([(None, b"v" * 500, [], NOW)], compression=4))
    batch[65:70] = b"\xff" * 5
    assert refusal(bytes(batch), rules(0)).code is ErrorCode.INVALID_RECORD


def test_a_batch_that_grows_beyond_the_limit_is_refused():
    batch = build_batch([(None, bytes(50_000), [], NOW)], compression=1)
    assert refusal(batch, rules(0, batch_bytes_max=20_000)).code is ErrorCode.MESSAGE_TOO_LARGE
    assert inspect_batch(batch, rules(0, batch_bytes_max=60_000)) is not None


def test_records_out_of_time_are_named_one_by_one():
    batch = raw(record(0), record(1, at=5000), record(2), record(3, at=-5000), largest=NOW + 5000)
    error = refusal(batch, rules())
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.refusal.records] == [1, 3]
    assert str(NOW + 5000) in error.refusal.records[0][1]


def test_a_record_without_a_timestamp_is_never_out_of_time():
    assert inspect_batch(raw(record(0), base=-1, largest=-1), rules()) is None


def test_a_header_that_lies_about_its_largest_timestamp_is_put_right():
    for lie in (NOW + 999_999, 1):
        out = inspect_batch(raw(record(0), record(1, at=5), largest=lie), rules())
        assert parse_header(out).max_timestamp == NOW + 5 and batch_crc_ok(out)


def test_the_brokers_time_is_not_the_producers_to_claim():
    batch = raw(record(0), record(1), attributes=8)
    error = refusal(batch, rules(append_time=True))
    assert error.code is ErrorCode.INVALID_TIMESTAMP and len(error.refusal.records) == 2
    out = inspect_batch(batch, rules())
    assert parse_header(out).attributes == 0 and batch_crc_ok(out)


def test_records_without_a_key_are_named_where_keys_are_wanted():
    batch = raw(record(0), record(1, None), record(2, b""), record(3, None))
    assert inspect_batch(batch, rules()) is None
    error = refusal(batch, rules(keyed=True))
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.refusal.records] == [1, 3]


def test_a_refusal_names_so_many_records_and_no_more():
    error = refusal(raw(*[record(i, None) for i in range(500)]), rules(keyed=True))
    assert len(error.refusal.records) == NAMED_MAX


def test_what_is_stored_uncompressed_are_the_records_themselves():
    batch = build_batch([(b"k", b"v" * 50, [], NOW)] * 3, compression=2)
    out = inspect_batch(batch, rules(0))
    assert out[HEADER_BYTES:] == decompress(2, batch[HEADER_BYTES:])


def swarm(count):
    """A batch of empty records, all with the delta 0: a few kilobytes that unfold to many."""
    return raw(record(0, None, b"") * count, count=count, codec=Codec.GZIP)


def test_a_batch_of_more_records_than_any_client_sends_is_refused_at_once():
    batch = swarm(RECORD_COUNT_MAX + 1)
    assert len(batch) < 64 << 10
    began = time.process_time()
    assert "are the most" in refusal(batch, rules(0)).refusal.message
    assert time.process_time() - began < 0.5


def test_a_look_at_many_records_takes_little_memory_beside_them():
    count = 40_000
    batch = swarm(count)
    data = count * len(record(0, None, b""))
    for wanted in (rules(Codec.ZSTD), rules(keyed=True), rules(newest_ms=NOW - 1)):
        tracemalloc.start()
        try:
            inspect_batch(batch, wanted)
        except Refused as refused:
            assert len(refused.refusal.records) == NAMED_MAX
            assert refused.code is ErrorCode.INVALID_TIMESTAMP or str(count) in refused.refusal.message
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 3 * data + 40 * count + (1 << 20)


def test_a_timestamp_beyond_64_bits_is_refused():
    batch = raw(record(0, at=1), base=(1 << 63) - 1, largest=(1 << 63) - 1)
    assert refusal(batch, rules(0)).code is ErrorCode.INVALID_RECORD


def test_a_record_that_breaks_two_rules_is_counted_once():
    error = refusal(raw(record(0, None, at=5000), record(1)), rules(keyed=True))
    assert error.refusal.records == [(0, "It has no key, and its topic is compacted.")]
    assert error.code is ErrorCode.INVALID_RECORD


def test_more_is_not_unpacked_than_a_helper_can_bear():
    """A megabyte that claims to be gigabytes, or millions of records, costs neither."""
    bomb = compress(1, bytes(80 << 20))
    head = HEADER.pack(0, 49 + len(bomb), -1, 2, 0, 1, 9, NOW, NOW, -1, -1, -1, 10)
    assert refusal(head + bomb, rules(0)).code is ErrorCode.MESSAGE_TOO_LARGE
    many = 5_000_000
    small = compress(4, record(0, b"", b"") * 10)
    head = HEADER.pack(0, 49 + len(small), -1, 2, 0, 4, many - 1, NOW, NOW, -1, -1, -1, many)
    assert refusal(head + small, rules(0)).code is ErrorCode.INVALID_RECORD
