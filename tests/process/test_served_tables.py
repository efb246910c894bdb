"""Topics that are tables, on a real broker and without Spark: who runs which, and what is said of it.

What a run does with records is tested on Spark (``tests/spark/test_served_tables_runs.py``). Here a run is an object
that commits what there is at once.
"""

import contextlib
import json
import os
import threading
import urllib.request
import uuid
from typing import ClassVar

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from waits import PATIENCE_S, until

pytest.importorskip("deltalake")

from millstream.cli.application import application
from millstream.client import LATEST, Cluster
from millstream.errors import Rejected
from millstream.pipeline.serving import table_runner
from millstream.pipeline.serving.claim import Claim, ClaimLost
from millstream.pipeline.serving.server import Options, Server
from millstream.pipeline.serving.topics import find_tables
from millstream.pipeline.sink_figures import BatchDone, SinkFigures
from millstream.pipeline.source_position import SourcePosition

pytestmark = pytest.mark.process


class Topic:
    made: ClassVar = []

    def __init__(self, broker):
        self.made.append(self)
        self.broker, self.name = broker, f"orders-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        self.create()

    def create(self):
        self.admin.create_topics([NewTopic(self.name, 1)])[self.name].result(PATIENCE_S)
        return self

    def delete(self):
        self.admin.delete_topics([self.name])[self.name].result(PATIENCE_S)

    def alter(self, **values):
        entries = [
            ConfigEntry(f"table.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        return self

    def send(self, count):
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})
        for number in range(count):
            producer.produce(self.name, json.dumps({"id": number}))
        assert producer.flush(PATIENCE_S) == 0
        return self

    def runs(self):
        return [run for run in FakeRun.working if run.pipeline.source.topic == self.name]

    def status(self):
        with urllib.request.urlopen(f"{self.broker.http}/v1/pipelines", timeout=PATIENCE_S) as answer:
            found = [one for one in json.load(answer)["pipelines"] if one["topic"] == self.name]
        return found[0] if found else {}

    def wait(self, **wanted):
        def reached():
            status = self.status()
            return status if {name: status.get(name) for name in wanted} == wanted else None

        return until(reached, lambda: f"{self.status()} is not {wanted}", every_s=0.1)

    def describe(self):
        done = CliRunner().invoke(application, ["topic", "describe", self.name, "--bootstrap", self.broker.bootstrap])
        assert done.exit_code == 0, done.output
        return done.output


class Sink:
    def __init__(self, topic):
        self.topic, self.name = topic, "topic-delta-t"
        self.figures, self.position = SinkFigures(), SourcePosition(None)


class FakeRun:
    """Commits what the topic has, and waits until it is told to stop. ``refused`` has a reason by topic."""

    working: ClassVar = []
    refused: ClassVar = {}

    def __init__(self, pipeline, directory, state, watch, *, replay, session):
        self.pipeline, self.watch, self.replay = pipeline, watch, replay
        self.sinks = []
        self.stopped = threading.Event()

    def run(self, once, *, catch_up):
        topic = self.pipeline.source.topic
        if topic in self.refused and not self.replay:
            raise Rejected(self.refused[topic])
        sink = Sink(topic)
        self.sinks.append(sink)
        self.watch.begin(self.sinks)
        self.working.append(self)
        try:
            with Cluster(self.pipeline.brokers) as cluster:
                while not self.stopped.is_set():
                    end = cluster.list_offsets({(topic, 0): LATEST})[topic, 0].offset
                    if end > sink.position.ends.get(topic, {}).get("0", 0):
                        sink.position.ends, sink.figures.total_rows = {topic: {"0": end}}, end
                        done = BatchDone(
                            number=0, read=0, rows=end, rejected=0, seconds=0, repeated=False, version=str(end)
                        )
                        self.watch.batch(sink, done)
                    self.watch.tick()
                    self.stopped.wait(0.05)
        finally:
            self.working.remove(self)

    def stop(self):
        self.stopped.set()


