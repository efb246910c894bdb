"""Consumer groups that read the tail of a topic while :mod:`bench.schedule` writes to it.

    python -m bench.tail_load      (started by :class:`Tail`, see ``child``)

A group here is what a group of one member is to a broker: a connection with an incremental fetch session over all
partitions that asks again as soon as an answer is there, as clients do by default (1 byte, 500 ms), and another one
that commits what was read, every five seconds and at the end, under the group's name. Latency is from the moment a
record *should* have been sent to the moment the answer that holds it was whole in the group.

Every batch of every group is checked: its offset is the next one, its content is what the schedule put there, its
CRC-32C holds. At the end each group has read everything and its committed offsets, asked for anew, are the ends of
the partitions. Anything else ends the process with the reason.
"""

import json
import math
import resource
import select
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import crc32c

from bench import raw
from bench.buckets import Buckets
from bench.child import Child, instructions
from bench.meter import Connection, quiet_gc
from bench.raw import UnexpectedAnswer, compact_string, read_uvarint, uvarint
from bench.rows import LADDER
from bench.schedule import Schedule

MAX_BYTES = 8 << 20
PARTITION_BYTES = 1 << 20
COMMIT_S = 5.0
WAIT_MS = 500
_PARTITION = struct.Struct(">ihqqq")
_BATCH = struct.Struct(">q9xI")  # base offset, CRC-32C
_CONTENT = 21  # where the part of a batch begins that the CRC is of
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10


class Expected:
    """What each record must be and when it was due; shared by the groups of this process."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.schedule = Schedule(given["rate"], given["partitions"], given["connections"])
        self.checksums: list[int] = given["checksums"]
        self.batch_bytes: int = given["batch_bytes"]
        self.planned: int = given["planned"]
        self.begin = 0.0
        self.count_from: int = given["count_from"]
        self.latencies = Buckets()
        """Since the last report."""

        self.all = Buckets()

    def ends(self) -> list[int]:
        """Where each partition ends when everything was sent."""
        partitions = self.schedule.partitions
        return [max(0, -(-(self.planned - partition) // partitions)) for partition in range(partitions)]

    def take(self, data: memoryview, partition: int, offset: int, now: float) -> int:
        """Checks the whole batches of ``data``; the offset behind them."""
        size, spacing, schedule = self.batch_bytes, self.schedule.spacing_s, self.schedule
        checksums, latencies = self.checksums, self.latencies
        for start in range(0, len(data) - size + 1, size):
            base, stored = _BATCH.unpack_from(data, start)
            request = schedule.request(partition, offset)
            wanted = checksums[schedule.content(request) % len(checksums)]
            if base != offset or stored != wanted or crc32c.crc32c(data[start + _CONTENT : start + size]) != wanted:
                raise UnexpectedAnswer(f"partition {partition}: batch {base} is not what was sent as {offset}")
            if request >= self.count_from:
                latencies.append(1e6 * (now - self.begin - request * spacing))
            offset += 1
        return offset


class Group(Connection):
    """One group's fetching connection."""

    def __init__(self, given: dict[str, Any], name: str, epoll: select.epoll, expected: Expected) -> None:
        super().__init__(given["bootstrap"], epoll)
        self.name = name
        self.topic: str = given["topic"]
        self.positions = [0] * expected.schedule.partitions
        self.read = 0
        self.fetches = 0
        self._expected = expected
        self._session, self._epoch = 0, 0
        self._buffer = memoryview(bytearray(2 * MAX_BYTES))
        self._have = 0
        self._commits = Commits(given["bootstrap"], epoll, self)

    @property
    def commits(self) -> "Commits":
        return self._commits

    def ask(self, partitions: Sequence[int]) -> None:
        """Sends the next request, with the partitions whose position has changed."""
        body = struct.pack(">iiiibii", -1, WAIT_MS, 1, MAX_BYTES, 0, self._session, self._epoch)
        if partitions:
            positions = self.positions
            body += b"\2" + compact_string(self.topic) + uvarint(len(partitions) + 1)
            for partition in partitions:
                body += struct.pack(">iiqiqi", partition, -1, positions[partition], -1, -1, PARTITION_BYTES) + b"\0"
            body += b"\0"
        else:
            body += b"\1"
        self.send([raw.frame(raw.FETCH, 12, body + b"\1\1\0")])
        self.fetches += 1

    def receive(self) -> None:
        """Takes what has arrived; a whole answer is checked and followed by the next request."""
        try:
            count = self.socket.recv_into(self._buffer[self._have :])
        except BlockingIOError:
            return
        if count == 0:
            raise UnexpectedAnswer(f"the broker closed the connection of {self.name}")
        self._have += count
        if self._have < 4 or self._have < 4 + struct.unpack_from(">i", self._buffer)[0]:
            return
        now, have, self._have = time.perf_counter(), self._have, 0
        self.ask(self._take(self._buffer[4:have], now))

    def _take(self, frame: memoryview, now: float) -> list[int]:
        """The partitions that had something."""
        error, session = struct.unpack_from(">hi", frame, 9)
        if error:
            raise UnexpectedAnswer(f"fetch of {self.name}: error {error}")
        if self._epoch and session != self._session:
            raise UnexpectedAnswer(f"fetch of {self.name}: the session is lost")
        self._session, self._epoch = session, self._epoch + 1
        topics, at = read_uvarint(frame, 15)
        if topics <= 1:
            return []
        length, at = read_uvarint(frame, at)
        count, at = read_uvarint(frame, at + length - 1)
        moved: list[int] = []
        for _ in range(count - 1):
            partition, error, _, _, _ = _PARTITION.unpack_from(frame, at)
            if error:
                raise UnexpectedAnswer(f"fetch of {self.name}, partition {partition}: error {error}")
            _, at = read_uvarint(frame, at + _PARTITION.size)
            length, at = read_uvarint(frame, at + 4)
            end = at + max(0, length - 1)
            position = self.positions[partition]
            offset = self._expected.take(frame[at:end], partition, position, now)
            if offset != position:
                self.read += offset - position
                self.positions[partition] = offset
                moved.append(partition)
            at = end + 1
            if frame[end]:
                raise UnexpectedAnswer(f"fetch of {self.name}, partition {partition}: more than was agreed upon")
        return moved


