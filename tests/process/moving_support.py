"""What tests that move replicas share: a load that goes on meanwhile, the moves, and who has which replica."""

import threading

from cluster_support import QUIET, partitions
from confluent_kafka import Producer

from millstream.client.connection import Connection
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from waits import moment


def ask(broker, request, answer, version=0):
    host, _, port = broker.bootstrap.rpartition(":")
    with Connection(host, int(port)) as connection:
        return connection.call(request, answer, version)


def move(broker, topic, replicas, *, version=1, factor=True):
    """Ask for the replicas of partitions; returns the error and message of each."""
    parts = [ReassignablePartition(partition_index=index, replicas=nodes) for index, nodes in replicas.items()]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=parts)], allow_replication_factor_change=factor
    )
    answer = ask(broker, request, AlterPartitionReassignmentsResponse, version)
    return [(part.error_code, part.error_message) for part in answer.responses[0].partitions]


def moving(broker):
    answer = ask(broker, ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
    return {
        (topic.name, part.partition_index): (part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    }


def replicas_of(broker, topic):
    return [list(part.replicas) for part in partitions(broker, topic)]


class Load:
    """An idempotent producer that goes on until the block ends."""

    def __init__(self, bootstrap, topic, count):
        self.acked, self.failed = [], []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1} | QUIET)
        self._topic, self._count = topic, count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def _produce(self):
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % self._count, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
            moment(0.002)

    def _delivered(self, error, message):
        (self.acked if error is None else self.failed).append(message.value())