@pytest.fixture(autouse=True)
def no_topic_is_left():
    """Servers serve whatever topics there are, and the broker outlives a test."""
    yield
    while Topic.made:
        with contextlib.suppress(KafkaException):
            Topic.made.pop().delete()


@pytest.fixture
def serving(broker, tmp_path, monkeypatch):
    """Starts servers; ends them."""
    monkeypatch.setattr(table_runner, "Run", FakeRun)
    monkeypatch.setattr(table_runner, "prepared_run", lambda run, state: contextlib.nullcontext())
    monkeypatch.setattr(FakeRun, "refused", {})
    started = []

    def start(name="here", **more):
        options = Options(
            brokers=broker.bootstrap, directory=str(tmp_path / name), registry="http://127.0.0.1:1", **more
        )
        server = Server(options, session=lambda pipeline: None)
        thread = threading.Thread(target=server.run)
        thread.start()
        started.append((server, thread))
        return server, thread

    yield start
    for server, thread in started:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def stop(server, thread):
    server.stop()
    thread.join(PATIENCE_S)


def test_a_topic_is_served_from_the_moment_that_its_properties_say_so(broker, serving):
    topic = Topic(broker).send(3)
    topic.alter(mode="append", sink="delta:t", format="string")
    assert "no 'millstream pipeline serve' runs" in topic.describe()
    serving()
    status = topic.wait(state="running", rows=3, lag=0, served=True)
    assert (status["sink"], status["offsets"], status["format"], status["made"]) == (
        "delta:t",
        {"0": 3},
        "string",
        True,
    )
    assert "3 rows" in topic.describe() and "running, by host" in topic.describe()
    with urllib.request.urlopen(broker.http, timeout=PATIENCE_S) as page:
        assert f"<td>{topic.name}</td><td>delta:t</td><td>3</td>" in page.read().decode()
    topic.send(2).wait(rows=5, lag=0)
    topic.alter(mode="off")
    topic.wait(state="off")
    topic.send(1).alter(mode="append")
    topic.wait(state="running", rows=6)


def test_properties_that_change_are_followed_by_another_run(broker, serving):
    topic = Topic(broker).send(1).alter(mode="append", sink="delta:t", format="string")
    serving()
    topic.wait(state="running", rows=1)
    (before,) = topic.runs()
    topic.alter(on_error="drop", target_lag_ms="4000")
    until(lambda: topic.runs() not in ([], [before]))
    (after,) = topic.runs()
    assert (after.pipeline.errors.mode, after.pipeline.trigger.every) == ("drop", "2000ms")


def test_one_of_two_servers_runs_a_topic_and_the_other_takes_over(broker, serving):
    topic = Topic(broker).send(1).alter(mode="append", sink="delta:t", format="string")
    first = serving("one")
    topic.wait(state="running", rows=1)
    serving("two")
    topic.send(1).wait(rows=2)
    assert len(topic.runs()) == 1
    stop(*first)
    assert topic.runs() == []
    topic.send(1).wait(rows=3, lag=0)
    assert len(topic.runs()) == 1


def test_a_claim_whose_instance_is_taken_by_another_process_is_lost_and_says_so(broker, serving):
    topic = Topic(broker).send(1).alter(mode="append", sink="delta:t", format="string")
    server, thread = serving()
    topic.wait(state="running", rows=1)
    stop(server, thread)
    claims = [Claim(broker.bootstrap, topic.name, "same") for _ in range(2)]

    def polled():
        for claim in claims:
            claim.poll(0.1)

    try:
        with pytest.raises(ClaimLost, match="refuses this process"):
            until(polled)
        assert not all(claim.held for claim in claims)
    finally:
        for claim in claims:
            claim.close()


