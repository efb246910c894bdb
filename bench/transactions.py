"""Transactions by a stock client (librdkafka), one after the other: begin, some records of 1 KB, commit.

What counts is the time from begin to the answer to the commit, and the broker's CPU a transaction, markers included. A
read_committed consumer then has to find each record once.
"""

import time
from array import array

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from bench import plain
from bench.meter import Meter, Outcome
from bench.raw import UnexpectedAnswer
from bench.rows import Figures, Plan, Say, of_produce
from bench.subjects import Subject

PARTITIONS = 4
TIMEOUT_S = 30.0
VALUE = bytes(range(250)) * 4


def commit(subject: Subject, plan: Plan, say: Say, *, records: int) -> Figures:
    """Transactions of so many records, spread over the partitions."""
    with plain.topic(subject, PARTITIONS) as name:
        settings = {"bootstrap.servers": subject.bootstrap, "transactional.id": f"bench of {name}", "linger.ms": 0}
        producer = Producer(settings)
        producer.init_transactions(TIMEOUT_S)
        say("committing")
        sent = _commits(producer, name, records, plan.warm_s, None)
        outcome = Outcome()
        meter = Meter(subject.pid)
        meter.begin()
        done = _commits(producer, name, records, plan.measured_s, outcome.latencies_us)
        meter.end(outcome)
        outcome.requests, outcome.bytes = done, done * records * len(VALUE)
        outcome.latencies_us = array("d", sorted(outcome.latencies_us))
        say("reading everything back")
        found = _read(subject.bootstrap, name)
        if found != (sent + done) * records:
            raise UnexpectedAnswer(f"{name}: {(sent + done) * records} records were committed, {found} are read")
    return of_produce(outcome)


def _commits(producer: Producer, topic: str, records: int, seconds: float, latencies: "array[float] | None") -> int:
    """Transactions, one after the other, for some time; how many."""
    done = 0
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, VALUE, partition=(done + number) % PARTITIONS)
        producer.commit_transaction(TIMEOUT_S)
        done += 1
        if latencies is not None:
            latencies.append(1e6 * (time.perf_counter() - began))
    return done


def _read(bootstrap: str, topic: str) -> int:
    """How many committed records there are."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        return _to_the_end(consumer)
    finally:
        consumer.close()


def _to_the_end(consumer: Consumer) -> int:
    found = 0
    ended: set[int | None] = set()
    until = time.monotonic() + TIMEOUT_S
    while len(ended) < PARTITIONS and time.monotonic() < until:
        for message in consumer.consume(10_000, 0.5):
            error = message.error()
            if error is None:
                found += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(error)
    return found
