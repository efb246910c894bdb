"""Clients that live through crashes of their broker, each a thread that writes down what it saw.

All are confluent-kafka's: idempotent producers, a reader, members of groups of both protocols, and an administrator who
creates, fills, reads and deletes topics, and deletes records. Nothing is given up because a broker is away: requests
whose outcome nobody knows are asked again, or stay unknown. What a client says in so many words that a broker broke is
told to `Workload.complain`.
"""

import sys
import threading
import time
import traceback
from collections import defaultdict

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from millstream.testing.history import Outcome

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
CLASSIC, NEXT = "classic", "consumer"
GROUPS = {CLASSIC: "crash-group", NEXT: "crash-group-next"}
"""The groups, by the protocol that their members speak."""

FINAL_TIMEOUT_S = 60
KEYS = 40
"""Different keys in a compacted topic."""

COMING_UP = frozenset(
    (
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.KAFKA_STORAGE_ERROR,
    )
)
"""What a broker that goes down or comes up may answer an administrator: he tries again."""


def nobody_knows(code):
    """Whether an error leaves open what was done: the broker is on its way, or the client lost it (below zero)."""
    return code < 0 or code in COMING_UP


def offset_of(message):
    """Where an acknowledged record stands; -1: unknown, as of a duplicate of a batch that the broker has forgotten."""
    offset = message.offset()
    return -1 if offset is None else max(-1, offset)


class Stopping(threading.Thread):
    """A client's thread; what it raises is kept for the test."""

    def __init__(self, workload, name):
        super().__init__(name=name, daemon=True)
        self.workload = workload
        self.process = name
        self.error = None
        self.stopping = threading.Event()

    def run(self):
        try:
            self.work()
        except (KafkaException, SystemError) as error:
            # SystemError: how confluent-kafka trips over a fatal error, and over what a callback of ours raised.
            self.workload.complain(f"{self.process}: {error}")
        except Exception as error:  # noqa: BLE001 - raised again by `end`
            self.error = error

    def end(self):
        self.stopping.set()
        self.join(2 * FINAL_TIMEOUT_S)  # it may wait once for that long itself
        if self.is_alive():
            frame = sys._current_frames().get(self.ident)
            where = "".join(traceback.format_stack(frame)) if frame else "nowhere"
            raise AssertionError(f"{self.name} does not end; it is at\n{where}")
        if self.error is not None:
            raise self.error


class ProducerLoop(Stopping):
    """Sends ``rate`` records a second or fewer to the places in turn; ``padding`` bytes make them larger.

    A place is (topic, partition, whether its records have keys).
    """

    def __init__(self, workload, name, rate, padding, places):
        super().__init__(workload, name)
        self.places = places
        self.pause_s = 1 / rate
        self.padding = "." * padding
        self.acknowledged = 0
        self.producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": workload.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": 5000,
                "error_cb": self.failed,
            }
        )

    def failed(self, error):
        if error.fatal():
            self.workload.complain(f"{self.process}: {error}")

    def work(self):
        workload, number, next_s = self.workload, 0, time.monotonic()
        while not self.stopping.is_set():
            value = f"{self.process}-{number:06}"
            topic, partition, keyed = self.places[number % len(self.places)]
            key = f"k{number * 7919 % KEYS}" if keyed else ""
            operation = workload.history.send(self.process, topic, partition, value, key=key)
            self.producer.produce(
                topic,
                f"{value}{self.padding}",
                key or None,
                partition=partition,
                on_delivery=lambda error, message, operation=operation: self.delivered(operation, error, message),
            )
            number += 1
            next_s += self.pause_s
            while (left := next_s - time.monotonic()) > 0:
                self.producer.poll(left)
        self.producer.flush(FINAL_TIMEOUT_S)  # what is not delivered by then stays unknown

    def delivered(self, operation, error, message):
        if error is None:
            self.workload.history.sent(operation, Outcome.OK, offset_of(message))
            self.workload.acknowledged_at(operation)
            self.acknowledged += 1
            return
        self.workload.history.sent(operation, Outcome.INFO)
        if error.fatal() or error.code() not in (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE):
            self.workload.complain(f"{self.process}: {operation.value}: {error}")


class Reader(Stopping):
    """Reads every partition from the start and goes on through every crash, never set back."""

    def __init__(self, workload, name, **settings):
        super().__init__(workload, name)
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": workload.bootstrap,
                "group.id": f"{name}-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                **settings,
            }
        )
        self.next_offsets = defaultdict(int)  # by (topic, partition)

    def work(self):
        places = [TopicPartition(topic, i, OFFSET_BEGINNING) for topic, i in self.workload.main_places]
        self.workload.history.reset(self.process, [(p.topic, p.partition) for p in places])
        self.consumer.assign(places)
        while not self.stopping.is_set():
            self.take()
        self.consumer.close()

    def take(self, group=""):
        records = defaultdict(list)
        for message in self.consumer.consume(500, 0.1):
            if message.error() is None:
                value = message.value().decode().rstrip(".")
                place = (message.topic(), message.partition())
                records[place].append((message.offset(), value))
                self.next_offsets[place] = message.offset() + 1
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                self.workload.complain(f"{self.process}: {message.error()}")
        for place, got in records.items():
            self.workload.history.polled(self.process, *place, got, group=group)
        return bool(records)


