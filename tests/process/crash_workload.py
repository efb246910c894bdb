"""Load that lives through crashes of its broker, and writes down what it saw.

Idempotent producers with unique values on several partitions, two members of a group that commit, and a reader that
only reads on, all with confluent-kafka and all kept alive while the broker dies and comes back on the same port.
`Workload.finish` reads everything once more and gives the history to the checker. Nothing waits for time to pass:
producers pace themselves on their own event queue, the end is reached when all of it is read.

What a client reports in so many words as lost (an offset that is no longer there, an idempotent producer that lost
its state) is an anomaly of its own kind, collected in `complaints`.
"""

import sys
import threading
import time
import traceback
from collections import defaultdict

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from millstream.testing.history import History, Outcome
from millstream.testing.history_check import verify

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
GROUP = "crash-group"
FINAL_TIMEOUT_S = 60
PROGRESS_TIMEOUT_S = 30


class Complaint(AssertionError):
    """What clients said of the broker, in their words."""

    def __init__(self, complaints):
        super().__init__("; ".join(complaints[:10]))


class NoProgress(AssertionError):
    """Nothing is acknowledged any more."""


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
        except (KafkaException, SystemError) as error:  # SystemError: how confluent-kafka trips over a fatal error
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
    """Sends ``rate`` records a second or fewer, partitions in turn; ``padding`` bytes make them larger."""

    def __init__(self, workload, name, rate, padding):
        super().__init__(workload, name)
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
            partition = number % workload.partitions
            operation = workload.history.send(self.process, workload.topic, partition, value)
            self.producer.produce(
                workload.topic,
                f"{value}{self.padding}",
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
            self.workload.history.sent(operation, Outcome.OK, max(-1, message.offset()))
            with self.workload.progress:
                self.acknowledged += 1
                self.workload.progress.notify_all()
            return
        self.workload.history.sent(operation, Outcome.INFO)
        if error.fatal() or error.code() not in (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE):
            self.workload.complain(f"{self.process}: {operation.value}: {error}")


class Reader(Stopping):
    """Reads every partition from the start and goes on through every crash, never set back."""

    def __init__(self, workload, name):
        super().__init__(workload, name)
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": workload.bootstrap,
                "group.id": f"{name}-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )
        self.next_offsets = defaultdict(int)

    def work(self):
        places = [TopicPartition(self.workload.topic, i, OFFSET_BEGINNING) for i in range(self.workload.partitions)]
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
                records[message.partition()].append((message.offset(), value))
                self.next_offsets[message.partition()] = message.offset() + 1
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                self.workload.complain(f"{self.process}: {message.error()}")
        for partition, got in records.items():
            self.workload.history.polled(self.process, self.workload.topic, partition, got, group=group)
        return bool(records)


class Member(Reader):
    """One member of the group: commits what it was given, and waits for the answer."""

    def __init__(self, workload, name):
        super().__init__(workload, name)
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": workload.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
            }
        )

    def assigned(self, consumer, places):
        self.next_offsets.clear()
        self.workload.history.reset(self.process, [(p.topic, p.partition) for p in places])

    def work(self):
        self.consumer.subscribe([self.workload.topic], on_assign=self.assigned, on_revoke=self.revoked)
        while not self.stopping.is_set():
            if self.take(group=GROUP):
                self.commit()
        self.consumer.close()

    def revoked(self, consumer, places):
        self.next_offsets.clear()

    def commit(self):
        history, topic = self.workload.history, self.workload.topic
        asked = {p: history.commit(self.process, GROUP, topic, p, o) for p, o in self.next_offsets.items()}
        try:
            done = self.consumer.commit(
                offsets=[TopicPartition(topic, p, o.next_offset) for p, o in asked.items()], asynchronous=False
            )
        except KafkaException:
            return  # it may or may not stand
        for place in done:
            if place.error is None:
                history.done(asked[place.partition], Outcome.OK)


class Workload:
    """All clients of one run. ``bootstrap`` must stay the same over restarts of the broker."""

    def __init__(self, bootstrap, topic, partitions, *, producers=2, members=2, rate=400, padding=0):
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.history = History()
        self.complaints = []
        self.progress = threading.Condition()
        self.producers = [ProducerLoop(self, f"p{i}", rate, padding) for i in range(producers)]
        self.threads = [*self.producers, *(Member(self, f"m{i}") for i in range(members)), Reader(self, "tail")]

    def start(self):
        for thread in self.threads:
            thread.start()

    @property
    def acknowledged(self):
        return sum(producer.acknowledged for producer in self.producers)

    def complain(self, what):
        """A client says in so many words that the broker broke a promise."""
        with self.progress:
            self.complaints.append(what)
            self.progress.notify_all()

    def wait_progress(self, records, timeout_s=PROGRESS_TIMEOUT_S):
        """Returns when that many more records were acknowledged; raises when none come any more."""
        goal = self.acknowledged + records
        with self.progress:
            if not self.progress.wait_for(lambda: self.acknowledged >= goal or self.complaints, timeout_s):
                raise NoProgress(f"no acknowledgement in {timeout_s} s; {self.acknowledged} of {goal}")
        self.alive()

    def alive(self):
        """Raises what a client's thread has raised, or complained of: then there is no need to go on."""
        for thread in self.threads:
            if thread.error is not None:
                raise thread.error
        if self.complaints:
            raise Complaint(self.complaints)

    def ask_committed(self):
        """Asks the broker what the group has committed, and writes the answer down."""
        places = [TopicPartition(self.topic, i) for i in range(self.partitions)]
        asking = Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": GROUP})
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        while True:
            began = time.monotonic_ns()
            try:
                answer = asking.committed(places, timeout=30)
                break
            except KafkaException:  # its coordinator is still loading, or not there yet
                if time.monotonic() > deadline:
                    raise
        for place in answer:
            self.history.committed(GROUP, self.topic, place.partition, max(-1, place.offset), began_ns=began)
        asking.close()

    def finish(self):
        """Ends the clients, reads everything once more and judges; the broker must be up."""
        if self.complaints:  # a producer with a fatal error delivers nothing any more
            for producer in self.producers:
                producer.producer.purge()
        for thread in self.threads:
            thread.end()
        self.read_everything()
        self.ask_committed()
        verify(self.history)
        if self.complaints:
            raise Complaint(self.complaints)

    def give_up(self):
        """Ends what still runs, without judging."""
        for thread in self.threads:
            thread.stopping.set()
        for producer in self.producers:
            producer.producer.purge()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(5)

    def read_everything(self):
        reader = Reader(self, "final")
        places = [TopicPartition(self.topic, i, 0) for i in range(self.partitions)]
        ends = {p.partition: reader.consumer.get_watermark_offsets(p, 30, cached=False)[1] for p in places}
        reader.consumer.assign(places)
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        while any(reader.next_offsets[partition] < end for partition, end in ends.items()):
            reader.take()
            if time.monotonic() > deadline:
                raise AssertionError(f"read up to {dict(reader.next_offsets)} of {ends}")
        reader.consumer.close()
