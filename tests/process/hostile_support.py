"""What the tests with hostile clients share: connections, the budget, and the clients that must not notice."""

import contextlib
import os
import socket
import threading
import time

from bench import processes, raw
from bench.peers.kafka import Kafka
from confluent_kafka import Consumer, Producer

BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 112 << 20
"""The interpreters and their modules, and what the kernel lends: not in the budget."""


NOTICED_S = 0.25
"""The 99th percentile of a produce and a fetch beside, on a quiet machine; alone it is 5 ms."""

SLOWEST_S = 1.0
"""No round takes longer, on a quiet machine: a single request may cost a tenth of a second or two."""


ENOUGH_ROUNDS = 300
"""Of fewer the 99th percentile is but the slowest or two."""

NAP_S = 0.003
"""What the client, and the sleeper beside it, sleep between their rounds."""


def busy():
    """How many want each core, one at least: the factor by which a busy machine is slower than a quiet one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Beside:
    """A client that produces one record after another and reads each back; ``stop`` gives how long each round took."""

    def __init__(self, bootstrap, topic):
        self._bootstrap = bootstrap
        self._topic = topic
        self._stop = threading.Event()
        self._failed = None
        self.took_s = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        try:
            with raw.Caller(self._bootstrap) as caller:
                first = caller.produce_one(self._topic, 0, raw.batch([b"first"])) + 1
                while not self._stop.is_set():
                    self._round(caller, first + len(self.took_s))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._failed = error

    def _round(self, caller, offset):
        batch = raw.batch([b"value %d" % offset])
        began = time.monotonic()
        assert caller.produce_one(self._topic, 0, batch) == offset
        request, place = raw.fetch(self._topic, 0, 1 << 20)
        request[place : place + 8] = offset.to_bytes(8, "big")
        frame = caller.call(request)
        self.took_s.append(time.monotonic() - began)
        answer = raw.FetchAnswer(frame, self._topic)
        assert bytes(frame[answer.records_start : answer.records_end])[17:] == batch[17:]
        self._stop.wait(NAP_S)

    def stop(self):
        self._stop.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return sorted(self.took_s)


class Sleeper:
    """A thread that only sleeps, and notes how late it wakes: what the machine and this process do to a round."""

    def __init__(self):
        self._stop = threading.Event()
        self._late_s = [0.0]
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()

    def _sleep(self):
        while not self._stop.is_set():
            due = time.monotonic() + NAP_S
            time.sleep(NAP_S)
            self._late_s.append(time.monotonic() - due)

    def stop(self):
        self._stop.set()
        self._thread.join()
        return sorted(self._late_s)


def p99(values):
    """Of sorted values."""
    return values[len(values) * 99 // 100]


@contextlib.contextmanager
def nobody_notices(broker, topic):
    """Beside what is done meanwhile a client goes on; it fails when one of its answers is wrong or late.

    A round waits several times to be woken, here and in the broker: what a sleeper was late may come thrice.
    """
    client, sleeper = Beside(broker.bootstrap, topic), Sleeper()
    try:
        yield
    finally:
        late_s = sleeper.stop()
        took_s = client.stop()
    assert took_s, "not one round was over in that time"
    factor = busy()
    print(f"beside: p99 {p99(took_s) * 1e3:.0f}, slowest {took_s[-1] * 1e3:.0f} ms of {len(took_s)}")
    print(f"a sleeper: p99 {p99(late_s) * 1e3:.0f}, latest {late_s[-1] * 1e3:.0f} ms; {factor:.1f} want a core")
    if len(took_s) >= ENOUGH_ROUNDS:
        assert p99(took_s) < NOTICED_S * factor + 3 * p99(late_s)
    assert took_s[-1] < SLOWEST_S * factor + 3 * late_s[-1]


@contextlib.contextmanager
def sound(broker):
    """What is done meanwhile leaves the broker running, within its budget and without an error in its log."""
    said_before = len(broker.log_path.read_text())
    yield
    said = broker.log_path.read_text()[said_before:]
    print(f"--- what the broker said\n{said[-4000:]}")
    assert broker.running
    within_budget(broker)
    assert not [line for line in said.splitlines() if " ERROR " in line or "Traceback" in line]


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
