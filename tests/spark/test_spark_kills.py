"""Topic to topic through kills: the output is the input, each record once, and those of a key in their order.

What dies: Python workers of Spark, executors, the driver (at a random moment, when rows of a batch arrive, when the
plan of its commits is stored), brokers. ``MILLSTREAM_KILLS`` says how often, ``MILLSTREAM_SEED`` when. The driver's
limits differ at each start.
The judge is a stock consumer with ``read_committed``. It finds a sink that writes at least once.
"""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client import Cluster
from millstream.client.coordinators import Coordinators
from millstream.client.transactional import marked_offset
from millstream.errors import MillstreamError
from millstream.testing import Broker, cluster
from waits import Patience, moment

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "30"))
SEED = int(os.environ.get("MILLSTREAM_SEED", "7"))
MANY = pytest.mark.skipif(KILLS < 10, reason="for MILLSTREAM_KILLS of 10 or more")
PARTITIONS = 3
KEYS = 50
KINDS = ("rows", "worker", "plan", "worker", "other", "worker", "random", "worker")
EXECUTOR_KINDS = ("executor", "plan", "executor", "rows", "executor", "worker")
QUIET = {"log_level": 0}
SOURCE, TARGET = "copied-from", "copied-to"
SHORT_S = 150


class Copy:
    """The query, its topics, and how to kill what takes part."""

    def __init__(self, bootstrap, place, *, replicas=1, master="local[2,8]", **sink):
        self.bootstrap = bootstrap
        self.place = place
        self.master = master
        self.sink = sink
        self.sent = 0
        self.driver = None
        self.random = random.Random(SEED)
        self.killed = collections.Counter()
        admin = AdminClient({"bootstrap.servers": bootstrap} | QUIET)
        for done in admin.create_topics([NewTopic(name, PARTITIONS, replicas) for name in (SOURCE, TARGET)]).values():
            done.result(60)

    def send(self, count):
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True} | QUIET)
        for number in range(self.sent, self.sent + count):
            producer.produce(SOURCE, f"{number}".ljust(200), f"key-{number % KEYS}")
            producer.poll(0)
        assert producer.flush(120) == 0
        self.sent += count

    def start(self, *, once=False):
        given = {
            "bootstrap": self.bootstrap,
            "source": SOURCE,
            "target": TARGET,
            "place": str(self.place),
            "master": self.master,
            "limit": self.random.choice((60, 100, 150)),
            "sink": self.sink,
            "once": once,
        }
        command = [sys.executable, str(Path(__file__).with_name("once_driver.py")), json.dumps(given)]
        with open(self.place / "driver.log", "ab") as log:
            self.driver = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)

    def batches(self, kind):
        """Numbers of the batches that Spark has begun (``offsets``) or ended (``commits``)."""
        place = self.place / "checkpoint" / kind
        return max((int(path.name) for path in place.glob("[0-9]*")), default=-1) if place.is_dir() else -1

    def wait(self, happened):
        """Whether something happens while the driver lives."""
        limit = time.monotonic() + SHORT_S
        while time.monotonic() < limit:
            if happened():
                return True
            if self.driver.poll() is not None:
                return False
            moment(0.003)
        return False

    def kill_driver(self, what):
        """Kill everything of Spark's when a batch is at a certain step."""
        begun = self.batches("commits")
        if not self.wait(lambda: self.batches("offsets") > begun):
            return
        try:
            with Cluster(self.bootstrap, timeout_s=5) as client:
                if what == "rows":
                    before = self.end(client)
                    self.wait(lambda: self.end(client) != before)
                elif what == "plan":
                    query = json.loads((self.place / "checkpoint" / "metadata").read_text())["id"]
                    coordinators, group = Coordinators(client), f"millstream-{query}"
                    before = marked_offset(coordinators, group)
                    self.wait(lambda: marked_offset(coordinators, group) != before)
                    moment(self.random.uniform(0, 0.03))
                else:
                    moment(self.random.uniform(0, 0.5))
        except MillstreamError:
            pass  # the broker that was asked had just been killed, too: any moment will do
        if self.driver.poll() is None:
            self.killed[f"driver, {what}"] += 1
        self.end_driver()

    def end(self, client):
        offsets = client.list_offsets({(TARGET, partition): -1 for partition in range(PARTITIONS)})
        return sum(found.offset for found in offsets.values())

    def end_driver(self):
        for process in [*self.below(), psutil.Process(self.driver.pid)] if self.driver.poll() is None else []:
            with_suppressed(process.kill)
        with_suppressed(lambda: os.killpg(self.driver.pid, signal.SIGKILL))
        self.driver.wait(60)

    def below(self):
        try:
            return psutil.Process(self.driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill_worker(self, words, name):
        """Kill one of Spark's processes at a random moment of a batch."""
        begun = self.batches("commits")
        self.wait(lambda: self.batches("offsets") > begun)
        moment(self.random.uniform(0, 0.4))
        found = [process for process in self.below() if any(word in command_of(process) for word in words)]
        if found:
            with_suppressed(self.random.choice(found).kill)
            self.killed[name] += 1

    def round(self, number, others):
        """One kill of a kind; ``others`` kill what is no part of Spark."""
        if self.driver is None or self.driver.poll() is not None:
            self.start()
        done = self.batches("commits")
        self.send(150)
        if not self.wait(lambda: self.batches("commits") > done):
            self.end_driver()
            return
        kinds = EXECUTOR_KINDS if self.master.startswith("local-cluster") else KINDS
        kind = kinds[number % len(kinds)]
        if kind == "other" and others:
            moment(self.random.uniform(0, 0.5))
            others[number // len(kinds) % len(others)]()
            self.killed["broker"] += 1
        elif kind == "executor":
            self.kill_worker(["CoarseGrainedExecutorBackend"], "executor")
        elif kind in ("plan", "rows", "random"):
            self.kill_driver(kind)
        else:
            self.kill_worker(["pyspark"], "worker")

    def run(self, kills, others=()):
        """Kill so often, then let the query come to its end."""
        rounds = 0
        while sum(self.killed.values()) < kills and rounds < 3 * kills:
            self.round(rounds, others)
            rounds += 1
        if self.driver is not None:
            self.end_driver()
        for _ in range(5):
            self.start(once=True)
            if self.driver.wait(600) == 0:
                break
        assert self.driver.returncode == 0, (self.place / "driver.log").read_text()[-3000:]
        print(f"\n{sum(self.killed.values())} kills in {self.batches('commits') + 1} batches: {dict(self.killed)}")
        return judge(self.bootstrap, self.sent)


class Verdict(NamedTuple):
    """How many records are not there, are there again, or stand before an earlier one of their key."""

    missing: int
    twice: int
    disordered: int


def judge(bootstrap, sent):
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False} | QUIET)
    consumer.assign([TopicPartition(TARGET, index, 0) for index in range(PARTITIONS)])
    counts, last, disordered, ends = collections.Counter(), {}, 0, set()
    patience = Patience()
    while len(ends) < PARTITIONS:
        patience.check("the end of the topic was not reached")
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                number = int(message.value())
                counts[number] += 1
                disordered += number <= last.get(message.key(), -1)
                last[message.key()] = number
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    consumer.close()
    assert set(counts) <= set(range(sent))
    return Verdict(sent - len(counts), sum(counts.values()) - len(counts), disordered)


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def with_suppressed(call):
    try:
        call()
    except (psutil.Error, ProcessLookupError):
        pass


