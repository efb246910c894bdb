"""History into a table that began later, and dead letters once more: each record is in one place, whatever fails."""

import json
import shutil

import msgspec
import pytest
from confluent_kafka import Producer

pytest.importorskip("deltalake")

from spark_support import check_exact, delta

from millstream.errors import Rejected
from millstream.pipeline import replay as replay_module
from millstream.pipeline.backfill import prepared_backfill
from millstream.pipeline.model import Pipeline, Sink, Source, Transform
from millstream.pipeline.replay import replay
from millstream.pipeline.runner import run
from millstream.pipeline.sink_query import SinkFailed
from millstream.pipeline.table_query import TableQuery

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def backfill(pipeline, place):
    with prepared_backfill(pipeline, str(place)) as running:
        return running.run(once=True).sinks[0]


def test_history_and_present_meet_without_a_gap_and_without_an_overlap(spark, orders, tmp_path, monkeypatch):
    orders.send(1000)
    source = msgspec.structs.replace(orders.pipeline().source, start="latest")
    pipeline = orders.pipeline(source=source, state="state")
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 0
    orders.send(200)
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 200 - 8
    shutil.rmtree(tmp_path / "state")  # the table knows where its pipeline began
    process = TableQuery._process

    def failing(self, frame, number, query):
        done = process(self, frame, number, query)
        if number == 1:
            raise OSError("seeded")
        return done

    with monkeypatch.context() as patched, pytest.raises(SinkFailed, match="seeded"):
        patched.setattr(TableQuery, "_process", failing)
        backfill(pipeline, tmp_path)
    orders.send(100)
    assert backfill(pipeline, tmp_path).total_rows == 1000 - 40
    assert backfill(pipeline, tmp_path).batches == 0
    assert run(pipeline, str(tmp_path), once=True).sinks[0].total_rows == 300 - 12
    check_exact(orders, tmp_path)


def test_a_backfill_before_the_first_run_hands_over_to_it(spark, orders, tmp_path):
    pipeline = orders.send(300).pipeline(state="state")
    assert backfill(pipeline, tmp_path).rows == orders.good
    shutil.rmtree(tmp_path / "state")
    orders.send(100)
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 100 - 4
    check_exact(orders, tmp_path)
    sums = msgspec.structs.replace(
        pipeline, transform=Transform(sql="SELECT who, count(*) AS n FROM source GROUP BY who")
    )
    with pytest.raises(Rejected, match=r"puts records together \(Aggregate\)"):
        backfill(msgspec.structs.replace(sums, sinks=[Sink(delta="sums")]), tmp_path)


def test_dead_letters_become_rows_after_the_schema_is_mended_each_once(spark, topic, tmp_path, monkeypatch):
    orders = topic(2)
    producer = Producer({"bootstrap.servers": orders.bootstrap, "log_level": 2})
    for number in range(60):
        value = b"{broken" if number % 20 == 0 else json.dumps({"id": number} | ({"who": "w"} if number % 3 else {}))
        producer.produce(orders.name, value, str(number))
    assert producer.flush(30) == 0

    def declared(schema):
        source = Source(topic=orders.name, format="json", schema=schema)
        query = Transform(sql="SELECT id, upper(who) AS who, _offset AS at FROM source")
        return Pipeline(pipeline="p", brokers=orders.bootstrap, source=source, sinks=[Sink(delta="t")], transform=query)

    strict, mended = declared("id bigint not null, who string not null"), declared("id bigint not null, who string")
    first = run(strict, str(tmp_path), once=True).sinks[0]
    assert (first.rows, first.rejected) == (38, 22)
    (nothing,) = replay(strict, str(tmp_path))
    assert (nothing.letters, nothing.replayed, sum(nothing.reasons.values())) == (22, 0, 22)

    def failing(*_):
        raise OSError("seeded")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="seeded"):
        patched.setattr(replay_module, "remove_dead_letters", failing)
        replay(mended, str(tmp_path))
    (done,) = replay(mended, str(tmp_path))
    assert (done.letters, done.replayed) == (3, 0)  # the rest had come before the failure
    rows = delta(tmp_path / "t")
    assert sorted(row["id"] for row in rows) == [number for number in range(60) if number % 20]
    assert {row["who"] for row in rows if row["id"] % 3 == 0} == {None}
    assert {row["value"] for row in delta(tmp_path / "t_dead_letters")} == {b"{broken"}
    assert run(mended, str(tmp_path), once=True).sinks[0].rows == 0
    sums = msgspec.structs.replace(mended, transform=Transform(sql="SELECT count(*) AS n FROM source"))
    with pytest.raises(Rejected, match=r"puts records together \(Aggregate\)"):
        replay(sums, str(tmp_path))
