"""Leader epochs over crashes and orderly stops: what clients tell a log that was cut, and a stale broker, by."""

import os
import signal

import pytest
from bench import processes, raw
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.client.connection import Connection
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = pytest.mark.process


def produce(broker, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(60) == 0


def records(broker, count):
    """The first records of the partition: leader epoch and value of each."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(120)
        assert message is not None and message.error() is None, message and message.error()
        found.append((message.leader_epoch(), message.value()))
    consumer.close()
    return found


def current_epoch(broker, topic="t"):
    host, port = broker.bootstrap.split(":")
    with Connection(host, int(port), timeout_s=60) as connection:
        answer = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), MetadataResponse, 9)
    return answer.topics[0].partitions[0].leader_epoch


def test_a_leader_epoch_never_falls_though_nothing_was_written_in_it(broker_factory):
    broker = broker_factory(topics={"t": 1}, shards=1)
    produce(broker, b"first")
    epochs = [current_epoch(broker)]
    for end in (broker.kill, broker.stop, broker.stop, broker.kill, broker.stop):
        end()
        broker.start()
        epochs.append(current_epoch(broker))
    assert epochs == [0, 1, 1, 1, 2, 2]
    produce(broker, b"second")
    assert records(broker, 2) == [(0, b"first"), (2, b"second")]


def test_a_topic_begins_with_leader_epoch_zero_however_often_the_broker_crashed(broker_factory):
    broker = broker_factory(topics={"t": 1}, shards=1)
    broker.kill()
    broker.start()
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({"later": 1})
    epochs = [current_epoch(broker, "later")]
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        epochs.append(current_epoch(broker, "later"))
    assert epochs == [0, 1, 2]


def test_what_takes_the_place_of_visible_records_that_a_crash_took_has_another_leader_epoch(broker_factory):
    broker = broker_factory(shards=1)
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({"t": 1}, {"write.caching": "true"})
    # While the disk stands still nobody could make the topic in which a consumer's coordinator keeps its offsets.
    first = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "nobody"})
    first.committed([TopicPartition("t", 0)], timeout=60)
    first.close()
    seen = []
    for crash in range(3):
        (writer,) = [pid for pid in processes.tree(broker.pid) if processes.name_of(pid).endswith(": writer 0")]
        os.kill(writer, signal.SIGSTOP)
        produce(broker, b"lost %d" % crash)
        seen += records(broker, 1)
        broker.kill()
        broker.start()
    produce(broker, b"stays")
    seen += records(broker, 1)
    assert seen == [(0, b"lost 0"), (1, b"lost 1"), (2, b"lost 2"), (3, b"stays")]
