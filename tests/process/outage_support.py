"""A producer and two groups, one of each protocol, that live through kills of their broker and note what they saw.

Any broker with ``bootstrap``, ``kill`` and ``restart`` will do, so that a real Kafka can be watched the same way. Every
client is confluent-kafka's; none of them gives up because the broker is away.
"""

import threading
import time
from collections import defaultdict
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from waits import PATIENCE_S, until

TOPIC = "orders"
PROTOCOLS = ("classic", "consumer")
MEMBERS = 2
COMMIT_EVERY_S = 0.3
PAUSE_S = 0.02
"""Between two bursts of the producer."""

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class Member(threading.Thread):
    """One consumer of a group; ``read`` has each partition's values by offset, ``late`` the values read again."""

    def __init__(self, bootstrap, group, protocol, stopping):
        super().__init__(daemon=True)
        own = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
        settings = {"bootstrap.servers": bootstrap, "group.id": f"of-{protocol}", "group.protocol": protocol}
        ways = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer({**QUIET, **settings, **ways, **own})
        self._group = group
        self._stopping = stopping
        self.error = None

    def run(self):
        try:
            self._consumer.subscribe(
                [TOPIC],
                on_assign=lambda _, got: self._group.say("assigned", len(got)),
                on_revoke=lambda _, got: self._group.say("revoked", len(got)),
                on_lost=lambda _, got: self._group.say("lost", len(got)),
            )
            while not self._stopping.is_set():
                self._step()
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.error = error

    def _step(self):
        for message in self._consumer.consume(500, 0.1):
            if message.error():
                assert message.error().retriable() or message.error().code() < 0, message.error()
                continue
            self._group.take(message.partition(), message.offset(), message.value())
        if time.monotonic() >= self._group.commit_at:
            self._group.commit_at = time.monotonic() + COMMIT_EVERY_S
            self._commit()

    def _commit(self):
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # nothing to commit, a rebalance, or the broker is away: nobody knows
        for at in committed:
            if at.error is None and at.offset >= 0:
                self._group.committed[at.partition] = max(self._group.committed[at.partition], at.offset)


class Group:
    """The members of a group together."""

    def __init__(self, bootstrap, protocol, stopping):
        self.read = defaultdict(dict)
        self.committed = defaultdict(int)  # what a commit was acknowledged for, the most so far
        self.commit_at = 0.0
        self.said = []
        self.newest = -1
        self.members = [Member(bootstrap, self, protocol, stopping) for _ in range(MEMBERS)]

    def say(self, what, count):
        self.said.append((time.monotonic(), what, count))

    def take(self, partition, offset, value):
        before = self.read[partition].setdefault(offset, value)
        assert before == value, f"offset {offset} held {before!r}, now {value!r}"
        self.newest = max(self.newest, int(value))


class Outage:
    """The clients of one broker; ``acked`` is the value of every record that was acknowledged, by its place."""

    def __init__(self, broker):
        self.broker = broker
        self.stopping = threading.Event()
        self.enough = threading.Event()  # for the producer
        self.acked = {}
        self.sent = 0
        self.groups = {protocol: Group(broker.bootstrap, protocol, self.stopping) for protocol in PROTOCOLS}
        self._producing = threading.Thread(target=self._produce, daemon=True)
        self._error = None

    def _produce(self):
        try:
            ways = {"enable.idempotence": True, "message.timeout.ms": 1000 * PATIENCE_S, "linger.ms": 5}
            producer = Producer({**QUIET, "bootstrap.servers": self.broker.bootstrap, **ways})
            while not self.enough.is_set():
                for _ in range(20):
                    producer.produce(TOPIC, b"%d" % self.sent, on_delivery=self._delivered)
                    self.sent += 1
                producer.poll(0)
                self.enough.wait(PAUSE_S)
            assert producer.flush(PATIENCE_S) == 0
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._error = error

    def _delivered(self, error, message):
        if error is None:
            self.acked[message.partition(), message.offset()] = message.value()
        else:
            assert error.code() == KafkaError._PURGE_QUEUE, error

    def start(self):
        self._producing.start()
        for group in self.groups.values():
            for member in group.members:
                member.start()

    def check(self):
        """Raise what a client met."""
        errors = [self._error, *(member.error for group in self.groups.values() for member in group.members)]
        for error in errors:
            if error is not None:
                raise error

    def wait(self, condition, what):
        """Until something is so, with the patience of a client."""
        until(lambda: self.check() or condition(), what)

    def until_all_read_on(self):
        """Wait until each group reads what is only sent from now on; how long each took, in seconds."""
        began, mark, took_s = time.monotonic(), self.sent, {}

        def come_back():
            for protocol, group in self.groups.items():
                if protocol not in took_s and group.newest >= mark:
                    took_s[protocol] = time.monotonic() - began
            return len(took_s) == len(self.groups)

        self.wait(come_back, f"the groups that read on after {took_s}")
        return took_s

    def until_all_commit(self):
        """Wait until each group commits more than it has so far."""
        before = {protocol: sum(group.committed.values()) for protocol, group in self.groups.items()}
        for protocol, group in self.groups.items():
            self.wait(lambda group=group, had=before[protocol]: sum(group.committed.values()) > had, "a commit")

    def until_a_session_ended(self):
        """Wait, while the broker is away, until the classic members give themselves up."""
        said, began = self.groups["classic"].said, time.monotonic()
        self.wait(lambda: any(what == "lost" for at, what, _ in said if at > began), "the end of a session")

    def shown(self, protocol):
        """The offsets that the broker says a group committed, by partition."""
        who = Consumer({**QUIET, "bootstrap.servers": self.broker.bootstrap, "group.id": f"of-{protocol}"})
        try:
            asked = [TopicPartition(TOPIC, partition) for partition in range(4)]
            return {at.partition: at.offset for at in who.committed(asked, PATIENCE_S)}
        finally:
            who.close()

    def offsets_went_back(self):
        """What a group was told is committed, and is not any more."""
        lost = []
        for protocol, group in self.groups.items():
            before = dict(group.committed)
            now = self.shown(protocol)
            lost += [(protocol, at, offset, now[at]) for at, offset in before.items() if now[at] < offset]
        return lost

    def unread(self):
        """Acknowledged records that a group has not read."""
        return {
            protocol: [place for place in list(self.acked) if place[1] not in group.read[place[0]]]
            for protocol, group in self.groups.items()
        }

    def finish(self):
        """Stop producing, let the groups read all there is, and check what each was given."""
        self.enough.set()
        self._producing.join()
        self.check()
        self.wait(lambda: not any(self.unread().values()), "records that were acknowledged")
        for group in self.groups.values():
            for (partition, offset), value in list(self.acked.items()):
                assert group.read[partition][offset] == value

    def stop(self):
        self.enough.set()
        self._producing.join()
        self.stopping.set()
        for group in self.groups.values():
            for member in group.members:
                if member.ident is not None:
                    member.join()


@contextmanager
def outage(broker):
    """The clients, running; at the end none of them has met an error."""
    clients = Outage(broker)
    clients.start()
    try:
        yield clients
    finally:
        clients.stop()
    clients.check()
