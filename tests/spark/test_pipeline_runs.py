"""Declared pipelines on a real broker: every record once, as a row or a dead letter, whatever fails on the way.

Each run of a pipeline costs seconds, because Spark starts Python processes for each query. ``make test`` has the three
runs that prove the promise; what is marked slow is run by ``make test-spark`` and by every CI run.
"""

import json
import os
import re
import shutil
import threading
import urllib.request
from pathlib import Path

import msgspec
import pytest
import yaml
from confluent_kafka import Producer

pytest.importorskip("deltalake")

from spark_support import BAD_EVERY, BRIEF_DRIVER, check_exact, delta, run_killed

from millstream.errors import Rejected
from millstream.pipeline import topic_query
from millstream.pipeline.checks import sink_name
from millstream.pipeline.model import Errors, Pipeline, SideTable, Sink, Source, Transform, Trigger
from millstream.pipeline.query_names import QueryProblem
from millstream.pipeline.runner import prepared, run
from millstream.pipeline.sink_query import NoWatch, SinkFailed
from millstream.pipeline.table_query import TableQuery
from millstream.pipeline.tables.open_table import open_table

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]  # Spark starts slowly on a busy machine

SLOW = pytest.mark.slow
NOON = "2024-01-01 12:00:00.123456"


def test_a_topic_becomes_a_table_that_goes_on_even_without_its_checkpoint(spark, orders, tmp_path):
    first = run(orders.send(1000).pipeline(state="state"), str(tmp_path), once=True).sinks[0]
    assert (first.rows, first.rejected, first.batches) == (orders.good, orders.bad, 3)
    os.rename(tmp_path / "state", tmp_path / "gone")
    again = run(orders.send(100).pipeline(state="state"), str(tmp_path), once=True).sinks[0]
    assert (again.batches, again.total_rows, again.total_rejected) == (1, orders.good, orders.bad)
    check_exact(orders, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "sql", "said"),
    [
        (
            Sink(delta="t"),
            "SELECT CAST(id AS STRING) AS id, who FROM source",
            "column id is string, in the table int64",
        ),
        (Sink(iceberg="ns.t"), "SELECT id, who AS Id2, 1 AS WHO FROM source", "column WHO is called who in the table"),
        (Sink(parquet="t"), "SELECT id, 5 AS who FROM source", "column who is int32, in the files who is string"),
        (Sink(delta="t", mode="upsert", key="id"), "SELECT id, who FROM source", "the result lacks _topic"),
    ],
)
def test_a_result_that_does_not_fit_takes_the_table_from_no_other_run(spark, orders, tmp_path, sink, sql, said):
    whole = Transform(sql="SELECT * EXCEPT (_key) FROM source")
    run(orders.send(50).pipeline(sink, state="here", transform=whole), str(tmp_path), once=True)
    table = open_table(sink, str(tmp_path))
    before = table.guard(f"p.{sink_name(sink)}")
    elsewhere = orders.pipeline(sink, state="elsewhere", transform=Transform(sql=sql))
    with pytest.raises(Rejected, match=said):
        run(elsewhere, str(tmp_path), once=True)
    assert table.guard(f"p.{sink_name(sink)}") == before


@pytest.mark.slow
def test_iceberg_and_parquet_hold_what_delta_holds(spark, orders, tmp_path):
    from pyarrow.dataset import dataset
    from pyiceberg.catalog import load_catalog

    sinks = [Sink(iceberg="ns.t"), Sink(parquet="plain", sql="SELECT id, who FROM result")]
    summary = run(orders.send(500).pipeline(*sinks), str(tmp_path), once=True)
    assert [(sink.rows, sink.rejected) for sink in summary.sinks] == [(orders.good, orders.bad)] * 2
    place = tmp_path / ".millstream" / "iceberg"
    catalog = load_catalog(
        "millstream", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse"
    )
    rows = catalog.load_table("ns.t").scan().to_arrow().to_pylist()
    plain = dataset(str(tmp_path / "plain"), partitioning="hive").to_table().to_pylist()
    wanted = [n for n in range(orders.good + orders.bad) if n % BAD_EVERY]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in plain) == wanted
    letters = catalog.load_table("ns.t_dead_letters").scan().to_arrow().to_pylist()
    assert [row["value"] for row in letters] == [b"{broken"] * orders.bad


