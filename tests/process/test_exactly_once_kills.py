"""The exactly-once write through kills of its driver, its tasks and the broker, without Spark and so a hundred times.

Each row is there once and those of a key in their order; the same kills find a sink that writes at least once. The same
holds on a plain Apache Kafka, and while brokers of a cluster hand the coordinators over to each other.
``tests/spark/test_spark_kills.py`` does the same to Spark itself, which takes longer to start than this takes to run.
``MILLSTREAM_KILLS`` says how often, ``MILLSTREAM_SEED`` when.
"""

import collections
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from once_job import ROWS, TASKS

from millstream.testing import Broker, cluster
from waits import Patience, moment, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "100"))
SEED = int(os.environ.get("MILLSTREAM_SEED", "7"))
MOVING_KINDS = ("broker", "task", "broker", "driver")
KINDS = ("driver", "task", "driver", "task", "driver", "task", "driver", "task", "driver", "broker")
TOPIC, PARTITIONS = "written-to", 3


class Harness:
    """A job that is started again until all its batches are committed, and what kills it. A context manager."""

    def __init__(self, broker, place, *, once, kinds=KINDS):
        self.broker = broker
        self.kinds = kinds
        self.random = random.Random(SEED)
        self.killed = collections.Counter()
        self.place = place
        self.given = {"bootstrap": broker.bootstrap, "topic": TOPIC, "name": "job", "place": str(place), "once": once}
        self.pid = None
        self.batch_s = 0.1  # duration of the last batch, to reach all its steps however busy the machine is

    def __enter__(self):
        self.log = open(self.place / "driver.log", "ab")
        self.starter = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("once_job.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self.kill_driver()
        self.starter.kill()
        self.starter.communicate()
        self.log.close()

    def lives(self):
        return self.pid is not None and os.path.exists(f"/proc/{self.pid}")

    def kill_driver(self):
        if self.lives():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.wait(lambda: not self.lives())

    def commits(self):
        done = self.place / "commits"
        return int(done.read_text()) if done.exists() else 0

    def start(self, batches):
        self.starter.stdin.write(json.dumps(self.given | {"batches": batches}) + "\n")
        self.starter.stdin.flush()
        self.pid = int(self.starter.stdout.readline())

    def wait(self, happened):
        until(happened, lambda: (self.place / "driver.log").read_text()[-3000:], every_s=0.002)

    def kill_one(self, kind):
        """Kill something at a random moment of the batch at work."""
        if not self.lives():
            self.start(1_000_000)
        for _ in range(2):
            before, begun = self.commits(), time.monotonic()
            self.wait(lambda before=before: self.commits() != before or not self.lives())
        self.batch_s = time.monotonic() - begun
        moment(self.random.uniform(0, self.batch_s))
        if not self.lives():
            return
        if kind == "broker":
            self.broker.kill()
            self.broker.restart()
        elif kind == "task":
            try:
                self.random.choice(psutil.Process(self.pid).children()).kill()
            except (psutil.NoSuchProcess, IndexError):
                return
        else:
            self.kill_driver()
        self.killed[kind] += 1

    def run(self, kills):
        rounds = 0
        while sum(self.killed.values()) < kills and rounds < 5 * kills:
            self.kill_one(self.kinds[rounds % len(self.kinds)])
            rounds += 1
        self.kill_driver()
        batches = self.commits() + 2
        for _ in range(3):  # a driver gives up when a task has failed too often
            self.start(batches)
            self.wait(lambda: not self.lives())
        assert self.commits() == batches, (self.place / "driver.log").read_text()[-3000:]
        print(f"\n{sum(self.killed.values())} kills in {batches} batches: {dict(self.killed)}")
        return batches


def judge(bootstrap, batches):
    """How many rows are missing, are there again, or stand before an earlier one of their key."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    counts, last, disordered, ends = collections.Counter(), {}, 0, set()
    patience = Patience()
    while len(ends) < PARTITIONS:
        patience.check(ends)
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                number = int(message.value())
                counts[number] += 1
                disordered += number <= last.get(message.key(), -1)
                last[message.key()] = number
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    consumer.close()
    wanted = batches * TASKS * ROWS
    assert set(counts) <= set(range(wanted))
    return wanted - len(counts), sum(counts.values()) - len(counts), disordered


def test_each_row_is_there_once_through_a_hundred_kills(tmp_path):
    with Broker(topics={TOPIC: PARTITIONS}, shards=2) as broker:
        with Harness(broker, tmp_path, once=True) as harness:
            batches = harness.run(KILLS)
        assert judge(broker.bootstrap, batches) == (0, 0, 0)


def test_the_same_kills_find_a_sink_that_writes_at_least_once(tmp_path):
    with Broker(topics={TOPIC: PARTITIONS}, shards=2) as broker:
        with Harness(broker, tmp_path, once=False) as harness:
            batches = harness.run(max(12, KILLS // 5))
        missing, twice, _ = judge(broker.bootstrap, batches)
        assert missing == 0
        assert twice > 0, "the harness would not find a sink that repeats rows"


def test_each_row_is_there_once_through_kills_on_a_plain_apache_kafka(tmp_path):
    from bench.peers.kafka import kafka

    with kafka(topics={TOPIC: PARTITIONS}) as peer:
        with Harness(peer, tmp_path, once=True) as harness:
            batches = harness.run(max(10, KILLS // 5))
        assert harness.killed["broker"] > 0
        assert judge(peer.bootstrap, batches) == (0, 0, 0)


class Draining:
    """A cluster in the place of a broker: in the place of its death the next broker hands over all that it leads, the
    coordinators of the job's transactions and groups among it.
    """

    def __init__(self, brokers):
        self.bootstrap = brokers.bootstrap
        self._next = itertools.cycle(brokers.brokers)

    def kill(self):
        self._node = str(next(self._next))
        self._ask("drain")

    def restart(self):
        self._ask("undrain")

    def _ask(self, verb):
        command = [sys.executable, "-m", "millstream.cli", "cluster", verb, self._node, "--bootstrap", self.bootstrap]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_each_row_is_there_once_while_coordinators_are_moved_from_broker_to_broker(tmp_path):
    with cluster(3) as three:
        admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        with Harness(Draining(three), tmp_path, once=True, kinds=MOVING_KINDS) as harness:
            batches = harness.run(max(12, KILLS // 5))
        assert harness.killed["broker"] >= 3, "each broker has handed over"
        assert judge(three.bootstrap, batches) == (0, 0, 0)
