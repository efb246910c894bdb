"""A stock client that copies a topic transaction by transaction, and what a read_committed reader finds of it.

Each copier reads its next records, writes them to the other topic, and commits its offsets in the same transaction.
Whatever dies on the way, each record of the one topic is in the other exactly once.
"""

import time
from concurrent.futures import ThreadPoolExecutor, wait

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

QUIET = {"log_level": 0}
FROM, TO = "copied-from", "copied-to"
GROUP = "copiers"


def fill(bootstrap, partitions, count):
    """Write ``count`` different values to the topic that is copied."""
    producer = Producer({"bootstrap.servers": bootstrap} | QUIET)
    for number in range(count):
        producer.produce(FROM, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


class Copier:
    """One copier with a transactional id of its own, which begins anew whenever it must."""

    def __init__(self, bootstrap, partitions, transactional_id="copier", each=7, every_other=0):
        """``every_other``: so many transactions, and then one that is aborted, its records written all the same."""
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.transactional_id = transactional_id
        self.each = each
        self.every_other = every_other
        self.done = self.began = 0
        self.errors = []
        self.producer = self.consumer = None

    def run(self, until_s, count):
        """Copy until the group has committed ``count`` records, or until a time; returns whether it has."""
        while time.monotonic() < until_s:
            try:
                if self.producer is None:
                    self._begin()
                if self._committed() >= count:
                    return True
                self._copy_some()
            except KafkaException as error:
                self.errors.append(str(error.args[0]))
                self.close()
        return False

    def _begin(self):
        self.began += 1
        self.producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 20_000,
            }
            | QUIET
        )
        self.producer.init_transactions(20)
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
            | QUIET
        )
        found = self.consumer.committed([TopicPartition(FROM, index) for index in range(self.partitions)], 20)
        self.consumer.assign([TopicPartition(one.topic, one.partition, max(one.offset, 0)) for one in found])

    def _committed(self):
        found = self.consumer.committed([TopicPartition(FROM, index) for index in range(self.partitions)], 20)
        return sum(max(one.offset, 0) for one in found)

    def _copy_some(self):
        messages = [one for one in self.consumer.consume(self.each, 1.0) if one.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce(TO, message.value(), partition=message.partition())
        self.done += 1
        if self.every_other and self.done % self.every_other == 0:
            if self.producer.flush(20):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records were not delivered in 20 s"))
            self.producer.abort_transaction(20)
            for message in messages[::-1]:
                self.consumer.seek(TopicPartition(FROM, message.partition(), message.offset()))
            return
        topic_partitions = self.consumer.position(self.consumer.assignment())
        offsets = [one for one in topic_partitions if one.offset >= 0]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), 20)
        self.producer.commit_transaction(20)

    def close(self):
        """Forget the producer as a kill would, without an abort."""
        self.producer = None
        if self.consumer is not None:
            self.consumer.close()
            self.consumer = None


class CopyInBackground:
    """A copier in a thread of its own."""

    def __init__(self, copier, seconds, count):
        self.copier = copier
        self.until_s = time.monotonic() + seconds
        self._run = ThreadPoolExecutor(1).submit(copier.run, self.until_s, count)

    def is_alive(self):
        return not self._run.done()

    def join(self, seconds):
        wait([self._run], seconds)

    def finish(self):
        """Wait for the end of it, and demand that everything was copied."""
        copier = self.copier
        self.join(max(self.until_s - time.monotonic(), 0) + 120)
        story = f"{copier.began} producers, {copier.done} transactions, and these errors: {copier.errors[-20:]}"
        assert self._run.done(), f"still copying after {story}"
        assert self._run.result(), f"out of time after {story}"


def read(bootstrap, partitions, isolation):
    """All values of the copy up to its end, as ``isolation`` shows them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        | QUIET
    )
    consumer.assign([TopicPartition(TO, index, 0) for index in range(partitions)])
    values, at_end = [], set()
    limit = time.monotonic() + 60
    while len(at_end) < partitions:
        assert time.monotonic() < limit, f"the end of {TO} was not reached"
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                values.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    consumer.close()
    return values