class Member(Reader):
    """One member of a group: commits what it was given, and waits for the answer."""

    def __init__(self, workload, name, protocol):
        own = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if protocol == CLASSIC else {}
        settings = {"group.id": GROUPS[protocol], "group.protocol": protocol, "auto.offset.reset": "earliest", **own}
        super().__init__(workload, name, **settings)
        self.group = GROUPS[protocol]

    def assigned(self, consumer, places):
        self.next_offsets.clear()
        self.workload.history.reset(self.process, [(p.topic, p.partition) for p in places])

    def work(self):
        self.consumer.subscribe([self.workload.topic], on_assign=self.assigned, on_revoke=self.revoked)
        while not self.stopping.is_set():
            if self.take(group=self.group):
                self.commit()
        self.consumer.close()

    def revoked(self, consumer, places):
        self.next_offsets.clear()

    def commit(self):
        history = self.workload.history
        asked = {p: history.commit(self.process, self.group, *p, o) for p, o in self.next_offsets.items()}
        try:
            done = self.consumer.commit(
                offsets=[TopicPartition(*p, o.next_offset) for p, o in asked.items()], asynchronous=False
            )
        except KafkaException:
            return  # it may or may not stand
        for place in done:
            if place.error is None:
                history.done(asked[place.topic, place.partition], Outcome.OK)


class TopicChurn(Stopping):
    """Creates a topic, fills it, reads it whole and deletes it, over and over."""

    def __init__(self, workload, name):
        super().__init__(workload, name)
        self.producer = ProducerLoop(workload, f"{name}-p", 1, 100, ()).producer
        self.kept = set()
        """Topics that were created and not deleted."""

    def work(self):
        number = 0
        while not self.stopping.wait(0.2):
            self.live(f"{self.workload.topic}-churn-{number:04}")
            number += 1

    def live(self, topic):
        if not self.change(topic, exists=True):
            return
        self.kept.add(topic)
        sends = [self.send(topic, number) for number in range(20)]
        self.producer.flush(FINAL_TIMEOUT_S)
        if self.read(topic, sends):
            self.kept.remove(topic)
            self.change(topic, exists=False)

    def send(self, topic, number):
        workload, value = self.workload, f"{topic}-{number}"
        operation = workload.history.send(topic, topic, 0, value)

        def delivered(error, message):
            if error is None:
                workload.history.sent(operation, Outcome.OK, offset_of(message))
            elif error.fatal():
                workload.complain(f"{self.process}: {value}: {error}")

        self.producer.produce(topic, value, partition=0, on_delivery=delivered)
        return operation

    def read(self, topic, sends):
        """Reads up to the last acknowledged record; False if there is no time for it any more."""
        reader = Reader(self.workload, f"{topic}-reader")
        reader.consumer.assign([TopicPartition(topic, 0, 0)])
        end = max((send.offset for send in sends if send.outcome is Outcome.OK), default=-1) + 1
        try:
            while reader.next_offsets[topic, 0] < end and not self.stopping.is_set():
                reader.take()
        finally:
            reader.consumer.close()
        return reader.next_offsets[topic, 0] >= end

    def change(self, topic, *, exists):
        """Has it done, asking again until it is; False if there is no time for it any more."""
        workload = self.workload
        operation = workload.history.change_topic(topic, exists=exists)
        already = KafkaError.TOPIC_ALREADY_EXISTS if exists else KafkaError.UNKNOWN_TOPIC_OR_PART
        asked_before = False
        while not self.stopping.is_set():
            if exists:
                future = workload.admin.create_topics([NewTopic(topic, 2)], request_timeout=5)[topic]
            else:
                future = workload.admin.delete_topics([topic], request_timeout=5)[topic]
            try:
                future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code != already or not asked_before:
                    if not nobody_knows(code) or code == already:
                        workload.complain(f"{self.process}: {topic}: {error}")
                        return False
                    asked_before = True
                    self.stopping.wait(0.1)
                    continue
            workload.history.done(operation, Outcome.OK)
            return True
        return False


class Trimmer(Stopping):
    """Deletes all but the last records of a partition, again and again."""

    def __init__(self, workload, name, place):
        super().__init__(workload, name)
        self.place = place

    def work(self):
        workload, before = self.workload, 0
        while not self.stopping.wait(0.3):
            upto = workload.highest[self.place] - 50
            if upto <= before:
                continue
            before = upto
            operation = workload.history.trim(*self.place, before)
            asked = TopicPartition(*self.place, before)
            try:
                start = workload.admin.delete_records([asked], request_timeout=5)[asked].result().low_watermark
            except KafkaException as error:
                if not nobody_knows(error.args[0].code()):
                    workload.complain(f"{self.process}: before {before}: {error}")
                continue
            workload.history.done(operation, Outcome.OK)
            if start != before:
                workload.complain(f"{self.process}: asked to delete before {before}, the log starts at {start}")