class Commits(Connection):
    """The connection on which a group commits its positions."""

    def __init__(self, bootstrap: str, epoll: select.epoll, group: Group) -> None:
        super().__init__(bootstrap, epoll)
        self._group = group
        self._have = b""
        self.waiting = False

    def commit(self) -> None:
        """Sends the positions, unless an answer is still due."""
        if not self.waiting:
            self.waiting = True
            self.send([commit_request(self._group.name, self._group.topic, self._group.positions)])

    def receive(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise UnexpectedAnswer(f"the broker closed the committing connection of {self._group.name}")
        self._have += data
        if len(self._have) < 4 or len(self._have) < 4 + struct.unpack_from(">i", self._have)[0]:
            return
        frame, self._have, self.waiting = self._have[4:], b"", False
        errors = set(commit_errors(frame))
        if errors != {0}:
            raise UnexpectedAnswer(f"commit of {self._group.name}: errors {sorted(errors)}")


def commit_request(group: str, topic: str, positions: Sequence[int]) -> bytes:
    """OffsetCommit, version 8, of a group without members."""
    body = compact_string(group) + struct.pack(">i", -1) + b"\1\0\2" + compact_string(topic)
    body += uvarint(len(positions) + 1)
    for partition, offset in enumerate(positions):
        body += struct.pack(">iqi", partition, offset, -1) + b"\1\0"
    return raw.frame(OFFSET_COMMIT, 8, body + b"\0\0")


def commit_errors(frame: bytes | bytearray) -> list[int]:
    """The error of each partition in an answer to :func:`commit_request`, which begins behind its size."""
    _, at = read_uvarint(frame, 9)
    length, at = read_uvarint(frame, at)
    count, at = read_uvarint(frame, at + length - 1)
    return [struct.unpack_from(">h", frame, at + 7 * i + 4)[0] for i in range(count - 1)]


def committed(caller: raw.Caller, group: str, topic: str, partitions: int) -> list[int]:
    """OffsetFetch, version 7: the committed offset of each partition."""
    body = compact_string(group) + b"\2" + compact_string(topic) + uvarint(partitions + 1)
    body += struct.pack(f">{partitions}i", *range(partitions)) + b"\0\0\0"
    frame = caller.call(raw.frame(OFFSET_FETCH, 7, body))
    _, at = read_uvarint(frame, 9)
    length, at = read_uvarint(frame, at)
    count, at = read_uvarint(frame, at + length - 1)
    found = [-1] * partitions
    for _ in range(count - 1):
        partition, offset, _ = struct.unpack_from(">iqi", frame, at)
        length, at = read_uvarint(frame, at + 16)
        at += max(0, length - 1)
        error = struct.unpack_from(">h", frame, at)[0]
        if error:
            raise UnexpectedAnswer(f"committed offsets of {group}: error {error}")
        found[partition] = offset
        at += 3
    return found


def wait_coordinator(caller: raw.Caller, group: str, topic: str, partitions: int) -> None:
    """Returns when the group's coordinator takes a commit; the offsets topic may have to be made first."""
    deadline = time.monotonic() + 30
    while True:
        caller.call(raw.frame(FIND_COORDINATOR, 3, compact_string(group) + b"\0\0"))
        errors = set(commit_errors(caller.call(commit_request(group, topic, [0] * partitions))))
        if errors == {0}:
            return
        if time.monotonic() > deadline:
            raise UnexpectedAnswer(f"no commit of {group}: errors {sorted(errors)}")
        time.sleep(0.05)


def _report(expected: Expected, groups: Sequence[Group], latencies: Buckets) -> dict[str, float]:
    """Figures, and how many records the slowest group still lacks of what is due by now."""
    due = min(expected.planned, int((time.perf_counter() - expected.begin) * expected.schedule.rate))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "read": sum(group.read for group in groups),
        "fetches": sum(group.fetches for group in groups),
        "behind": max(0, *(due - group.read for group in groups)),
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }
    return figures | {f"q{percent:g}": latencies.percentile_us(percent) / 1000 for percent in LADDER}


