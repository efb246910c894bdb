"""``millstream pipeline serve`` on Spark: a topic's table is exact, whatever is killed, and stays with its topic."""

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

pytest.importorskip("deltalake")

from class_archive import BRIEF
from spark_support import check_exact, delta

from waits import PATIENCE_S, moment, until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


class Served:
    """``pipeline serve`` for one topic, as a process that can be killed."""

    def __init__(self, topic, place):
        self.topic, self.place = topic, place
        self.admin = AdminClient({"bootstrap.servers": topic.bootstrap, "log_level": 2})
        self.process = None

    def start(self, *more):
        command = [sys.executable, "-m", "millstream.cli", "pipeline", "serve", "--bootstrap", self.topic.bootstrap]
        given = ["--directory", str(self.place), "--spark", "spark.master=local[2]", *more]
        given += ["--spark", f"spark.driver.extraJavaOptions={BRIEF}"]
        with open(self.place / "serve.log", "ab") as log:
            self.process = subprocess.Popen(command + given, start_new_session=True, stdout=log, stderr=log)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(PATIENCE_S) == 0

    def declare(self):
        values = {"mode": "append", "sink": "delta:t", "target.lag.ms": "1000"}
        entries = [
            ConfigEntry(f"table.{name}", value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.topic.name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def status(self):
        with urllib.request.urlopen(f"{self.topic.http}/v1/pipelines", timeout=PATIENCE_S) as answer:
            found = [one for one in json.load(answer)["pipelines"] if one["topic"] == self.topic.name]
        return found[0] if found else {}

    def wait(self, what):
        def reached():
            status = self.status()
            return status if what(status) else None

        def said():
            return f"{self.status()}\n{(self.place / 'serve.log').read_text()[-3000:]}"

        return until(reached, said, every_s=0.2)


@pytest.fixture
def served(orders, tmp_path):
    found = Served(orders.topic, tmp_path)
    yield found
    found.stop()


def test_a_served_table_is_exact_through_kills_and_keeps_to_its_topic(orders, served):
    served.declare()
    pauses = random.Random(7)
    for turn in range(2):
        orders.send(200)
        served.start()
        before = orders.good * turn / (turn + 1)
        served.wait(lambda status, least=before: status.get("rows", 0) > least)
        orders.send(100)
        moment(pauses.random() * 2)  # into whatever the next batch is doing
        served.kill()
    served.start()
    total = orders.good
    served.wait(lambda status: (status["rows"], status["rejected"]) == (total, orders.bad))
    check_exact(orders, served.place)

    served.admin.delete_topics([served.topic.name])[served.topic.name].result(PATIENCE_S)
    assert "table was kept" in served.wait(lambda status: status.get("state") == "orphaned")["reason"]
    served.admin.create_topics([NewTopic(served.topic.name, 1)])[served.topic.name].result(PATIENCE_S)
    orders.good = orders.bad = 0
    orders.send(50)
    served.declare()
    refused = served.wait(lambda status: status.get("state") == "failed")["reason"]
    assert "was deleted and made again" in refused and "--replay" in refused
    assert len(delta(served.place / "t")) == total
    served.stop()
    served.start("--replay", served.topic.name)
    served.wait(lambda status: status.get("state") == "running" and status["rows"] == total + orders.good)
    assert len(delta(served.place / "t")) == total + orders.good
