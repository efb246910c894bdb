"""Rows to record batches and to a fake broker: the right bytes, the right partition, every row stored."""

import pyarrow as pa
import pytest
from fake_kafka import HANG_UP, FakeKafka
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import types

from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.spark.encode import RowEncoder, check_columns, content_hash
from millstream.spark.exactly_once import WriteSettings
from millstream.spark.schema import spark_schema
from millstream.spark.sink import OnceStreamWriter, TopicStreamWriter, batch_writer, stream_writer, write_rows
from millstream.wire.records import batch_crc_ok, check_batch, iter_batches, iter_records, parse_header

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def arrow(rows):
    items = [
        {
            "key": key,
            "value": value,
            "headers": None if headers is None else [{"key": n, "value": v} for n, v in headers],
        }
        for key, value, headers in rows
    ]
    return pa.RecordBatch.from_pylist(items, schema=SCHEMA)


def records(encoded):
    found = {}
    for item in encoded:
        check_batch([memoryview(item.batch)])
        found.setdefault((item.topic, item.partition), []).extend(iter_records(item.batch))
    return found


@settings(max_examples=100)
@given(
    st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=30),
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    st.integers(1, 2000),
)
def test_rows_come_back_as_they_were(rows, codec, batch_bytes):
    encoder = RowEncoder("t", lambda _: 1, codec=codec, batch_bytes=batch_bytes)
    back = records(encoder.encode(arrow(rows)))["t", 0]
    assert [(r.key, r.value, list(r.headers)) for r in back] == [(k, v, list(h or ())) for k, v, h in rows]


@settings(max_examples=50)
@given(st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=6, max_size=20), st.integers(1, 5))
def test_a_slice_of_a_batch_is_that_slice(rows, start):
    encoder = RowEncoder("t", lambda _: 1)
    back = records(encoder.encode(arrow(rows).slice(start)))["t", 0]
    assert [(r.key, r.value) for r in back] == [(k, v) for k, v, _ in rows[start:]]


@pytest.mark.parametrize(
    ("key", "partition"),
    # Partitions of 100 as Kafka's Java producer chooses them (murmur2, from its own unit test of Utils.murmur2).
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_keys_go_where_the_java_producer_puts_them(key, partition):
    encoded = RowEncoder("t", lambda _: 1000).encode(arrow([(key, b"v", None)]))
    assert next(encoded).partition == (partition & 0x7FFFFFFF) % 1000


def test_rows_without_a_key_take_turns_batch_by_batch():
    encoder = RowEncoder("t", lambda _: 3)
    used = [{item.partition for item in encoder.encode(arrow([(None, b"v", None)] * 10))} for _ in range(3)]
    assert sorted(used, key=min) == [{0}, {1}, {2}]


def test_a_row_may_name_its_topic_and_partition():
    rows = pa.RecordBatch.from_pydict(
        {"value": ["a", "b", "c"], "topic": ["x", "y", "x"], "partition": pa.array([2, None, 1], pa.int32())}
    )
    found = records(RowEncoder(None, lambda _: 3).encode(rows))
    assert [r.value for r in found["x", 2]] == [b"a"]
    assert [r.value for r in found["x", 1]] == [b"c"]
    assert sum(len(found.get(("y", p), [])) for p in range(3)) == 1
    with pytest.raises(Rejected, match="names partition 2, but topic x has 2"):
        list(RowEncoder(None, lambda _: 2).encode(rows))


def test_a_row_larger_than_a_batch_goes_alone():
    rows = arrow([(None, b"x" * 10, None), (None, b"y" * 5_000_000, None), (None, b"z", None)])
    sizes = [item.rows for item in RowEncoder("t", lambda _: 1, codec="none").encode(rows)]
    assert sizes == [1, 1, 1]


def test_batches_are_closed_at_their_size():
    items = list(
        RowEncoder("t", lambda _: 1, codec="none", batch_bytes=10_000).encode(arrow([(None, b"x" * 99, None)] * 1000))
    )
    assert all(9_000 < len(item.batch) < 10_200 for item in items[:-1])
    assert sum(item.rows for item in items) == 1000
    assert all(batch_crc_ok(item.batch) for item in items)


def test_columns_that_a_record_has_no_place_for_are_refused():
    check_columns(["key", "value", "headers", "topic", "partition"])
    with pytest.raises(Rejected, match="needs a column value"):
        check_columns(["key"])
    with pytest.raises(Rejected, match="no column 'amount'"):
        check_columns(["value", "amount"])


def headers(name="key", key=types.StringType, value=types.BinaryType):
    return types.ArrayType(types.StructType().add(name, key()).add("value", value()))


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("value", types.LongType(), "column value is bigint, not string or binary: cast it"),
        ("key", types.IntegerType(), "column key is int, not string or binary: cast it"),
        ("topic", types.BinaryType(), "column topic is binary, not string: cast it"),
        ("partition", types.LongType(), "column partition is bigint, not int: cast it"),
        ("timestamp", types.LongType(), "column timestamp is bigint, not timestamp: cast it"),
        ("headers", types.MapType(types.StringType(), types.BinaryType()), "column headers is map<string,binary>, not"),
        ("headers", headers(name="name"), "not array<struct<key:string,value:binary>>: cast it"),
        ("headers", headers(key=types.BinaryType), "cast it"),
        ("headers", headers(value=types.LongType), "cast it"),
        ("headers", headers(), None),
        ("headers", headers(value=types.StringType), None),
        ("key", types.NullType(), None),
        ("value", types.NullType(), None),
        ("partition", types.ShortType(), None),
        ("timestamp", types.TimestampNTZType(), None),
    ],
)
def test_a_column_of_another_type_is_refused_before_any_task(column, kind, words):
    schema = types.StructType() if column == "value" else types.StructType().add("value", "binary")
    schema = schema.add(column, kind)
    for make in (stream_writer, batch_writer):
        given = {"servers": "a:1", "topic": "t"}
        if words is None:
            make(given, schema)
        else:
            with pytest.raises(Rejected) as refused:
                make(given, schema)
            assert words in refused.value.message