@pytest.mark.slow
def test_a_query_joins_and_each_sink_gets_its_share(spark, orders, topic, tmp_path):
    names, out, letters = topic(1), topic(1), topic(1)
    producer = Producer({"bootstrap.servers": names.bootstrap, "log_level": 2})
    for who in ("n0", "n1"):
        producer.produce(names.name, json.dumps({"who": who, "name": f"Name {who}"}))
    assert producer.flush(60) == 0
    pipeline = orders.send(500).pipeline(
        Sink(delta="t"),
        Sink(topic=out.name, key="who", sql=f"SELECT id, who, timestamp'{NOON}' AS at FROM result WHERE id < 50"),
        tables={"names": SideTable(topic=names.name, schema="who string, name string")},
        transform=Transform(sql="SELECT source.*, names.name FROM source LEFT JOIN names USING (who)"),
        errors=Errors(topic=letters.name),
    )
    run(pipeline, str(tmp_path), once=True)
    check_exact(orders, tmp_path)
    assert {(row["who"], row["name"]) for row in delta(tmp_path / "t")} == {
        ("n0", "Name n0"), ("n1", "Name n1"), ("n2", None),
    }  # fmt: skip
    sent = spark.read.format("millstream").options(**out.options()).load().collect()
    assert sorted(json.loads(row.value)["id"] for row in sent) == [n for n in range(50) if n % BAD_EVERY]
    assert all(json.loads(row.value)["who"] == row.key.decode() for row in sent)
    assert {json.loads(row.value)["at"] for row in sent} == {f"{NOON.replace(' ', 'T')}Z"}
    dead = spark.read.format("millstream").options(**letters.options(includeHeaders="true")).load().collect()
    assert [row.value for row in dead] == [b"{broken"] * orders.bad
    assert {header.key for header in dead[0].headers} >= {"millstream.error", "millstream.offset"}


def test_a_plan_tells_what_a_run_would_do_and_changes_nothing(spark, orders, tmp_path):
    from millstream.pipeline.explain import analyse
    from millstream.pipeline.plan import Analysed, plan
    from millstream.pipeline.query import register
    from millstream.pipeline.query_names import UNKNOWN, results
    from millstream.pipeline.state import PipelineState

    register(spark)
    sql = "SELECT id, upper(who) AS who, id * 2 AS twice, id > 1 AS more, CAST(id AS decimal(9, 2)) AS d FROM source"
    pipeline = orders.send(1000).pipeline(transform=Transform(sql=sql))
    ((columns, query),) = analyse(spark, pipeline, str(tmp_path))
    assert columns[:2] == [("id", "bigint"), ("who", "string")] and "upper" in query
    (quick,) = results(pipeline)
    certain = [(here, there) for here, there in zip(quick, columns, strict=True) if here[1] != UNKNOWN]
    assert len(certain) == 4 and all(here == there for here, there in certain)
    (planned,) = plan(pipeline, str(tmp_path), PipelineState(str(tmp_path / "state")), [Analysed(quick)], 2)
    assert (planned.offsets, planned.batches, planned.begun, planned.direct) == (1000, 3, False, False)
    assert list(tmp_path.iterdir()) == []
    wrong = msgspec.structs.replace(pipeline, transform=Transform(sql="SELECT id,\n  whom\nFROM source"))
    for found in (lambda: analyse(spark, wrong, str(tmp_path)), lambda: results(wrong)):
        with pytest.raises(QueryProblem, match="whom") as caught:
            found()
        assert (caught.value.path, caught.value.line, caught.value.column) == (("transform", "sql"), 2, 3)


