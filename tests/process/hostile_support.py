"""What the tests with hostile clients share: connections, the budget, and the clients that must not notice."""

import socket

from bench import processes
from bench.peers.kafka import Kafka
from confluent_kafka import Consumer, Producer

BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 160 << 20
"""The interpreters and their modules, and what the kernel lends: not in the budget."""


def connect(broker, blocking=False):
    host, port = broker.bootstrap.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=20)
    if not blocking:
        connection.setblocking(False)
    return connection


def within_budget(broker):
    if isinstance(broker, Kafka):
        return  # a virtual machine has a budget of its own kind
    held = processes.pss_bytes(broker.pid)
    assert held <= BUDGET_BYTES + CONSTANT_BYTES, f"{held / 2**20:.0f} MiB held"


def clients_go_on(broker, name):
    """A stock client produces and consumes as if nothing were the matter."""
    values = [f"{name}-{i}".encode() for i in range(500)]
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "message.timeout.ms": 20000}
    )
    for value in values:
        producer.produce("steady", value)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "log_level": 2,
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"steady-{name}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["steady"])
    missing = set(values)
    while missing:
        got = consumer.consume(500, 20)
        assert got, f"{len(missing)} values did not come"
        missing.difference_update(message.value() for message in got)
    consumer.close()
