"""Things that clients make many of, added to one broker in two equal steps: what one more of each costs.

A second step that costs more for each thing than the first grows faster than linear. Memory is PSS of all processes of
the broker, so a step smaller than a megabyte says little; counts are chosen so that it is larger where a thing costs
anything at all.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c

from bench import processes, raw
from bench.processes import wait_for_rest
from bench.raw import UnexpectedAnswer, compact_string, uvarint
from bench.subjects import subject
from bench.tail_load import wait_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.subjects import Subject

STEPS: Final = 2
REST_S: Final = 60.0
SEGMENT_BYTES: Final = 4 << 10
SMALL: Final = {"internal.segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
API_VERSIONS, INIT_PRODUCER_ID, GROUP_HEARTBEAT = 18, 22, 68
_BATCH = raw.BATCH_HEADER


class Step(NamedTuple):
    """What ``count`` more things cost."""

    things: int
    seconds: float
    cpu_s: float
    memory_bytes: int
    descriptors: int
    disk_bytes: int


class Things:
    """One broker to which things are added; each method adds those with the numbers ``first`` to ``first + count``.

    Lifecycle: connections that are opened stay open until `close`.
    """

    def __init__(self, broker: Subject) -> None:
        self._broker = broker
        self._caller = raw.Caller(broker.bootstrap, 300.0)
        self._held: list[socket.socket | raw.Caller] = []
        self._caller.create_topics({"things": 16})
        wait_coordinator(self._caller, "things", "things", 1)

    def close(self) -> None:
        """Ends all connections."""
        for one in (*self._held, self._caller):
            one.close()

    def connections(self, first: int, count: int) -> None:
        """Idle connections, each after one ApiVersions request."""
        _ = first
        for _ in range(count):
            caller = raw.Caller(self._broker.bootstrap)
            self._held.append(caller)
            caller.call(
                struct.pack(">ihhih", 10 + len(raw.CLIENT_ID), API_VERSIONS, 0, 0, len(raw.CLIENT_ID)) + raw.CLIENT_ID
            )

    def sessions(self, first: int, count: int) -> None:
        """Fetch sessions over 16 empty partitions, all opened by one connection."""
        _ = first
        for _ in range(count):
            body = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, 0) + b"\2" + compact_string("things") + uvarint(17)
            for partition in range(16):
                body += struct.pack(">iiqiqi", partition, -1, 0, -1, -1, 1 << 16) + b"\0"
            frame = self._caller.call(raw.frame(raw.FETCH, 12, body + b"\0\1\1\0"))
            error, session = struct.unpack_from(">hi", frame, 9)
            if error or not session:
                raise UnexpectedAnswer(f"fetch: error {error}, session {session}")

    def topics(self, first: int, count: int) -> None:
        """Topics of one partition, fifty a request."""
        for begin in range(first, first + count, 50):
            self._caller.create_topics({f"one-{number:05d}": 1 for number in range(begin, begin + 50)})

    def groups(self, first: int, count: int) -> None:
        """Consumer groups of one member each."""
        for number in range(first, first + count):
            self._join(f"group-{number:05d}", f"member-{number:05d}")

    def members(self, first: int, count: int) -> None:
        """Members of one consumer group."""
        for number in range(first, first + count):
            self._join("crowd", f"member-{number:05d}")

    def _join(self, group: str, member: str) -> None:
        body = compact_string(group) + compact_string(member) + struct.pack(">i", 0) + b"\0\0"
        body += struct.pack(">i", 300_000) + b"\2" + compact_string("things") + b"\0\0\1\0"
        error = struct.unpack_from(">h", self._caller.call(raw.frame(GROUP_HEARTBEAT, 1, body)), 9)[0]
        if error:
            raise UnexpectedAnswer(f"joining {group}: error {error}")

    def producer_ids(self, first: int, count: int) -> None:
        """Idempotent producers, each with one record in partition 0."""
        _ = first
        for _ in range(count):
            producer_id, epoch = self._producer_id(None)
            self._caller.produce_one("things", 0, _numbered(producer_id, epoch))

    def transactional_ids(self, first: int, count: int) -> None:
        """Transactional ids without a transaction."""
        for number in range(first, first + count):
            self._producer_id(f"transactional-{number:05d}")

    def _producer_id(self, transactional_id: str | None) -> tuple[int, int]:
        name = b"\0" if transactional_id is None else compact_string(transactional_id)
        request = raw.frame(INIT_PRODUCER_ID, 4, name + struct.pack(">iqh", 60_000, -1, -1) + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if transactional_id is not None:
                find = b"\1" + b"\2" + compact_string(transactional_id) + b"\0"
                self._caller.call(raw.frame(10, 4, find))
            _, error, producer_id, epoch = struct.unpack_from(">ihqh", self._caller.call(request), 5)
            if not error:
                return producer_id, epoch
            if error not in (14, 15, 16):  # its coordinator's topic is made at the first request
                raise UnexpectedAnswer(f"InitProducerId: error {error}")
        raise UnexpectedAnswer(f"InitProducerId of {transactional_id}: no coordinator")

    def segments(self, first: int, count: int) -> None:
        """Closed segments of one partition."""
        if not first:
            self._caller.create_topics({"segments": 1}, SMALL)
        self._fill("segments", count)

    def archived_segments(self, first: int, count: int) -> None:
        """Segments of a tiered topic that are in the object store, and locally, too."""
        if not first:
            self._caller.create_topics({"archived": 1}, SMALL | {"storage.mode": "tiered"})
        self._fill("archived", count)
        store = self._broker.data_directory / "store"
        deadline = time.monotonic() + 300
        while len([*store.rglob("*.seg*")]) < first + count - 1:
            if time.monotonic() > deadline:
                names = [str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()]
                raise UnexpectedAnswer(f"{len(names)} objects after 300 s, such as {names[:5]}")
            time.sleep(0.2)

    def _fill(self, topic: str, segments: int) -> None:
        batch = raw.batches(1, 1, SEGMENT_BYTES - 200)[0]
        for _ in range(segments):
            self._caller.produce_one(topic, 0, batch)


def _numbered(producer_id: int, epoch: int) -> bytes:
    """A batch of one record with sequence number 0."""
    plain = raw.batch([b"one"])
    fields = list(_BATCH.unpack_from(plain))
    fields[-4:-1] = [producer_id, epoch, 0]
    made = bytearray(_BATCH.pack(*fields) + plain[_BATCH.size :])
    struct.pack_into(">I", made, 17, crc32c.crc32c(made[21:]))
    return bytes(made)


COUNTS: Final = {
    "connections": 500,
    "sessions": 400,
    "topics": 500,
    "groups": 500,
    "members": 250,
    "producer_ids": 4000,
    "transactional_ids": 1000,
    "segments": 300,
    "archived_segments": 200,
}
"""Things a step."""


def measure(say: Callable[[str], None], counts: dict[str, int] = COUNTS) -> dict[str, list[Step]]:
    """Adds each kind of thing to a broker of its own, in two steps."""
    found: dict[str, list[Step]] = {}
    for name, count in counts.items():
        say(f"{STEPS} times {count} {name}")
        with subject("things", 1, start=False) as broker:
            broker.give({"objects.url": f"file://{broker.data_directory}/store"} if name == "archived_segments" else {})
            broker.start()
            things = Things(broker)
            try:
                found[name] = [_step(broker, getattr(things, name), number * count, count) for number in range(STEPS)]
            finally:
                things.close()
    return found


def _step(broker: Subject, add: Callable[[int, int], None], first: int, count: int) -> Step:
    before, cpu_s, begun = _held(broker), broker.cpu_seconds(), time.monotonic()
    add(first, count)
    seconds = time.monotonic() - begun
    after = _held(broker)
    grown = [new - old for new, old in zip(after, before, strict=True)]
    return Step(count, seconds, broker.cpu_seconds() - cpu_s, *grown)


def _held(broker: Subject) -> tuple[int, int, int]:
    wait_for_rest(broker.pid, REST_S, 1.0)
    disk = processes.allocated_bytes(broker.data_directory)
    return processes.pss_bytes(broker.pid), processes.descriptors(broker.pid), disk


def table(found: dict[str, list[Step]]) -> list[str]:
    """Lines of Markdown: what one thing costs, in each step."""
    heads = ("CPU, µs", "memory, bytes", "descriptors", "disk, bytes")
    lines = [f"| thing | a step | {' | '.join(heads)} |", "|---|---:|" + "---:|" * len(heads)]
    for name, steps in found.items():
        columns = zip(*((1e6 * s.cpu_s / s.things, s.memory_bytes / s.things, s.descriptors / s.things,
                         s.disk_bytes / s.things) for s in steps), strict=True)  # fmt: skip
        cells = [
            " / ".join(f"{value:,.2f}" if abs(value) < 10 else f"{value:,.0f}" for value in column)
            for column in columns
        ]
        lines.append(f"| {name.replace('_', ' ')} | {steps[0].things} | " + " | ".join(cells) + " |")
    return lines
