"""A stock client that copies a topic transaction by transaction, and what a read_committed reader finds of it.

Each copier reads its next records, writes them to the other topic, and commits its offsets in the same transaction.
Whatever dies on the way, each record of the one topic is in the other exactly once.
"""

import time
from concurrent.futures import ThreadPoolExecutor, wait

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millstream.testing.history import History, Outcome
from waits import Patience

QUIET = {"log_level": 0, "metadata.recovery.strategy": "none"}
"""Without a broker that answers, librdkafka bootstraps anew and gives up its handle of the broker, but may keep it as
the group's coordinator: the next TxnOffsetCommit then waits for a connection that nobody makes (librdkafka's issue
5511). Brokers that come back at their addresses need no new bootstrap.
"""
FROM, TO = "copied-from", "copied-to"
GROUP = "copiers"


def fill(bootstrap, partitions, count):
    """Write ``count`` different values to the topic that is copied."""
    producer = Producer({"bootstrap.servers": bootstrap} | QUIET)
    for number in range(count):
        producer.produce(FROM, b"%d" % number, partition=number % partitions)
    assert producer.flush(60) == 0


class Copier:
    """One copier with a transactional id of its own, which begins anew whenever it must."""

    def __init__(self, bootstrap, partitions, transactional_id="copier", each=7, every_other=0, history=None):
        """``partitions``: how many are copied, or which. ``every_other``: so many transactions, and then one that is
        aborted, its records written all the same. ``history`` gets everything that the copier does.
        """
        self.bootstrap = bootstrap
        self.partitions = range(partitions) if isinstance(partitions, int) else partitions
        self.history = History() if history is None else history
        self.killed = False
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
                if self.killed:
                    self.killed = False
                    self.close()
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
                "transaction.timeout.ms": 60_000,
            }
            | QUIET
        )
        self.producer.init_transactions(60)
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
            | QUIET
        )
        found = self.consumer.committed([TopicPartition(FROM, index) for index in self.partitions], 20)
        self.consumer.assign([TopicPartition(one.topic, one.partition, max(one.offset, 0)) for one in found])

    def _committed(self):
        began_ns = time.monotonic_ns()
        found = self.consumer.committed([TopicPartition(FROM, index) for index in self.partitions], 20)
        for one in found:
            self.history.committed(GROUP, FROM, one.partition, max(one.offset, -1), began_ns=began_ns)
        return sum(max(one.offset, 0) for one in found)

    def _copy_some(self):
        messages = [one for one in self.consumer.consume(self.each, 1.0) if one.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        self.done += 1
        name = f"{self.transactional_id}-{self.began}-{self.done}"
        for message in messages:
            self._write(message, name)
        if self.every_other and self.done % self.every_other == 0:
            if self.producer.flush(60):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records were not delivered in 20 s"))
            self._end(name, commits=False)
            for message in messages[::-1]:
                self.consumer.seek(TopicPartition(FROM, message.partition(), message.offset()))
            return
        places = self.consumer.position(self.consumer.assignment())
        offsets = [one for one in places if one.offset >= 0]
        commits = [
            self.history.commit(self.process, GROUP, FROM, one.partition, one.offset, transaction=name)
            for one in offsets
        ]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), 20)
        for commit in commits:
            self.history.done(commit, Outcome.OK)
        self._end(name, commits=True)

    @property
    def process(self):
        """The producer that lives now."""
        return f"{self.transactional_id}-{self.began}"

    def _write(self, message, name):
        value = message.value() + b":" + name.encode()  # what is written again is another value
        sent = self.history.send(self.process, TO, message.partition(), value.decode(), transaction=name)

        def delivered(error, written):
            outcome = Outcome.OK if error is None else Outcome.INFO
            self.history.sent(sent, outcome, written.offset() if error is None else -1)

        self.producer.produce(TO, value, partition=message.partition(), on_delivery=delivered)

    def _end(self, name, *, commits):
        end = self.history.end_transaction(self.process, name, commits=commits)
        if commits:
            self.producer.commit_transaction(60)
        else:
            self.producer.abort_transaction(60)
        self.history.done(end, Outcome.OK)

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


def read(bootstrap, partitions, isolation, history=None, process="judge"):
    """All values of the copy up to its end, as ``isolation`` shows them; ``history`` gets what was read."""
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
    patience = Patience()
    while len(at_end) < partitions:
        patience.check(f"the end of {TO} was not reached")
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                values.append(int(message.value().partition(b":")[0]))
                if history is not None:
                    record = (message.offset(), message.value().decode())
                    committed = isolation == "read_committed"
                    history.polled(process, TO, message.partition(), [record], read_committed=committed)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    consumer.close()
    return values