def follow(given: dict[str, Any], expected: Expected) -> list[Group]:
    """Reads until every group has everything; the groups."""
    with select.epoll() as epoll, quiet_gc():
        groups = [Group(given, name, epoll, expected) for name in given["groups"]]
        by_fd: dict[int, Group | Commits] = {group.socket.fileno(): group for group in groups}
        by_fd |= {group.commits.socket.fileno(): group.commits for group in groups}
        for group in groups:
            group.ask(range(expected.schedule.partitions))
        print('"ready"', flush=True)
        expected.begin = float(json.loads(sys.stdin.readline()))
        now = time.perf_counter()
        next_commit = [now + COMMIT_S * (i + 1) / len(groups) for i in range(len(groups))]
        next_report = now + given["report_s"] if given["report_s"] else math.inf
        last = now
        read = 0
        while any(group.read < expected.planned for group in groups):
            for fd, event in epoll.poll(0.5):
                connection = by_fd[fd]
                if event & select.EPOLLOUT:
                    connection.flush()
                connection.receive()
            now = time.perf_counter()
            for i, group in enumerate(groups):
                if now >= next_commit[i]:
                    next_commit[i] += COMMIT_S
                    group.commits.commit()
            if now >= next_report:
                next_report += given["report_s"]
                print(json.dumps(_report(expected, groups, expected.latencies)), flush=True)
                expected.all.add(expected.latencies)
                expected.latencies.clear()
            if (total := sum(group.read for group in groups)) != read:
                read, last = total, now
            elif now > last + 30.0:
                raise UnexpectedAnswer(f"nothing to read for 30 s; {read:,} records read")
        for group in groups:
            group.close()
            group.commits.close()
    return groups


def main() -> int:
    given = instructions()
    expected = Expected(given)
    with raw.Caller(given["bootstrap"]) as caller:
        for name in given["groups"]:
            wait_coordinator(caller, name, given["topic"], expected.schedule.partitions)
    groups = follow(given, expected)
    with raw.Caller(given["bootstrap"]) as caller:
        for group in groups:
            ends = expected.ends()
            if group.positions != ends:
                raise UnexpectedAnswer(f"{group.name} read other offsets than were written")
            errors = set(commit_errors(caller.call(commit_request(group.name, group.topic, group.positions))))
            if errors != {0} or committed(caller, group.name, group.topic, len(ends)) != ends:
                raise UnexpectedAnswer(f"{group.name}: its committed offsets are not the ends of its partitions")
    expected.all.add(expected.latencies)
    print(json.dumps(_report(expected, groups, expected.all)))
    return 0


class Tail(Child):
    """The groups, ready to read; :meth:`Child.tell` them the moment of request 0."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        schedule: Schedule,
        *,
        groups: int,
        checksums: Sequence[int],
        batch_bytes: int,
        planned: int,
        count_from: int,
        report_s: float = 0.0,
    ) -> None:
        what = {
            "bootstrap": bootstrap,
            "topic": topic,
            "rate": schedule.rate,
            "partitions": schedule.partitions,
            "connections": schedule.connections,
            "groups": [f"{topic}-group-{i}" for i in range(groups)],
            "checksums": list(checksums),
            "batch_bytes": batch_bytes,
            "planned": planned,
            "count_from": count_from,
            "report_s": report_s,
        }
        super().__init__("bench.tail_load", what)
        try:
            assert self.hear() == "ready"
        except BaseException:
            self.__exit__(None, None, None)
            raise


if __name__ == "__main__":
    sys.exit(main())
