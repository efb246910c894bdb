"""Rows of a query that break a rule of the table are dead letters of their records, which a replay adds once."""

import json

import deltalake
import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from spark_support import held

from millstream.pipeline.model import Errors, Pipeline, Sink, Source, Transform
from millstream.pipeline.replay import replay
from millstream.pipeline.runner import run
from millstream.pipeline.sink_query import SinkFailed
from millstream.pipeline.tables.open_table import open_table

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

PLACES = "_topic, _partition, _offset, _timestamp"
COUNT = 40
UNFIT = {number for number in range(COUNT) if number % 10 == 3}
SINKS = [Sink(delta="t", name="delta"), Sink(iceberg="ns.t", name="iceberg")]


@pytest.fixture
def tagged(topic):
    """A pipeline with these sinks and this query, whose records have two tags; in some the second is null."""
    source = topic(2)
    producer = Producer({"bootstrap.servers": source.bootstrap, "log_level": 2})
    for number in range(COUNT):
        value = {"id": number, "tags": ["a", None if number in UNFIT else "b"]}
        producer.produce(source.name, json.dumps(value), str(number))
    assert producer.flush(60) == 0

    def declared(sql, *sinks, mode="dead_letter"):
        read = Source(topic=source.name, format="json", schema="id bigint, tags array<string>", max_records=15)
        return Pipeline(
            pipeline="p", brokers=source.bootstrap, source=read, sinks=list(sinks), transform=Transform(sql=sql),
            errors=Errors(mode=mode),
        )  # fmt: skip

    return declared


def own(place, sink, *required):
    """A table that somebody else has made, with required columns."""
    fields = [pa.field("id", pa.int64()), pa.field("tag", pa.string(), nullable="tag" not in required)]
    schema = pa.schema(fields)
    if sink.delta is not None:
        deltalake.DeltaTable.create(str(place / sink.delta), schema=schema)
        return
    catalog = open_table(sink, str(place))._catalog
    catalog.create_namespace("ns")
    catalog.create_table(sink.iceberg, schema)


def test_a_record_with_a_row_that_breaks_a_rule_is_a_dead_letter_as_a_whole(spark, tagged, tmp_path):
    for sink in SINKS:
        own(tmp_path, sink, "tag")
    query = f"SELECT id, explode(tags) AS tag, {PLACES} FROM source"
    for summary in run(tagged(query, *SINKS), str(tmp_path), once=True).sinks:
        assert (summary.rows, summary.rejected) == (2 * (COUNT - len(UNFIT)), len(UNFIT))
    for sink in SINKS:
        assert {row["id"] for row in held(sink, tmp_path)} == set(range(COUNT)) - UNFIT
        letters = held(sink, tmp_path, "_dead_letters")
        assert {json.loads(letter["value"])["id"] for letter in letters} == UNFIT
        assert {(int(letter["key"]), letter["column"]) for letter in letters} == {(number, "tag") for number in UNFIT}
        assert all("column tag is required in the table" in letter["error"] for letter in letters)
    for still in replay(tagged(query, *SINKS), str(tmp_path)):
        assert (still.letters, still.replayed, sum(still.reasons.values())) == (len(UNFIT), 0, len(UNFIT))
    mended = query.replace("explode(tags)", "explode(transform(tags, tag -> coalesce(tag, 'none')))")
    for done in replay(tagged(mended, *SINKS), str(tmp_path)):
        assert (done.letters, done.replayed, done.rows) == (len(UNFIT), len(UNFIT), 2 * len(UNFIT))
    for sink in SINKS:
        rows = sorted((row["id"], row["tag"]) for row in held(sink, tmp_path))
        second = {number: "none" if number in UNFIT else "b" for number in range(COUNT)}
        assert rows == sorted([(number, "a") for number in range(COUNT)] + list(second.items()))
        assert held(sink, tmp_path, "_dead_letters") == []