def test_exactly_once_is_the_default_and_less_is_asked_for():
    from pyspark.sql.types import StructType

    schema = StructType([spark_schema(include_headers=False)["value"]])
    base = {"servers": "a:1", "topic": "t"}
    assert isinstance(stream_writer(base, schema), OnceStreamWriter)
    assert isinstance(stream_writer({**base, "delivery": "at-least-once"}, schema), TopicStreamWriter)
    for wrong, words in [
        ({"topic": "t"}, "bootstrap.servers"),
        ({"servers": "a:1"}, "no topic is named"),
        ({**base, "write.id": "x"}, "named by its checkpoint"),
        ({**base, "delivery": "twice"}, "exactly-once or at-least-once"),
    ]:
        with pytest.raises(Rejected, match=words):
            stream_writer(wrong, schema)
    for wrong, words in [
        ({**base, "write.id": "a b"}, "letters, digits"),
        ({**base, "write.number": "1"}, "set that, too"),
        ({**base, "write.id": "x", "delivery": "at-least-once"}, "leave one of them out"),
    ]:
        with pytest.raises(Rejected, match=words):
            batch_writer(wrong, schema)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1 << 43), min_size=1, max_size=40), st.integers(1, 200))
def test_rows_keep_their_timestamps(times, batch_bytes):
    column = pa.array([ms * 1000 + 999 for ms in times], pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_arrays([pa.array([b"v"] * len(times)), column], names=["value", "timestamp"])
    encoded = list(RowEncoder("t", lambda _: 1, batch_bytes=batch_bytes).encode(rows))
    assert [record.timestamp for record in records(encoded)["t", 0]] == times
    for item in encoded:
        held = [record.timestamp for record in iter_records(item.batch)]
        assert parse_header(item.batch).max_timestamp == max(held)


@settings(max_examples=50)
@given(st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_a_content_hash_is_of_the_rows_and_not_of_their_order_or_batches(rows, random):
    whole = content_hash(arrow(rows))
    mixed = random.sample(rows, len(rows))
    cut = random.randrange(len(rows) + 1)
    parts = content_hash(arrow(mixed[:cut])) + content_hash(arrow(mixed[cut:]))
    assert parts & (1 << 64) - 1 == whole
    key, value, headers = rows[0]
    for other in (
        (value, key, headers),
        (key, value, [*(headers or ()), ("h", b"")]),
        (key, (value or b"") + b"x", headers),
    ):
        if other != (key, value, headers):
            assert content_hash(arrow([other, *rows[1:]])) != whole


@pytest.fixture
def kafka():
    with FakeKafka({"t": 3}) as fake:
        yield fake


def sink(kafka, timeout_s=60.0, **changes):
    return WriteSettings(
        **{
            "bootstrap": kafka.bootstrap,
            "client_id": "c",
            "timeout_s": timeout_s,
            "topic": "t",
            "codec": "lz4",
            "batch_bytes": 1000,
            **changes,
        }
    )


def stored(kafka, topic="t"):
    return [
        record.value
        for log in kafka.topics[topic].logs
        for data in log.batches
        for batch in iter_batches(memoryview(data))
        for record in iter_records(batch)
    ]


ROWS = [(b"k%d" % i, b"v%d" % i, None) for i in range(500)]


def test_a_task_ends_when_all_its_rows_are_stored(kafka):
    written = write_rows(sink(kafka), iter([arrow(ROWS[:300]), arrow(ROWS[300:])]))
    assert written.rows == 500
    assert sorted(stored(kafka)) == sorted(value for _, value, _ in ROWS)
    assert all(parse_header(data).codec == 3 for log in kafka.topics["t"].logs for data in log.batches)


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, HANG_UP])
def test_faults_that_pass_lose_nothing(kafka, fault):
    kafka.faults["Produce"] += [fault, 0, fault]
    write_rows(sink(kafka), iter([arrow(ROWS)]))
    assert sorted(stored(kafka)) == sorted(value for _, value, _ in ROWS)


def test_a_refusal_fails_the_task(kafka):
    kafka.faults["Produce"].append(ErrorCode.MESSAGE_TOO_LARGE)
    with pytest.raises(Rejected, match="MESSAGE_TOO_LARGE"):
        write_rows(sink(kafka), iter([arrow(ROWS)]))


def test_a_fault_that_does_not_pass_fails_the_task_in_time(kafka):
    kafka.faults["Produce"] += [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
    with pytest.raises(Unavailable, match="NOT_ENOUGH_REPLICAS"):
        write_rows(sink(kafka, timeout_s=2), iter([arrow(ROWS[:1])]))


def test_a_topic_that_does_not_exist_is_named(kafka):
    with pytest.raises(Rejected, match="topic nope does not exist; 'millstream topic create nope' makes it"):
        write_rows(sink(kafka, topic="nope"), iter([arrow(ROWS[:1])]))
