"""Consumer groups in lock step: one record to each partition, then each group fetches all of them, again and again.

On a schedule (``tail_load``) a faster broker answers more often, and with less in each answer, so that its cost a
record says little. Here an answer has one record of every partition, whichever broker gives it. A group is a connection
with an incremental fetch session, which asks when all records of the round are acknowledged.

Each answer is checked: every partition is in it, with one batch at the next offset and the content that was sent.
"""

import struct
import time
from collections.abc import Sequence

import crc32c

from bench import plain, processes, raw
from bench.raw import UnexpectedAnswer, compact_string, read_uvarint, uvarint
from bench.rows import Figures, Plan, Say
from bench.subjects import Subject

PARTITIONS = 128
GROUPS = 10
_MAX_BYTES = 8 << 20
_PARTITION_BYTES = 1 << 20
_PARTITION = struct.Struct(">ihqqq")
_CONTENT = 21  # where the part of a batch begins that the CRC is of


class Group:
    """One group's connection and session; its position is the same in every partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.caller = raw.Caller(bootstrap)
        self._topic = topic
        self._session, self._epoch = 0, 0
        self._position = 0

    def ask(self) -> None:
        """Sends the next request, which names every partition: all have moved."""
        body = struct.pack(">iiiibii", -1, 500, 1, _MAX_BYTES, 0, self._session, self._epoch)
        body += b"\2" + compact_string(self._topic) + uvarint(PARTITIONS + 1)
        for partition in range(PARTITIONS):
            body += struct.pack(">iiqiqi", partition, -1, self._position, -1, -1, _PARTITION_BYTES) + b"\0"
        self.caller.send(raw.frame(raw.FETCH, 12, body + b"\0\1\1\0"))

    def take(self, sent: Sequence[bytes]) -> None:
        """Receives the answer and checks it. ``sent`` has the batch of each partition."""
        frame = self.caller.receive()
        error, session = struct.unpack_from(">hi", frame, 9)
        if error or (self._epoch and session != self._session):
            raise UnexpectedAnswer(f"fetch of {self._topic}: error {error}, session {session}")
        self._session, self._epoch = session, self._epoch + 1
        topics, at = read_uvarint(frame, 15)
        length, at = read_uvarint(frame, at)
        count, at = read_uvarint(frame, at + length - 1)
        if topics != 2 or count != PARTITIONS + 1:
            raise UnexpectedAnswer(f"fetch of {self._topic}: {count - 1} partitions, {PARTITIONS} have a record")
        view = memoryview(frame)
        for _ in range(PARTITIONS):
            partition, error, *_ = _PARTITION.unpack_from(frame, at)
            _, at = read_uvarint(frame, at + _PARTITION.size)
            length, at = read_uvarint(frame, at + 4)
            end = at + length - 1
            (base,) = struct.unpack_from(">q", frame, at) if end - at >= 8 else (-1,)
            wanted = sent[partition]
            if error or base != self._position or crc32c.crc32c(view[at + _CONTENT : end]) != _crc(wanted):
                raise UnexpectedAnswer(f"fetch of {self._topic}, partition {partition}: not what was sent")
            at = end + 1
        self._position += 1


def _crc(batch: bytes) -> int:
    return int.from_bytes(batch[_CONTENT - 4 : _CONTENT], "big")


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Broker CPU a partition answered; what it takes to produce a record is divided among its ten answers."""
    batches = plain.content(1)
    with plain.topic(subject, PARTITIONS) as topic, raw.Caller(subject.bootstrap) as producer:
        groups = [Group(subject.bootstrap, topic) for _ in range(GROUPS)]
        layout = raw.produce_answer(topic)
        rounds = counted = 0
        begun_s = cpu_s = 0.0
        now = start = time.perf_counter()
        while now < start + plan.warm_s + 2 * plan.measured_s:
            if not begun_s and now >= start + plan.warm_s:
                begun_s, cpu_s, counted = now, processes.cpu_seconds(subject.pid), rounds
            sent = [batches[(rounds + partition) % len(batches)] for partition in range(PARTITIONS)]
            producer.send(b"".join(raw.produce(topic, partition, batch) for partition, batch in enumerate(sent)))
            for _ in range(PARTITIONS):
                answer = producer.receive()
                if len(answer) + 4 != layout.size:
                    raise UnexpectedAnswer(f"produce to {topic}: {bytes(answer[:80])!r}")
            for group in groups:
                group.ask()
            for group in groups:
                group.take(sent)
            rounds += 1
            now = time.perf_counter()
            say(f"round {rounds}")
        cpu_s = processes.cpu_seconds(subject.pid) - cpu_s
        for group in groups:
            group.caller.close()
    answered = (rounds - counted) * PARTITIONS * GROUPS
    return {"answered_us": 1e6 * cpu_s / answered, "rounds_per_s": (rounds - counted) / (now - begun_s)}