@pytest.mark.slow
def test_a_python_transform_is_called_from_the_files_directory(spark, orders, tmp_path):
    (tmp_path / "shaping.py").write_text("def twice(source):\n    return source.selectExpr('id * 2 AS id')\n")
    run(orders.send(100).pipeline(transform=Transform(python="shaping:twice")), str(tmp_path), once=True)
    assert sorted(row["id"] for row in delta(tmp_path / "t")) == [2 * n for n in range(100) if n % BAD_EVERY]


@pytest.mark.slow
def test_mode_fail_names_the_record_and_mode_drop_counts_it(spark, orders, tmp_path):
    orders.send(100)
    with pytest.raises(SinkFailed, match=r"offset \d+ does not decode: JSON is malformed"):
        run(orders.pipeline(errors=Errors(mode="fail")), str(tmp_path / "fail"), once=True)
    summary = run(orders.pipeline(errors=Errors(mode="drop")), str(tmp_path / "drop"), once=True)
    assert (summary.sinks[0].rows, summary.sinks[0].rejected) == (orders.good, orders.bad)
    assert not (tmp_path / "drop" / "t_dead_letters").exists()


@pytest.mark.slow
def test_a_table_that_is_behind_its_checkpoint_is_refused(spark, orders, tmp_path):
    run(orders.send(100).pipeline(), str(tmp_path), once=True)
    os.rename(tmp_path / "t", tmp_path / "gone")
    with pytest.raises(Rejected, match="made again or set back"):
        run(orders.pipeline(), str(tmp_path), once=True)


@pytest.mark.slow
def test_a_state_directory_of_an_earlier_day_leaves_nothing_out(spark, orders, topic, tmp_path):
    out, state, copy = topic(1), tmp_path / "state", tmp_path / "copy"

    def rounds(pipeline):
        """Two runs, the state directory as it was behind the first one, and another run."""
        run(pipeline, str(tmp_path), once=True)
        shutil.copytree(state, copy)
        orders.send(100)
        run(pipeline, str(tmp_path), once=True)
        shutil.rmtree(state)
        os.rename(copy, state)
        orders.send(100)
        run(pipeline, str(tmp_path), once=True)

    rounds(orders.send(100).pipeline(state="state"))
    check_exact(orders, tmp_path)
    shutil.rmtree(state)
    with pytest.raises(Rejected, match=r"the topic has batch 1, and the checkpoint .* ends before it: it was set back"):
        rounds(orders.pipeline(Sink(topic=out.name), errors=Errors(mode="drop"), state="state"))


