"""What grows with what, on one broker: CPU, memory, descriptors and disk of each thing that clients can make many of.

    make bench-scale [ARGS="--partitions 1000,10000 --only partitions"]

For each number of partitions a fresh broker is started: partitions are created, left idle, given a record each, read by
ten groups with a fetch session over all of them, committed by them; the broker is stopped, started, killed and started
again, and every record is read back. Two numbers of partitions show whether a figure grows faster than linear: the
table has what one partition costs at each of them.

The other things (`bench.scale_things`: connections, topics, groups, members, producer ids, transactional ids, segments)
are added to one broker in two steps, and each step is reported apart: the second one costs no more for each thing than
the first.

What the brokers hold is read from ``/proc`` (PSS, descriptors) and from the data directory (allocated blocks). Figures
are written to ``.cache/bench/scale.json`` with the load average of their time.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Producer

from bench import processes, raw, report, scale_cluster, scale_things
from bench.processes import wait_for_rest
from bench.raw import UnexpectedAnswer, compact_string, read_uvarint, uvarint
from bench.subjects import subject
from bench.tail_load import commit_errors, commit_request, wait_coordinator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.subjects import Subject

OUTPUT: Final = Path(".cache/bench")
TOPIC_PARTITIONS: Final = 625
"""Partitions of each topic."""
GROUPS: Final = 10
IDLE_S: Final = 10.0
REST_S: Final = 60.0
SILENT_S: Final = 30.0
VALUE: Final = b"one"
PARTS: Final = ("partitions", "things", "clusters")

Figures = dict[str, float]


class Held(NamedTuple):
    """What all processes of a broker hold at one moment."""

    memory_bytes: int
    descriptors: int
    disk_bytes: int

    @classmethod
    def of(cls, broker: Subject) -> Held:
        """Looks once the broker has nothing left to do."""
        wait_for_rest(broker.pid, REST_S, 1.0)
        disk = processes.allocated_bytes(broker.data_directory)
        return cls(processes.pss_bytes(broker.pid), processes.descriptors(broker.pid), disk)

    def figures(self, name: str) -> Figures:
        """As figures of a moment called ``name``."""
        return {
            f"{name}: MB": self.memory_bytes / 1e6,
            f"{name}: descriptors": self.descriptors,
            f"{name}: disk, MB": self.disk_bytes / 1e6,
        }


class Clock:
    """Seconds, and CPU seconds of a broker, since it was made."""

    def __init__(self, broker: Subject) -> None:
        self._broker = broker
        self._seconds, self._cpu_s = time.monotonic(), broker.cpu_seconds()

    def figures(self, name: str) -> Figures:
        """As figures of what was done meanwhile."""
        seconds = time.monotonic() - self._seconds
        wait_for_rest(self._broker.pid, REST_S)
        return {f"{name}: s": seconds, f"{name}: CPU s": self._broker.cpu_seconds() - self._cpu_s}


def idle(broker: Subject, name: str) -> Figures:
    """Per cent of a core over some seconds without a request."""
    wait_for_rest(broker.pid, REST_S, 1.0)
    cpu_s, begun = broker.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_S)
    return {f"{name}: % of a core": 100 * (broker.cpu_seconds() - cpu_s) / (time.monotonic() - begun)}


def topics_of(partitions: int) -> dict[str, int]:
    """Names and sizes of the topics that have so many partitions together."""
    whole, rest = divmod(partitions, TOPIC_PARTITIONS)
    sizes = [TOPIC_PARTITIONS] * whole + ([rest] if rest else [])
    return {f"scale-{number:03d}": size for number, size in enumerate(sizes)}


def one_record_each(bootstrap: str, topics: dict[str, int]) -> None:
    """A record in every partition, each acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    failed: list[str] = []

    def delivered(error: object, message: object) -> None:
        _ = message
        if error is not None:
            failed.append(str(error))

    for topic, count in topics.items():
        for partition in range(count):
            producer.produce(topic, VALUE, partition=partition, on_delivery=delivered)
            producer.poll(0)
    if producer.flush(300) or failed:
        raise UnexpectedAnswer(f"records were not acknowledged: {failed[:1]}")


