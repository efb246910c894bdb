"""One Spark session and one broker for all these tests; starting them costs more than any test."""

import json
import os
import urllib.request
import uuid

import pytest
from class_archive import java_options
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from spark_support import BAD_EVERY, BRIEF, SMALL_SEGMENTS

from waits import until

pytest.importorskip("pyspark")


@pytest.fixture(scope="session", autouse=True)
def brief_machines():
    """Every virtual machine lives for minutes: those of drivers and jobs that are processes of their own, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {java_options()}".strip())
        yield


@pytest.fixture(scope="session")
def spark(brief_machines, tmp_path_factory):
    from millstream import spark as ms

    place = tmp_path_factory.mktemp("spark")
    session = ms.session(
        "millstream-tests",
        cores=2,
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": BRIEF,
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place / "local"),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class TopicOnBroker:
    """A topic of its own for one test."""

    def __init__(self, broker, partitions, **config):
        self.bootstrap = broker.bootstrap
        self.http = broker.http
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self.sent = []
        new = NewTopic(
            self.name, partitions, config={key.replace("_", "."): str(value) for key, value in config.items()}
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        admin.create_topics([new])[self.name].result(60)

    def produce(self, count, *, value_bytes=100, partition=None, headers=None):
        """Send ``count`` records, each different; returns when all are acknowledged."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "batch.num.messages": 50, "log_level": 2}
        )
        first = len(self.sent)
        for number in range(first, first + count):
            value = f"{number}:".encode().ljust(value_bytes, b"x")
            place = {} if partition is None else {"partition": partition}
            producer.produce(self.name, value, f"key-{number % 97}", headers=headers, **place)
            self.sent.append(value)
            producer.poll(0)
        assert producer.flush(60) == 0
        return self

    def sealed_segments(self):
        with urllib.request.urlopen(f"{self.http}/v1/topics/{self.name}/segments", timeout=60) as answer:
            return sum(len(partition["segments"]) for partition in json.load(answer)["partitions"])

    def wait_for_sealed_segments(self, count):
        """The broker writes segments behind; on a busy machine that takes a while."""
        until(
            lambda: self.sealed_segments() >= count,
            lambda: f"{self.sealed_segments()} segments were sealed, not {count}",
        )

    def options(self, **more):
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **more}


@pytest.fixture
def topic(broker):
    def make(partitions=2, **config):
        return TopicOnBroker(broker, partitions, **config)

    return make


@pytest.fixture
def orders(topic):
    """A topic with records of which every 25th is broken; ``send`` adds some."""

    from millstream.pipeline.model import Pipeline, Sink, Source

    class Orders:
        def __init__(self):
            self.topic = topic(2, segment_bytes=SMALL_SEGMENTS)
            self.good, self.bad = 0, 0

        def send(self, count):
            producer = Producer({"bootstrap.servers": self.topic.bootstrap, "linger.ms": 5, "log_level": 2})
            for number in range(self.good + self.bad, self.good + self.bad + count):
                broken = number % BAD_EVERY == 0
                value = b"{broken" if broken else json.dumps({"id": number, "who": f"n{number % 3}"}).encode()
                self.bad, self.good = self.bad + broken, self.good + (not broken)
                producer.produce(self.topic.name, value, str(number))
                producer.poll(0)
            assert producer.flush(60) == 0
            return self

        def pipeline(self, *sinks, **more):
            source = Source(
                topic=self.topic.name, format="json", schema="id bigint not null, who string", max_records=400
            )
            sinks = list(sinks) or [Sink(delta="t")]
            named = {"pipeline": "p", "brokers": self.topic.bootstrap, "source": source, "sinks": sinks}
            return Pipeline(**{**named, **more})

    return Orders()
