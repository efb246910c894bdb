"""One Spark session and one broker for all these tests; starting them costs more than any test."""

import json
import urllib.request
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from spark_support import BRIEF

pytest.importorskip("pyspark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
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
        admin.create_topics([new])[self.name].result(30)

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
        assert producer.flush(30) == 0
        return self

    def sealed_segments(self):
        with urllib.request.urlopen(f"{self.http}/v1/topics/{self.name}/segments", timeout=10) as answer:
            return sum(len(partition["segments"]) for partition in json.load(answer)["partitions"])

    def options(self, **more):
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **more}


@pytest.fixture
def topic(broker):
    def make(partitions=2, **config):
        return TopicOnBroker(broker, partitions, **config)

    return make
