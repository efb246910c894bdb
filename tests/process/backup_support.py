"""What tests of backups share: a command, a cluster with a bit of everything, and what a reader finds in it."""

import json
import os
import signal
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client import Cluster
from millstream.client.cluster import EARLIEST, LATEST
from millstream.client.record_reader import RecordReader

QUIET = {"log_level": 0}
WRITTEN_MS = int(time.time() * 1000) - 3_600_000
"""Time of the records: retention deletes none of them while a slow test runs."""

_KILLED = """
import os, signal, sys
from importlib import import_module
from millstream.cli.__main__ import main

module, owner, verb, count = sys.argv[1].rsplit(":", 3)
owner, left = getattr(import_module(module), owner), int(count)
whole = getattr(owner, verb)

def dies(*arguments, **named):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments, **named)

setattr(owner, verb, dies)
sys.exit(main(sys.argv[2:]))
"""
"""A command that is killed before one call of one method, after ``count`` calls of it."""


def killed_at(place, *words):
    """Whether the command died at ``module:class:method:count``."""
    done = subprocess.run([sys.executable, "-c", _KILLED, place, *words], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


def command(*words, expect=0):
    """What ``millstream backup`` says with ``--json``, or on stderr if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "backup", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else done.stderr


def admin(broker):
    return AdminClient(broker.client | QUIET)


def create(broker, name, partitions=1, replication=1, **configs):
    topic = NewTopic(
        name, partitions, replication, config={key.replace("_", "."): str(one) for key, one in configs.items()}
    )
    client = admin(broker)
    client.create_topics([topic])[name].result(60)


def produce(broker, topic, values, partition=0, **settings):
    producer = Producer({**broker.client, **QUIET, **settings})
    for value in values:
        producer.produce(
            topic,
            value=value.encode(),
            key=f"k{value[-1]}".encode(),
            partition=partition,
            headers=[("h", value.encode())],
            timestamp=WRITTEN_MS + len(value),
        )
    assert producer.flush(120) == 0


def transactions(broker, topic, outcomes):
    """One transaction of five records for each outcome: commit, abort, open."""
    for number, outcome in enumerate(outcomes):
        producer = Producer({**broker.client, **QUIET, "transactional.id": f"{topic}-{number}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for one in range(5):
            producer.produce(topic, value=f"{outcome}-{number}-{one}".encode(), partition=0)
        producer.flush(60)
        if outcome != "open":
            getattr(producer, f"{outcome}_transaction")(60)


def commit(broker, group, offsets):
    """Commit offsets {(topic, partition): (offset, metadata)} of a group."""
    consumer = Consumer({**broker.client, **QUIET, "group.id": group, "enable.auto.commit": False})
    wanted = [TopicPartition(*place, offset, words) for place, (offset, words) in offsets.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def committed(broker, group, places):
    consumer = Consumer({**broker.client, **QUIET, "group.id": group})
    found = consumer.committed([TopicPartition(*place) for place in places], 60)
    consumer.close()
    return {(one.topic, one.partition): (one.offset, one.metadata) for one in found}


def cluster_of(broker):
    return Cluster(broker.bootstrap, timeout_s=60)


def ends(broker, topic, partitions=1):
    with cluster_of(broker) as cluster:
        places = [(topic, index) for index in range(partitions)]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        stops = cluster.list_offsets(dict.fromkeys(places, LATEST))
        return [(starts[one].offset, stops[one].offset) for one in places]


def history(broker, topic, partition=0, read_committed=True):
    """Every record of a partition. Aborted ones are left out, if so wanted."""
    place, found = (topic, partition), []
    with (
        cluster_of(broker) as cluster,
        RecordReader(cluster, {place: EARLIEST}, read_committed=read_committed) as reader,
    ):
        while place not in reader.at_end:
            found += [record for _, record in reader.read_round()]
    return found


def delete_before(broker, topic, partition, offset):
    client, place = admin(broker), TopicPartition(topic, partition, offset)
    client.delete_records([place])[place].result(60)
