"""Tables with one row for each key, filled by Spark from a real broker."""

import json
import random

import msgspec
import pytest
from confluent_kafka import Producer
from keyed_records import Customers
from spark_support import delta

from millstream.pipeline.backfill import prepared_backfill
from millstream.pipeline.model import SideTable, Sink, Source, Transform
from millstream.pipeline.query import QueryProblem
from millstream.pipeline.replay import replay
from millstream.pipeline.runner import run
from millstream.pipeline.tables.open_table import open_table

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

PLACES = "_topic, _partition, _offset, _timestamp"


def iceberg(place, name="ns.t"):
    table = open_table(Sink(iceberg=name), str(place))._fresh()
    return table, table.scan().to_arrow().to_pylist()


def test_a_topic_becomes_a_table_with_a_row_for_each_key(spark, orders, topic, tmp_path):
    customers = Customers(topic).send(400)
    sinks = [
        Sink(delta="t", mode="upsert", key="id"),
        Sink(delta="log", mode="changelog", key="id"),
        Sink(
            iceberg="ns.t", mode="upsert", key=["id"],
            sql=f"SELECT nullif(id, 3) AS id, upper(who) AS who, {PLACES} FROM result",
        ),
    ]  # fmt: skip
    pipeline = orders.pipeline(*sinks, source=customers.source())
    first = run(pipeline, str(tmp_path), once=True)
    assert [sink.rows + sink.rejected for sink in first.sinks] == [400] * 3
    assert first.sinks[0].rejected == customers.bad
    customers.send(300)
    run(pipeline, str(tmp_path), once=True)
    assert {row["id"]: row["who"] for row in delta(tmp_path / "t")} == customers.rows
    assert len(delta(tmp_path / "t")) == len(customers.rows)
    log = sorted(delta(tmp_path / "log"), key=lambda row: row["_offset"])
    assert {row["id"]: row["who"] for row in log if row["_change"] == "upsert"}.keys() >= customers.rows.keys()
    last = {row["id"]: row for row in log}
    assert {key: row["who"] for key, row in last.items() if row["_change"] == "upsert"} == customers.rows
    assert len(log) == len({(row["_partition"], row["_offset"]) for row in log}) == 700 - customers.bad
    table, rows = iceberg(tmp_path)
    assert {row["id"]: row["who"] for row in rows} == {
        key: who.upper() for key, who in customers.rows.items() if key != 3
    }
    assert (table.schema().identifier_field_names(), table.sort_order().order_id) == ({"id"}, 1)
    letters = delta(tmp_path / "t_dead_letters")
    assert len(letters) == customers.bad
    _, letters = iceberg(tmp_path, "ns.t_dead_letters")
    keyless = [letter for letter in letters if "in the result of the query" in letter["error"]]
    assert {json.loads(letter["value"]).get("id") for letter in keyless} == {3, None}


