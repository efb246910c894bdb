"""``job scrub`` of a shared topic: nothing to find while it is written to and joined, and then a flipped bit."""

import json
import os
import subprocess
import sys
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)]

SETTINGS = {
    "log.retention.check.interval.ms": 500,
    "checkpoint.ms": 500,
    "shared.upload.interval.ms": 300,
    "shared.join.interval.ms": 1500,
}


class Load(threading.Thread):
    """A producer for two partitions, until `end`."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20, "linger.ms": 2})
        self.sent, self.ended = 0, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.01):
            self.producer.produce("t", b"%d:" % self.sent + b"x" * 500, partition=self.sent % 2)
            self.producer.poll(0)
            self.sent += 1

    def end(self):
        self.ended.set()
        self.join()
        assert self.producer.flush(60) == 0


def scrub(broker, where, code):
    command = [sys.executable, "-m", "millstream.cli", "job", "scrub", "t", "--json", "--bootstrap", broker.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=where)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_scrub_finds_nothing_under_load_and_then_a_flipped_bit(broker_factory, tmp_path):
    bucket = tmp_path / "bucket"
    broker = broker_factory(settings={**SETTINGS, "objects.url": f"file://{bucket}"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"storage.mode": "shared", "retention.ms": "-1", "file.delete.delay.ms": "500"}
    admin.create_topics([NewTopic("t", 2, config=config)])["t"].result(60)
    load = Load(broker.bootstrap)
    until(lambda: list(bucket.rglob("*.segment")), "nothing is joined")
    before = load.sent
    sound = scrub(broker, tmp_path, 0)
    load.end()
    assert load.sent > before + 100, "there was no load"
    assert not sound["findings"]
    assert sound["objects"] >= 2

    until(lambda: not any(files for _, _, files in os.walk(bucket / "shared")), "not all is joined")
    (damaged,) = sorted(bucket.rglob("*.segment"), key=lambda one: one.stat().st_mtime)[-1:]
    with damaged.open("r+b") as file:
        file.seek(200)
        (byte,) = file.read(1)
        file.seek(200)
        file.write(bytes([byte ^ 4]))
    broken = scrub(broker, tmp_path, 1)
    assert any(damaged.name in one["place"] for one in broken["findings"]), broken