def test_a_second_server_in_one_directory_is_refused(broker, serving, tmp_path):
    serving()
    until(lambda: os.path.exists(tmp_path / "here" / ".millstream" / "serve" / "lock"))
    second = Server(Options(brokers=broker.bootstrap, directory=str(tmp_path / "here")), session=lambda pipeline: None)
    with pytest.raises(Exception, match="running already"):
        second.run()


def test_what_fails_is_said_and_tried_again_and_other_topics_go_on(broker, serving):
    bad, good = Topic(broker).send(1), Topic(broker).send(1)
    FakeRun.refused[bad.name] = "topic was deleted and made again"
    for topic in (bad, good):
        topic.alter(mode="append", sink=f"delta:{topic.name}", format="string")
    first = serving()
    good.wait(state="running", rows=1)
    bad.wait(state="failed", reason="topic was deleted and made again")
    assert "failed: topic was deleted and made again" in bad.describe()
    FakeRun.refused.clear()
    bad.wait(state="running", reason="", rows=1)
    FakeRun.refused[bad.name] = "topic was deleted and made again"
    stop(*first)
    serving(replay=frozenset({bad.name}))
    bad.send(1).wait(state="running", rows=2)


def test_the_table_outlives_its_topic_unless_it_is_to_go_with_it(broker, serving, tmp_path):
    import deltalake
    import pyarrow as pa

    kept, gone, foreign = (Topic(broker).send(1) for _ in range(3))
    place = tmp_path / "here"
    rows = pa.table({"id": [1]})
    deltalake.write_deltalake(str(place / foreign.name), rows)
    for topic in (kept, gone, foreign):
        topic.alter(mode="append", sink=f"delta:{topic.name}", format="string")
    for topic in (gone, foreign):
        topic.alter(delete_with_topic="true")
    serving()
    for topic in (kept, gone, foreign):
        topic.wait(state="running", rows=1)
        deltalake.write_deltalake(str(place / topic.name), rows, mode="append")
    for topic in (kept, gone, foreign):
        topic.delete()
    assert "kept" in kept.wait(state="orphaned")["reason"]
    assert "was there before" in foreign.wait(state="orphaned")["reason"]
    until(lambda: not gone.status())
    assert (place / kept.name).exists() and (place / foreign.name).exists() and not (place / gone.name).exists()


def test_the_format_is_taken_from_the_first_records_once(broker, serving):
    topic = Topic(broker).alter(mode="append", sink="delta:t")
    first, _ = serving()
    first.reach.registry = None
    empty = f"topic {topic.name} has no records yet, and its first ones decide what columns the table has"
    topic.wait(state="failed", reason=empty)
    topic.send(2)
    status = topic.wait(state="running", rows=2)
    assert (status["format"], status["schema"]) == ("json", {"id": "bigint"})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "append"}, "table.mode: append needs table.sink"),
        ({"mode": "merge", "sink": "delta:t"}, "expected off, append, upsert or changelog"),
        ({"mode": "upsert", "sink": "delta:t", "key": ""}, "upsert needs table.key"),
        ({"partition_by": "day(_timestamp"}, "expected distinct columns"),
        ({"sink": "orders"}, "expected iceberg:NAMESPACE.TABLE or delta:PATH"),
        ({"target_lag_ms": "10"}, "at least 1000"),
    ],
)
def test_properties_that_cannot_be_are_refused_in_words(broker, values, said):
    topic = Topic(broker)
    with pytest.raises(KafkaException) as caught:
        topic.alter(**values)
    assert said in caught.value.args[0].str()
    with Cluster(broker.bootstrap) as cluster:
        assert topic.name not in find_tables(cluster)[0]


def test_an_event_topic_is_no_table(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    name = f"events-{uuid.uuid4().hex[:8]}"
    config = {"topic.kind": "events", "table.mode": "append", "table.sink": "delta:t"}
    with pytest.raises(KafkaException, match="an event topic cannot be a table"):
        admin.create_topics([NewTopic(name, 1, config=config)])[name].result(PATIENCE_S)