class Session:
    """An incremental fetch session of one group over all partitions of some topics; Fetch, version 12."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        self._caller = raw.Caller(bootstrap, 300.0)
        self._topics = topics
        self.number = 0
        """What the broker calls it; 0 if there is none."""
        self._epoch = 0
        self._read: dict[str, set[int]] = {name: set() for name in topics}

    def close(self) -> None:
        self._caller.close()

    def read_all(self) -> None:
        """Opens the session, and asks until the only record of each partition was answered.

        Raises:
            UnexpectedAnswer: an answer has an error, or nothing new comes for `SILENT_S`.
        """
        moved: dict[str, set[int]] | None = None
        left = sum(self._topics.values())
        news_s = time.monotonic()
        while left:
            moved = self.ask(moved)
            new = sum(map(len, moved.values()))
            if new:
                news_s = time.monotonic()
            elif time.monotonic() - news_s > SILENT_S:
                raise UnexpectedAnswer(f"{left} records of {sum(self._topics.values())} were not answered")
            left -= new

    def ask(self, moved: dict[str, set[int]] | None, max_wait_ms: int = 1000) -> dict[str, set[int]]:
        """One request, with the partitions whose position has changed (None: all of them, at offset 0). Returns the
        partitions that had a record that was not read before.
        """
        body = struct.pack(">iiiibii", -1, max_wait_ms, 1, 64 << 20, 0, self.number, self._epoch)
        if moved is None:
            asked = [(name, range(count), 0) for name, count in self._topics.items()]
        else:
            asked = [(name, sorted(numbers), 1) for name, numbers in moved.items() if numbers]
        body += uvarint(len(asked) + 1)
        for name, numbers, offset in asked:
            body += compact_string(name) + uvarint(len(numbers) + 1)
            for partition in numbers:
                body += struct.pack(">iiqiqi", partition, -1, offset, -1, -1, 1 << 16) + b"\0"
            body += b"\0"
        return self._take(memoryview(self._caller.call(raw.frame(raw.FETCH, 12, body + b"\1\1\0"))))

    def _take(self, frame: memoryview) -> dict[str, set[int]]:
        error, session = struct.unpack_from(">hi", frame, 9)
        if error or (self._epoch and session != self.number):
            raise UnexpectedAnswer(f"fetch: error {error}, session {session} after {self.number}")
        self.number, self._epoch = session, self._epoch + 1
        topics, at = read_uvarint(frame, 15)
        found: dict[str, set[int]] = {}
        for _ in range(topics - 1):
            length, at = read_uvarint(frame, at)
            name = bytes(frame[at : at + length - 1]).decode()
            count, at = read_uvarint(frame, at + length - 1)
            new = found.setdefault(name, set())
            for _ in range(count - 1):
                partition, error, _, _, _ = struct.unpack_from(">ihqqq", frame, at)
                if error:
                    raise UnexpectedAnswer(f"fetch of {name}, partition {partition}: error {error}")
                _, at = read_uvarint(frame, at + 30)
                length, at = read_uvarint(frame, at + 4)
                if length > 1 and partition not in self._read[name]:
                    new.add(partition)
                at += max(0, length - 1) + 1
            self._read[name] |= new
            at += 1
        return found


def ten_groups(broker: Subject, topics: dict[str, int]) -> Figures:
    """Ten sessions over all partitions: opening them reads each record; then idle requests; then commits of all."""
    before, clock = Held.of(broker), Clock(broker)
    sessions = [Session(broker.bootstrap, topics) for _ in range(GROUPS)]
    try:
        for session in sessions:
            session.read_all()
        figures = clock.figures("ten groups read all")
        clock = Clock(broker)
        for session in sessions:
            session.ask({}, 100)
        figures |= clock.figures("ten groups wait once")
        figures["one session: MB"] = (Held.of(broker).memory_bytes - before.memory_bytes) / 1e6 / GROUPS
    finally:
        for session in sessions:
            session.close()
    with raw.Caller(broker.bootstrap, 300.0) as caller:
        name = next(iter(topics))
        for number in range(GROUPS):
            wait_coordinator(caller, f"group-{number}", name, 1)
        before, clock = Held.of(broker), Clock(broker)
        for number in range(GROUPS):
            for name, count in topics.items():
                errors = {*commit_errors(bytes(caller.call(commit_request(f"group-{number}", name, [1] * count))))}
                if errors != {0}:
                    raise UnexpectedAnswer(f"commit of group-{number}: errors {sorted(errors)}")
    figures |= clock.figures("ten groups commit all")
    figures["one group's offsets: MB"] = (Held.of(broker).memory_bytes - before.memory_bytes) / 1e6 / GROUPS
    return figures


def starts(broker: Subject, topics: dict[str, int]) -> Figures:
    """Seconds from a process to the first answer, after a stop and after kill -9; every record is read back."""
    figures: Figures = {}
    for name, kill in (("restart", False), ("restart after kill -9", True)):
        broker.end(kill=kill)
        begun = time.monotonic()
        broker.start()
        session = Session(broker.bootstrap, topics)
        session.read_all()
        figures |= {f"{name}, until all was read: s": time.monotonic() - begun}
        figures |= {f"{name}: CPU s": broker.cpu_seconds()}
        session.close()
    return figures | Held.of(broker).figures("after restart")


def many_partitions(partitions: int) -> Figures:
    """The figures of a fresh broker with so many partitions."""
    topics = topics_of(partitions)
    with subject("scale", 1) as broker:
        figures = Held.of(broker).figures("empty")
        clock = Clock(broker)
        with raw.Caller(broker.bootstrap, 300.0) as caller:
            for name, count in topics.items():
                caller.create_topics({name: count})
        figures |= clock.figures("create") | Held.of(broker).figures("created") | idle(broker, "idle")
        clock = Clock(broker)
        one_record_each(broker.bootstrap, topics)
        figures |= clock.figures("a record each") | Held.of(broker).figures("a record each")
        figures |= idle(broker, "idle with a record each") | ten_groups(broker, topics)
        figures |= Held.of(broker).figures("after ten groups") | starts(broker, topics)
    return figures


def sizes_of(text: str) -> list[int]:
    """The numbers of an option."""
    return [int(part) for part in text.split(",")]


def table(found: dict[int, Figures], things: str) -> list[str]:
    """Lines of Markdown: each figure at each number of things."""
    sizes = sorted(found)
    lines = [f"| {things} | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    return lines + [
        f"| {name} | " + " | ".join(_figure(found[size][name]) for size in sizes) + " |" for name in found[sizes[0]]
    ]


def _figure(value: float) -> str:
    """A number as a table has it: counts have no decimals."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}: {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``make bench-scale``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--partitions", default="1000,10000", metavar="COUNT,…", help="numbers of partitions (1000,10000)"
    )
    parser.add_argument("--brokers", default="30,100", metavar="COUNT,…", help="brokers of clusters (30,100)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,…", help="of " + ", ".join(PARTS))
    given = parser.parse_args(arguments)
    parts = given.only.split(",")
    if set(parts) - set(PARTS):
        parser.error(f"--only takes parts of {', '.join(PARTS)}")
    document: dict[str, Any] = {"about": report.machine(), "load before": os.getloadavg()[0]}
    lines: list[str] = []
    if "partitions" in parts:
        found: dict[int, Figures] = {}
        for size in sizes_of(given.partitions):
            _tell(f"{size} partitions")
            found[size] = many_partitions(size)
        document["partitions"] = found
        lines += table(found, "partitions")
    if "things" in parts:
        document["things"] = things = scale_things.measure(_tell)
        lines += ["", *scale_things.table(things)]
    if "clusters" in parts:
        found = {size: scale_cluster.measure(size, scale_cluster.PARTITIONS, _tell) for size in sizes_of(given.brokers)}
        document["clusters"] = found
        lines += ["", *table(found, "brokers")]
    document["load after"] = os.getloadavg()[0]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "scale.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