def restart_of(broker):
    def kill():
        broker.kill()
        broker.restart()

    return kill


def test_each_record_is_copied_once_through_kills_of_workers_drivers_and_the_broker(tmp_path):
    with Broker(shards=2) as broker:
        copy = Copy(broker.bootstrap, tmp_path)
        assert copy.run(KILLS, [restart_of(broker)]) == (0, 0, 0)


def test_the_same_kills_find_a_sink_that_writes_at_least_once(tmp_path):
    with Broker(shards=2) as broker:
        copy = Copy(broker.bootstrap, tmp_path, delivery="at-least-once")
        found = copy.run(max(3, KILLS // 4), [restart_of(broker)])
        assert found.missing == 0
        assert found.twice > 0, "the harness would not find a sink that repeats rows"


@MANY
def test_each_record_is_copied_once_while_executors_die(tmp_path):
    with Broker(shards=2) as broker:
        copy = Copy(broker.bootstrap, tmp_path, master="local-cluster[2,1,768]")
        assert copy.run(max(4, KILLS // 4)) == (0, 0, 0)
        assert copy.killed["executor"] > 0


@MANY
def test_each_record_is_copied_once_while_coordinators_move(tmp_path):
    with cluster(3) as three:

        def replaced(node):
            def kill():
                three.kill(node)
                moment(3)
                three.restart(node)

            return kill

        copy = Copy(three.bootstrap, tmp_path, replicas=3)
        assert copy.run(max(8, KILLS // 4), [replaced(node) for node in (1, 2, 3)]) == (0, 0, 0)
        assert copy.killed["broker"] > 0
