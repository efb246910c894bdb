"""What a pipeline leaves behind is everybody's: DuckDB, polars and pyarrow read its tables,
and a cluster of workers and Spark's declarative pipelines run the same declaration.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyspark
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from waits import Patience, moment

pytest.importorskip("deltalake")

from spark_support import BAD_EVERY, BRIEF, check_exact

from millstream.errors import Rejected
from millstream.pipeline.model import Pipeline, SideTable, Sink, Source, Transform
from millstream.pipeline.runner import run
from millstream.spark.java import find_java_home

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

MANY = pytest.mark.skipif(
    int(os.environ.get("MILLSTREAM_KILLS", "30")) <= 6, reason="for MILLSTREAM_KILLS of more than 6"
)
BIN = Path(sys.executable).parent


def good(orders):
    return [number for number in range(orders.good + orders.bad) if number % BAD_EVERY]


def test_duckdb_polars_and_pyarrow_read_all_three_kinds_of_table(spark, orders, tmp_path, monkeypatch):
    import deltalake
    import duckdb
    import polars as pl
    import pyarrow.dataset as ds
    from pyiceberg.catalog import load_catalog

    sinks = [Sink(delta="t"), Sink(iceberg="ns.t"), Sink(parquet="plain", sql="SELECT id, who FROM result")]
    run(orders.send(1000).pipeline(*sinks), str(tmp_path), once=True)
    place = tmp_path / ".millstream" / "iceberg"
    names = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}
    iceberg, delta = load_catalog("millstream", **names).load_table("ns.t"), deltalake.DeltaTable(str(tmp_path / "t"))
    wanted, plain = good(orders), f"{tmp_path}/plain"

    files = [uri.removeprefix("file://") for uri in delta.file_uris()]
    query = "SELECT list(id ORDER BY id), count(DISTINCT who) FROM"
    with duckdb.connect() as db:
        assert db.execute(f"{query} read_parquet(?)", [files]).fetchall() == [(wanted, 3)]
        assert db.execute(f"{query} read_parquet('{plain}/*/*.parquet')").fetchall() == [(wanted, 3)]
    with iceberg.scan().to_duckdb("rows") as db:
        assert db.execute(f"{query} rows").fetchall() == [(wanted, 3)]
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    for frame in (
        pl.read_delta(str(tmp_path / "t")),
        pl.scan_iceberg(iceberg).collect(),
        pl.read_parquet(f"{plain}/**/*.parquet"),
    ):
        assert sorted(frame["id"].to_list()) == wanted
        assert frame["who"].n_unique() == 3
    for table in (
        delta.to_pyarrow_dataset().to_table(),
        iceberg.scan().to_arrow(),
        ds.dataset(plain, partitioning="hive").to_table(),
    ):
        assert sorted(table["id"].to_pylist()) == wanted


def write_file(orders, place, **more):
    document = msgspec.to_builtins(orders.pipeline(**more))
    (place / "p.yaml").write_text(json.dumps(document))
    return str(place / "p.yaml")


def pipeline_command(*arguments):
    return [sys.executable, "-m", "millstream.cli", "pipeline", *arguments]


@pytest.fixture
def standalone(tmp_path):
    """A Spark cluster of a master and two workers on this machine; the master's address."""
    home = Path(pyspark.__file__).parent
    env = {
        **os.environ,
        "JAVA_HOME": find_java_home(),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }
    started = []

    def start(name, *arguments):
        log = tmp_path / f"{name}.log"
        kind = name.partition("-")[0]
        main = f"org.apache.spark.deploy.{kind}.{kind.title()}"
        with log.open("w") as file:
            command = [str(home / "bin" / "spark-class"), main, *arguments]
            started.append(subprocess.Popen(command, env=env, stdout=file, stderr=file))
        return log

    def said(log, words):
        patience = Patience(600)
        while True:
            line = next((line for line in log.read_text().splitlines() if words in line), None)
            if line is not None:
                return line
            patience.check(log.read_text()[-2000:])
            moment(0.2)

    try:
        log = start("master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        address = said(log, "Starting Spark master at").split()[-1]
        for number in (1, 2):
            options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            said(start(f"worker-{number}", *options, address), "Successfully registered with master")
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait(60)


@MANY
def test_a_standalone_cluster_of_two_workers_runs_the_same_file(orders, standalone, tmp_path):
    conf = {
        "spark.master": standalone,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": BRIEF,
        "spark.driver.host": "127.0.0.1",
    }
    file = write_file(orders.send(3000), tmp_path, spark=conf)
    done = subprocess.run(pipeline_command("run", "--once", "--json", file), check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["sinks"][0]["rows"] == orders.good
    check_exact(orders, tmp_path)
    assert len(list((tmp_path / "work").glob("app-*/*/stderr"))) >= 2, "an executor on each worker"


def ids_of(topic):
    """Ids of the records of a topic with one partition."""
    options = {"bootstrap.servers": topic.bootstrap, "group.id": "g", "enable.partition.eof": True, "log_level": 2}
    found = []
    with Consumer(options) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        while (record := consumer.poll(120)) is not None and record.error() is None:
            found.append(json.loads(record.value())["id"])
    return sorted(found)


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        ([Sink(delta="t", name="records")], "another records"),
        ([Sink(delta="a/b"), Sink(delta="a.b")], "another"),
        ([Sink(delta="t", name="7")], "cannot be called 7"),
    ],
)
def test_an_export_refuses_names_that_are_no_datasets(spark, tmp_path, sinks, words):
    from millstream.pipeline.sdp import export

    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=sinks)
    with pytest.raises(Rejected, match=words):
        export(spark, pipeline, str(tmp_path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@MANY
def test_declarative_pipelines_of_spark_run_what_was_exported(orders, topic, tmp_path):
    import pyarrow.dataset as ds

    out, names = topic(1), topic(1)
    producer = Producer({"bootstrap.servers": names.bootstrap, "log_level": 2})
    for who in ("n0", "n1", "n2"):
        producer.produce(names.name, json.dumps({"who": who, "name": f"Name {who}"}))
    assert producer.flush(60) == 0
    query = "SELECT id, source.who, names.name, _offset FROM source LEFT JOIN names ON names.who = source.who"
    file = write_file(
        orders.send(1000),
        tmp_path,
        sinks=[
            Sink(delta="t", name="t"),
            Sink(topic=out.name, key="who", name="out", sql="WITH few AS (SELECT * FROM result) SELECT * FROM few"),
        ],
        tables={"names": SideTable(topic=names.name, schema="who string, name string")},
        transform=Transform(sql=query),
    )
    target = tmp_path / "exported"
    subprocess.run(pipeline_command("export", "--sdp", str(target), file), check=True)
    again = subprocess.run(pipeline_command("export", "--sdp", str(target), file), capture_output=True, check=False)
    assert (again.returncode, b"is there already" in again.stderr) == (1, True)
    command = [str(BIN / "spark-pipelines"), "run", "--conf", "spark.sql.catalogImplementation=hive"]
    command += ["--conf", f"spark.driver.extraJavaOptions={BRIEF}"]
    env = {**os.environ, "JAVA_HOME": find_java_home(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    env["PATH"] = f"{BIN}:{env['PATH']}"
    for _ in range(2):
        done = subprocess.run(command, cwd=target, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
        rows = ds.dataset(target / "spark-warehouse" / "t").to_table().to_pylist()
        assert sorted(row["id"] for row in rows) == good(orders)
        assert {row["name"] for row in rows} == {"Name n0", "Name n1", "Name n2"}
        letters = ds.dataset(target / "spark-warehouse" / "dead_letters").to_table().to_pylist()
        assert [row["value"] for row in letters] == [b"{broken"] * orders.bad
        assert ids_of(out) == good(orders)
        orders.send(100)