def test_dead_letters_and_history_bring_no_older_row_back(spark, orders, topic, tmp_path):
    customers = Customers(topic).send(200)
    orders.topic = customers.topic
    sink = Sink(delta="t", mode="upsert", key="id")
    live = orders.pipeline(sink, source=customers.source(start="latest"))
    run(live, str(tmp_path), once=True)
    customers.send(200)
    run(live, str(tmp_path), once=True)
    with prepared_backfill(live, str(tmp_path)) as running:
        running.run(once=True)
    assert {row["id"]: row["who"] for row in delta(tmp_path / "t")} == customers.rows
    # Rows without an id get one in the mended query; older than everything of that key, they must change nothing.
    before = len(delta(tmp_path / "t_dead_letters"))
    mended = msgspec.structs.replace(
        live, transform=Transform(sql=f"SELECT coalesce(id, 1) AS id, who, {PLACES} FROM source")
    )
    customers.rows |= {1: "late"}
    producer = Producer({"bootstrap.servers": customers.topic.bootstrap, "log_level": 2})
    producer.produce(customers.topic.name, json.dumps({"id": 1, "who": "late"}), "1")
    assert producer.flush(60) == 0
    run(live, str(tmp_path), once=True)
    (done,) = replay(mended, str(tmp_path))
    assert done.letters == before
    assert 0 < done.replayed < before
    assert len(delta(tmp_path / "t_dead_letters")) == before - done.replayed
    found = {row["id"]: row["who"] for row in delta(tmp_path / "t")}
    assert found == customers.rows


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT id, who FROM source", "lacks _topic, _partition, _offset, _timestamp"),
        (f"SELECT CAST(id AS double) AS id, {PLACES} FROM source", "and such are no key"),
        (f"SELECT DISTINCT id, {PLACES} FROM source", "puts records together"),
    ],
)  # fmt: skip
def test_queries_that_lose_key_or_offset_are_refused(spark, orders, topic, tmp_path, sql, what):
    pipeline = orders.pipeline(
        Sink(delta="t", mode="upsert", key="id"), source=Customers(topic).source(), transform=Transform(sql=sql)
    )
    with pytest.raises(QueryProblem, match=what) as caught:
        run(pipeline, str(tmp_path), once=True)
    assert caught.value.path == ("transform", "sql")


def test_a_compacted_topic_is_joined_with_as_its_latest_values(spark, orders, topic, tmp_path):
    names = topic(2, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": names.bootstrap, "log_level": 2})
    for key, value in (("n0", "old"), ("n1", "one"), ("n2", "two"), ("n0", "zero"), ("n2", None), ("n3", None)):
        text = None if value is None else json.dumps({"who": key, "name": value})
        producer.produce(names.name, text, key)
    assert producer.flush(60) == 0
    pipeline = orders.send(100).pipeline(
        Sink(delta="t"),
        tables={"names": SideTable(topic=names.name, schema="who string, name string")},
        transform=Transform(sql="SELECT source.id, names.name FROM source LEFT JOIN names USING (who)"),
    )
    run(pipeline, str(tmp_path), once=True)
    wanted = {0: "zero", 1: "one", 2: None}
    rows = delta(tmp_path / "t")
    assert len(rows) == orders.good
    assert all(row["name"] == wanted[row["id"] % 3] for row in rows)


def test_poison_inside_of_structures_is_kept_apart_from_many_rows(orders, topic, spark, tmp_path):
    """200,000 records: the member of a structure does not fit in each 100th, and each 20th is a tombstone."""
    customers = topic(4)
    producer = Producer({"bootstrap.servers": customers.bootstrap, "linger.ms": 20, "log_level": 2})
    order, model = random.Random(11), {}
    for number in range(200_000):
        key, poison = order.randrange(20_000), number % 100 == 0
        place = {"city": "c", "zips": [{"code": number % 7}, {"code": "poison" if poison else 1}]}
        value = None if number % 20 == 1 else json.dumps({"id": key, "n": number, "place": place})
        producer.produce(customers.name, value, str(key))
        producer.poll(0.1 if len(producer) > 50_000 else 0)
        if not poison:
            model[key] = None if value is None else number
    assert producer.flush(240) == 0
    schema = "id bigint, n bigint, place struct<city: string, zips: array<struct<code: int>>>"
    source = Source(topic=customers.name, format="json", schema=schema, max_records=50_000)
    done = run(orders.pipeline(Sink(delta="t", mode="upsert", key="id"), source=source), str(tmp_path), once=True)
    assert (done.sinks[0].rows, done.sinks[0].rejected) == (198_000, 2_000)
    assert done.sinks[0].batches >= 4
    rows = {row["id"]: row["n"] for row in delta(tmp_path / "t")}
    assert rows == {key: number for key, number in model.items() if number is not None}
    assert len(delta(tmp_path / "t")) == len(rows)
    letters = delta(tmp_path / "t_dead_letters")
    assert {letter["column"] for letter in letters} == {"place.zips[1].code"}
    assert len({(letter["partition"], letter["offset"]) for letter in letters}) == 2_000
