"""Load that lives through crashes of its broker, and writes down what it saw.

Idempotent producers with unique values on several partitions, two members of a group that commit, and a reader that
only reads on, all kept alive while the broker dies and comes back on the same port. With ``mixed`` there are also a
group of the next protocol, topics that are created, filled, read and deleted, and three partitions on the side: one
whose first records are deleted on request, one by retention, and one that is compacted.

`Workload.finish` reads everything once more and gives the history to the checker. Nothing waits for time to pass:
producers pace themselves on their own event queue, the end is reached when all of it is read. What a client reports in
so many words as lost (an offset that is no longer there, an idempotent producer that lost its state) is an anomaly of
its own kind, collected in `complaints`.
"""

import gc
import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from crash_clients import (
    CLASSIC,
    FINAL_TIMEOUT_S,
    GROUPS,
    NEXT,
    QUIET,
    Member,
    ProducerLoop,
    Reader,
    TopicChurn,
    Trimmer,
)

from millstream.testing.history import History, LogStart, Outcome, TopicChange
from millstream.testing.history_check import verify

PROGRESS_TIMEOUT_S = 150
TRIMMED, SHORT, COMPACTED = "crash-trimmed", "crash-short", "crash-compacted"
SIDE_TOPICS = {
    TRIMMED: {},
    SHORT: {"retention.bytes": "50000"},
    COMPACTED: {"cleanup.policy": "compact"},
}


class Complaint(AssertionError):
    """What clients said of the broker, in their words."""

    def __init__(self, complaints):
        super().__init__("; ".join(complaints[:10]))


class NoProgress(AssertionError):
    """Nothing is acknowledged any more."""


class Workload:
    """All clients of one run. ``bootstrap`` must stay the same over restarts of the broker."""

    def __init__(self, bootstrap, topic, partitions, *, producers=2, members=2, rate=400, padding=0, mixed=False):
        self.bootstrap = bootstrap
        self.topic = topic
        self.main_places = [(topic, partition) for partition in range(partitions)]
        self.side_places = [(side, 0) for side in SIDE_TOPICS] if mixed else []
        self.protocols = [CLASSIC, NEXT] if mixed else [CLASSIC]
        self.history = History()
        self.complaints = []
        self.progress = threading.Condition()
        self.acknowledged = 0
        self.highest = defaultdict(int)
        """The highest acknowledged offset, by (topic, partition)."""

        self.admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        main = [(*place, False) for place in self.main_places]
        self.producers = [ProducerLoop(self, f"p{i}", rate, padding, main) for i in range(producers)]
        self.churn = None
        self.threads = [Member(self, f"m{i}", CLASSIC) for i in range(members)]
        if mixed:
            side = [(topic, partition, topic == COMPACTED) for topic, partition in self.side_places]
            self.producers.append(ProducerLoop(self, "side", rate // 2, padding, side))
            self.churn = TopicChurn(self, "churn")
            self.threads += [self.churn, Trimmer(self, "trimmer", (TRIMMED, 0))]
            self.threads += [Member(self, f"n{i}", NEXT) for i in range(members)]
        self.threads = [*self.producers, *self.threads, Reader(self, "tail")]

    def start(self):
        if self.side_places:
            topics = [NewTopic(name, 1, config=config) for name, config in SIDE_TOPICS.items()]
            for future in self.admin.create_topics(topics).values():
                future.result()
        for thread in self.threads:
            thread.start()

    def acknowledged_at(self, send):
        """A record is in the log, as the broker says."""
        place = (send.place.topic, send.place.partition)
        with self.progress:
            self.acknowledged += 1
            self.highest[place] = max(send.offset, self.highest[place])
            self.progress.notify_all()

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

    def ask(self):
        """Asks the broker what the groups have committed, which topics there are and where logs start."""
        for protocol in self.protocols:
            self.ask_committed(GROUPS[protocol])
        began = time.monotonic_ns()
        names = answered(lambda: self.admin.list_topics(timeout=60)).topics
        self.history.topics_seen(names, began_ns=began)
        asking = Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": "unused"})
        for place in self.side_places:
            began = time.monotonic_ns()
            asked = TopicPartition(*place)
            start, _ = answered(lambda asked=asked: asking.get_watermark_offsets(asked, 30, cached=False))
            self.history.log_start(*place, start, began_ns=began)
        asking.close()

    def ask_committed(self, group):
        places = [TopicPartition(*place) for place in self.main_places]
        asking = Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": group})
        began = time.monotonic_ns()
        for place in answered(lambda: asking.committed(places, timeout=60)):
            offset = max(-1, place.offset)
            self.history.committed(group, place.topic, place.partition, offset, began_ns=began)
        asking.close()

    def finish(self):
        """Ends the clients, reads everything once more and judges; the broker must be up."""
        if self.complaints:  # a producer with a fatal error delivers nothing any more
            for producer in self.producers:
                producer.producer.purge()
        for thread in self.threads:
            thread.end()
        self.read_everything()
        self.ask()
        starts = {said.place: said.offset for said in self.history.operations if isinstance(said, LogStart)}
        verify(self.history, log_starts=starts)
        if self.complaints:
            raise Complaint(self.complaints)

    def give_up(self):
        """Ends what still runs, without judging, and the clients with it: they would look for their broker for ever."""
        self._end()
        self.threads, self.producers, self.churn, self.admin = [], [], None, None
        gc.collect()  # a client's callbacks make cycles

    def _end(self):
        for thread in self.threads:
            thread.stopping.set()
        for producer in self.producers:
            producer.producer.purge()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(5)

    def topics_changed(self):
        """How many topics were created or deleted, as the broker acknowledged."""
        operations = self.history.operations
        return sum(isinstance(one, TopicChange) and one.outcome is Outcome.OK for one in operations)

    def read_everything(self):
        kept = [(topic, 0) for topic in self.churn.kept] if self.churn else []
        for places, reset in ((self.main_places + kept, "error"), (self.side_places, "earliest")):
            reader = Reader(self, f"final-{reset}", **{"auto.offset.reset": reset})
            asked = [TopicPartition(*place) for place in places]
            ranges = {(p.topic, p.partition): reader.consumer.get_watermark_offsets(p, 30, cached=False) for p in asked}
            wanted = {place: end for place, (start, end) in ranges.items() if end > start}
            reader.consumer.assign([TopicPartition(*place, ranges[place][0]) for place in wanted])
            deadline = time.monotonic() + FINAL_TIMEOUT_S
            while any(reader.next_offsets[place] < end for place, end in wanted.items()):
                reader.take()
                if time.monotonic() > deadline:
                    raise AssertionError(f"read up to {dict(reader.next_offsets)} of {wanted}")
            reader.consumer.close()


def answered(ask):
    """The answer of a broker that has just come up: a coordinator may still be loading, a leader not be there yet."""
    deadline = time.monotonic() + FINAL_TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
