"""What the tests with hostile clients share: connections, the budget, and the clients that must not notice."""

import contextlib
import socket
import threading

from bench import processes, raw
from bench.peers.kafka import Kafka
from confluent_kafka import Consumer, Producer

from waits import until
from worked import Worked

BUDGET_BYTES = 128 << 20
CONSTANT_BYTES = 112 << 20
"""The interpreters and their modules, and what the kernel lends: not in the budget."""

NOTICED_S = 0.25
"""The 99th percentile of what a core works between a request and its answer, a produce and a fetch together."""

SLOWEST_S = 1.0
"""No round costs more: a single request may cost a tenth of a second or two."""

ENOUGH_ROUNDS = 300
"""Of fewer the 99th percentile is but the slowest or two."""

NAP_S = 0.003
"""What the client sleeps between its rounds."""


class Beside:
    """A client that produces one record after another and reads each back.

    ``stop`` gives what each round cost, sorted: the seconds that the busiest process of the broker worked meanwhile.
    """

    def __init__(self, broker, topic):
        self._bootstrap = broker.bootstrap
        self._topic = topic
        self._worked = Worked(broker.pid)
        self._stop = threading.Event()
        self._failed = None
        self.cost_s = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        try:
            with raw.Caller(self._bootstrap) as caller:
                first = caller.produce_one(self._topic, 0, raw.batch([b"first"])) + 1
                while not self._stop.is_set():
                    self._round(caller, first + len(self.cost_s))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._failed = error

    def _round(self, caller, offset):
        batch = raw.batch([b"value %d" % offset])
        before = self._worked.each_ns()
        assert caller.produce_one(self._topic, 0, batch) == offset
        request, place = raw.fetch(self._topic, 0, 1 << 20)
        request[place : place + 8] = offset.to_bytes(8, "big")
        frame = caller.call(request)
        self.cost_s.append(self._worked.most_s(before))
        answer = raw.FetchAnswer(frame, self._topic)
        assert bytes(frame[answer.records_start : answer.records_end])[17:] == batch[17:]
        self._stop.wait(NAP_S)

    def stop(self):
        self._stop.set()
        self._thread.join()
        self._worked.close()
        if self._failed is not None:
            raise self._failed
        return sorted(self.cost_s)


def p99(values):
    """Of sorted values."""
    return values[len(values) * 99 // 100]


@contextlib.contextmanager
def nobody_notices(broker, topic):
    """Beside what is done meanwhile a client goes on; it fails when an answer is wrong, or waits for much work of
    others.
    """
    client = Beside(broker, topic)
    try:
        yield
    finally:
        cost_s = client.stop()
    assert cost_s, "not one round was over in that time"
    print(f"beside: p99 {p99(cost_s) * 1e3:.0f}, most {cost_s[-1] * 1e3:.0f} ms of work, {len(cost_s)} rounds")
    if len(cost_s) >= ENOUGH_ROUNDS:
        assert p99(cost_s) < NOTICED_S
    assert cost_s[-1] < SLOWEST_S


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
    connection = socket.create_connection((host, int(port)), timeout=60)
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
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "message.timeout.ms": 120_000}
    )
    for value in values:
        producer.produce("steady", value)
    assert producer.flush(120) == 0
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

    def all_came():
        missing.difference_update(message.value() for message in consumer.consume(500, 0.5))
        return not missing

    until(all_came, lambda: f"{len(missing)} values did not come", every_s=0)
    consumer.close()