def test_a_row_that_names_no_record_is_kept_itself(spark, tagged, tmp_path):
    sink = SINKS[0]
    own(tmp_path, sink, "tag")
    query = "SELECT id, explode(tags) AS tag FROM source"
    with pytest.raises(SinkFailed, match="column tag is required"):
        run(tagged(query, sink, mode="fail"), str(tmp_path), once=True)
    assert held(sink, tmp_path) == []
    (summary,) = run(tagged(query, sink), str(tmp_path), once=True).sinks
    assert (summary.rows, summary.rejected) == (2 * COUNT - len(UNFIT), len(UNFIT))
    letters = held(sink, tmp_path, "_dead_letters")
    assert {json.loads(letter["value"])["id"] for letter in letters} == UNFIT
    assert {letter["topic"] for letter in letters} == {None}
    assert replay(tagged(query, sink), str(tmp_path))[0].letters == 0
    assert len(held(sink, tmp_path, "_dead_letters")) == len(UNFIT)


def test_a_row_that_breaks_a_rule_leaves_the_row_of_its_key_as_it_is(spark, tagged, tmp_path):
    sink = Sink(delta="t", mode="upsert", key="id")
    own(tmp_path, sink, "tag")
    query = f"SELECT id % 10 AS id, tags[1] AS tag, {PLACES} FROM source"
    (summary,) = run(tagged(query, sink), str(tmp_path), once=True).sinks
    assert (summary.rows, summary.rejected) == (COUNT - len(UNFIT), len(UNFIT))
    assert sorted(row["id"] for row in held(sink, tmp_path)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    mended = msgspec.structs.replace(tagged(query.replace("tags[1]", "coalesce(tags[1], 'none')"), sink))
    (done,) = replay(mended, str(tmp_path))
    assert (done.letters, done.replayed) == (len(UNFIT), len(UNFIT))
    assert {row["id"]: row["tag"] for row in held(sink, tmp_path)} == dict.fromkeys(range(10), "b") | {3: "none"}


def test_a_record_on_which_the_query_fails_is_a_dead_letter(spark, tagged, tmp_path):
    sinks = [*SINKS, Sink(delta="u", name="keyed", mode="upsert", key="id")]
    share = "CASE WHEN id = 13 THEN CAST(concat('x', id) AS INT) ELSE 100 div (id % 10 - 3) END"
    query = f"SELECT id, {share} AS share, {PLACES} FROM source"
    with pytest.raises(SinkFailed, match=r"DIVIDE_BY_ZERO|CAST_INVALID_INPUT"):
        run(tagged(query, SINKS[0], mode="fail"), str(tmp_path / "fails"), once=True)
    for summary in run(tagged(query, *sinks), str(tmp_path), once=True).sinks:
        assert (summary.rows, summary.rejected) == (COUNT - len(UNFIT), len(UNFIT))
    for sink in sinks:
        assert sorted(row["id"] for row in held(sink, tmp_path)) == sorted(set(range(COUNT)) - UNFIT)
        letters = {json.loads(letter["value"])["id"]: letter for letter in held(sink, tmp_path, "_dead_letters")}
        assert set(letters) == UNFIT
        assert {int(letter["key"]) for letter in letters.values()} == UNFIT
        reasons = {number: letter["error"].partition("]")[0] for number, letter in letters.items()}
        assert reasons == dict.fromkeys(UNFIT, "[DIVIDE_BY_ZERO") | {13: "[CAST_INVALID_INPUT"}
    for still in replay(tagged(query, *sinks), str(tmp_path)):
        assert (still.letters, still.replayed, sum(still.reasons.values())) == (len(UNFIT), 0, len(UNFIT))
    for done in replay(
        tagged(query.replace(share, "CAST(try_divide(100, id % 10 - 3) AS BIGINT)"), *sinks), str(tmp_path)
    ):
        assert (done.letters, done.replayed) == (len(UNFIT), len(UNFIT))
    for sink in sinks:
        assert sorted(row["id"] for row in held(sink, tmp_path)) == list(range(COUNT))