@pytest.mark.parametrize(
    "where",
    [pytest.param("before the job", marks=SLOW), pytest.param("after the job", marks=SLOW), "after the commit"],
)
def test_a_batch_that_fails_is_repeated_by_the_next_run(spark, orders, tmp_path, monkeypatch, where):
    orders.send(1000)
    process, write = TableQuery._process, TableQuery._write

    def failing_process(self, frame, number, query):
        if number == 1 and where == "before the job":
            raise OSError("seeded")
        done = process(self, frame, number, query)
        if number == 1 and where == "after the commit":
            raise OSError("seeded")
        return done

    def failing_write(self, frame, number):
        files = write(self, frame, number)
        if number == 1 and where == "after the job":
            raise OSError("seeded")
        return files

    with monkeypatch.context() as patched:
        patched.setattr(TableQuery, "_process", failing_process)
        patched.setattr(TableQuery, "_write", failing_write)
        with pytest.raises(SinkFailed, match="seeded"):
            run(orders.pipeline(), str(tmp_path), once=True)
    source = msgspec.structs.replace(orders.pipeline().source, max_records=200)  # limits may change, the batch may not
    run(orders.pipeline(source=source), str(tmp_path), once=True)
    check_exact(orders, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before the dead letters", "after them"])
def test_rows_and_dead_letters_of_a_topic_sink_are_there_once(spark, orders, topic, tmp_path, monkeypatch, where):
    out, letters = topic(2), topic(1)
    pipeline = orders.send(500).pipeline(Sink(topic=out.name), errors=Errors(topic=letters.name))
    with pytest.raises(QueryProblem, match="not deterministic"):
        wrong = msgspec.structs.replace(pipeline, transform=Transform(sql="SELECT id, rand() AS r FROM source"))
        run(wrong, str(tmp_path / "wrong"), once=True)
    send = topic_query.send_dead_letters

    def failing(*given):
        if where == "after them":
            send(*given)
        raise OSError("seeded")

    with monkeypatch.context() as patched, pytest.raises(SinkFailed, match="seeded"):
        patched.setattr(topic_query, "send_dead_letters", failing)
        run(pipeline, str(tmp_path), once=True)
    summary = run(pipeline, str(tmp_path), once=True).sinks[0]
    assert (summary.total_rows, summary.total_rejected) == (orders.good, orders.bad)
    sent = spark.read.format("millstream").options(**out.options()).load().collect()
    assert sorted(json.loads(row.value)["id"] for row in sent) == [n for n in range(500) if n % BAD_EVERY]
    dead = spark.read.format("millstream").options(**letters.options()).load().collect()
    assert [row.value for row in dead] == [b"{broken"] * orders.bad
    with pytest.raises(Rejected, match="written from another state directory"):
        run(pipeline, str(tmp_path / "another host"), once=True)


@pytest.mark.slow
def test_a_compacted_topic_is_given_no_rows_without_a_key(spark, orders, topic, tmp_path):
    out = topic(1, cleanup_policy="compact")
    pipeline = orders.send(10).pipeline(
        Sink(topic=out.name), transform=Transform(sql="SELECT id, who FROM source"), errors=Errors(mode="drop")
    )
    with pytest.raises(QueryProblem, match="is compacted, so its records need a key"):
        run(pipeline, str(tmp_path), once=True)


@pytest.mark.slow
def test_a_running_pipeline_follows_the_topic_until_it_is_stopped(spark, orders, tmp_path):
    class Counting(NoWatch):
        def __init__(self):
            self.read = 0
            self.more = threading.Event()
            self.phases = []

        def phase(self, what):
            self.phases.append(what)

        def batch(self, sink, done):
            self.read += done.rows + done.rejected
            if self.read == orders.good + orders.bad:
                self.more.set()

    watch = Counting()
    source = Source(topic=orders.topic.name, format="json")  # its columns are inferred
    pipeline = orders.send(100).pipeline(trigger=Trigger(every="100ms"), source=source, metrics="127.0.0.1:0")
    with prepared(pipeline, str(tmp_path), watch=watch) as running:
        with pytest.raises(Exception, match="running already"):
            run(pipeline, str(tmp_path), once=True)
        thread = threading.Thread(target=running.run, args=(False,))
        thread.start()
        assert watch.more.wait(60)
        watch.more.clear()
        orders.send(50)
        assert watch.more.wait(60)
        url = next(phase for phase in watch.phases if phase.startswith("metrics at ")).split()[-1]
        with urllib.request.urlopen(url, timeout=60) as answer:
            figures = answer.read().decode()
        assert f'rows_total{{pipeline="p",sink="delta-t"}} {orders.good}\n' in figures
        assert 'offsets_left{pipeline="p",sink="delta-t"} 0\n' in figures
        running.stop()
        thread.join(60)
        assert not thread.is_alive()
    check_exact(orders, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_on_schemas_says_what_a_table_gets_when_they_change(spark, topic, tmp_path, registry_of):
    pytest.importorskip("fastavro")
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    orders = topic(2)
    registry = registry_of(orders.http)
    producer = Producer({"bootstrap.servers": orders.bootstrap, "log_level": 2})

    def send(text, rows, subject=orders.name):
        serialize, context = AvroSerializer(registry, text), SerializationContext(subject, MessageField.VALUE)
        for row in rows:
            producer.produce(orders.name, serialize(row, context), str(row["id"]))
        assert producer.flush(60) == 0

    page = (Path(__file__).parents[2] / "docs" / "schema-changes.md").read_text()
    files = dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)\nEND$", page, re.DOTALL | re.MULTILINE))
    one, two = files["v1.avsc"], files["v2.avsc"]
    declared = yaml.safe_load(files["payments.yaml"])
    declared["source"] |= {"topic": orders.name, "registry": orders.http}
    declared |= {"brokers": orders.bootstrap, "sinks": [{"delta": "t"}]}
    pipeline = msgspec.convert(declared, Pipeline)
    send(one, [{"id": number, "note": "n"} for number in range(20)])
    producer.produce(orders.name, b"junk")
    stranger = json.dumps({"type": "record", "name": "Stranger", "fields": [{"name": "id", "type": "string"}]})
    with prepared(pipeline, str(tmp_path)) as running:
        send(two, [{"id": number, "amount": 0.5} for number in range(20, 40)])
        send(one, [{"id": 40, "note": "late"}])
        send(stranger, [{"id": "x"}], subject=f"not-{orders.name}")
        done = running.run(once=True).sinks[0]
    assert (done.rows, done.rejected) == (41, 2)
    rows = {row["id"]: (row["note"], row["amount"]) for row in delta(tmp_path / "t")}
    assert rows == {number: ("n", None) if number < 20 else (None, 0.5) for number in range(40)} | {40: ("late", None)}
    assert len(delta(tmp_path / "t")) == 41
    reasons = sorted(row["error"] for row in delta(tmp_path / "t_dead_letters"))
    assert f"is of subject not-{orders.name}-value" in reasons[0]
    assert "begins with 6a 75 6e 6b" in reasons[1]


@pytest.mark.slow
def test_a_topic_of_four_versions_is_one_table_though_one_was_deleted_and_a_stranger_writes_too(
    spark, topic, tmp_path, registry_of
):
    pytest.importorskip("fastavro")
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    orders = topic(2)
    registry = registry_of(orders.http)
    producer = Producer({"bootstrap.servers": orders.bootstrap, "log_level": 2})

    def send(subject, start, count, **columns):
        fields = [{"name": "id", "type": "long"}]
        fields += [{"name": name, "type": ["null", kind], "default": None} for name, (kind, _) in columns.items()]
        text = json.dumps({"type": "record", "name": subject.replace("-", "_"), "fields": fields})
        serialize, context = AvroSerializer(registry, text), SerializationContext(subject, MessageField.VALUE)
        for number in range(start, start + count):
            row = {"id": number} | {name: value for name, (_, value) in columns.items()}
            producer.produce(orders.name, serialize(row, context), str(number))
        assert producer.flush(60) == 0

    send(orders.name, 0, 30, note=("string", "n"))
    send(orders.name, 30, 30, note=("string", "n"), price=("double", 0.5))
    send(orders.name, 60, 30, price=("double", 1.5), extra=("string", "x"))
    send(f"not-{orders.name}", 1000, 7, price=("double", 9.0))
    send(orders.name, 90, 30, price=("double", 2.5), city=("string", "c"))
    registry.delete_version(f"{orders.name}-value", 3)
    source = Source(topic=orders.name, format="avro", registry=orders.http, max_records=25)
    pipeline = Pipeline(pipeline="p", brokers=orders.bootstrap, source=source, sinks=[Sink(delta="t")])
    (done,) = run(pipeline, str(tmp_path), once=True).sinks
    assert (done.rows, done.rejected) == (120, 7)
    rows = {row["id"]: (row["price"], row["city"]) for row in delta(tmp_path / "t")}
    prices = [None] * 30 + [0.5] * 30 + [1.5] * 30 + [2.5] * 30
    assert rows == {number: (price, "c" if number >= 90 else None) for number, price in enumerate(prices)}
    letters = delta(tmp_path / "t_dead_letters")
    assert len(letters) == 7
    assert all(f"is of subject not-{orders.name}-value" in letter["error"] for letter in letters)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_anywhere_loses_nothing_and_repeats_nothing(orders, tmp_path):
    """``MILLSTREAM_KILLS`` runs are killed at moments spread over a run; the table is exact in the end."""
    orders.send(12_000)
    run_killed(orders.pipeline(spark=BRIEF_DRIVER), tmp_path)
    check_exact(orders, tmp_path)
