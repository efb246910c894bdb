"""Produce as fast as answers come; what is measured is the *broker*. The load on a schedule is in ``schedule``.

One process, one epoll, requests built beforehand. The loop keeps ``depth`` requests in flight on each of its
connections. Every answer must carry error 0 and its partition; what comes back is for :func:`bench.verify.read_back` to
judge.
"""

import math
import select
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from bench import raw
from bench.meter import DRAIN_S, RECEIVE_BYTES, Connection, Meter, Outcome, quiet_gc
from bench.raw import ErrorAnswer, UnexpectedAnswer
from bench.verify import Produced

_T = TypeVar("_T", contravariant=True)


class Sink(Protocol[_T]):
    """Takes one number after the other; an array does, and so does what only judges them."""

    def append(self, value: _T, /) -> None: ...


class Producer(Connection):
    """Sends prepared requests in turn, checks each answer and keeps its base offset in ``acknowledged``."""

    def __init__(
        self,
        bootstrap: str,
        epoll: select.epoll,
        topic: str,
        frames: list[tuple[int, bytes]],
        acknowledged: "Mapping[int, Sink[int]]",
    ) -> None:
        super().__init__(bootstrap, epoll)
        self._acknowledged = acknowledged
        self._layout = raw.produce_answer(topic)
        self._frames = frames  # (partition, request)
        self._next = 0
        self._in_flight: deque[tuple[float, int]] = deque()  # when it was (or should have been) sent, partition
        self._left = b""
        self.scratch = bytearray(RECEIVE_BYTES)

    def produce(self, moments: Sequence[float]) -> None:
        """Sends as many requests as there are moments; each counts from its moment."""
        chosen: list[bytes] = []
        for moment in moments:
            partition, request = self._frames[self._next]
            self._next = (self._next + 1) % len(self._frames)
            self._in_flight.append((moment, partition))
            chosen.append(request)
        self.send(chosen)

    def receive(self, latencies: "Sink[float] | None") -> int:
        """Takes what has arrived; returns the number of answers."""
        try:
            count = self.socket.recv_into(self.scratch)
        except BlockingIOError:
            return 0
        if count == 0:
            raise UnexpectedAnswer("the broker closed a connection under load")
        now = time.perf_counter()
        data = self._left + self.scratch[:count]
        stride = self._layout.size
        whole = len(data) // stride * stride
        self._left = bytes(data[whole:])
        in_flight, acknowledged, answers = self._in_flight, self._acknowledged, 0
        for size, _, index, error, base, _, _, _ in self._layout.iter_unpack(memoryview(data)[:whole]):
            moment, partition = in_flight.popleft()
            if error:
                raise ErrorAnswer(f"produce to partition {partition}", error)
            if size != stride - 4 or index != partition:
                raise UnexpectedAnswer(f"produce: partition {index} for {partition}, {size} bytes")
            acknowledged[index].append(base)
            if latencies is not None:
                latencies.append(1e6 * (now - moment))
            answers += 1
        return answers

    @property
    def waiting(self) -> int:
        return len(self._in_flight)


def spread_requests(topic: str, content: list[bytes], partitions: Sequence[int]) -> list[tuple[int, bytes]]:
    """Requests that go round ``partitions`` while they go round ``content``."""
    count = math.lcm(len(content), len(partitions)) if len(partitions) > 1 else len(content)
    return [
        (
            partitions[i % len(partitions)],
            raw.produce(topic, partitions[i % len(partitions)], content[i % len(content)]),
        )
        for i in range(min(count, 4 * max(len(content), len(partitions))))
    ]


def open_producers(
    bootstrap: str,
    epoll: select.epoll,
    topic: str,
    content: list[bytes],
    connections: int,
    acknowledged: "Mapping[int, Sink[int]]",
) -> list[Producer]:
    """Connection i writes to the partitions i, i + connections, …; those with the same partitions share the bytes."""
    partitions = len(acknowledged)
    spread: dict[tuple[int, ...], list[tuple[int, bytes]]] = {}
    opened: list[Producer] = []
    for i in range(connections):
        own = tuple(range(i % partitions, partitions, connections)) or (i % partitions,)
        if own not in spread:
            spread[own] = spread_requests(topic, content, own)
        opened.append(Producer(bootstrap, epoll, topic, spread[own], acknowledged))
    return opened


def fresh(partitions: int) -> "dict[int, array[int]]":
    """Where the base offsets of each partition are kept."""
    return {i: array("q") for i in range(partitions)}


def checksums(content: list[bytes]) -> list[int]:
    """CRC-32C of each batch, as it stands in its header."""
    return [struct.unpack_from(">I", data, 17)[0] for data in content]


def produce_closed(
    bootstrap: str,
    broker_pid: int,
    topic: str,
    content: list[bytes],
    *,
    connections: int,
    depth: int,
    partitions: int,
    records_a_batch: int,
    warm_s: float,
    measured_s: float,
    limit_bytes: int = 1 << 62,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Outcome, Produced]:
    """Keeps ``connections`` × ``depth`` requests in flight for ``warm_s`` + ``measured_s``,
    or up to ``limit_bytes``.
    """
    acknowledged = fresh(partitions)
    with select.epoll() as epoll, quiet_gc():
        producers = open_producers(bootstrap, epoll, topic, content, connections, acknowledged)
        outcome = keep_in_flight(
            epoll,
            producers,
            broker_pid,
            depth=depth,
            batch_bytes=len(content[0]),
            warm_s=warm_s,
            measured_s=measured_s,
            limit_bytes=limit_bytes,
            progress=progress,
        )
    return outcome, Produced(topic, acknowledged, records_a_batch, frozenset(checksums(content)))


def produce_topics(
    bootstrap: str,
    broker_pid: int,
    topics: Sequence[str],
    content: list[bytes],
    *,
    partitions: int,
    depth: int,
    warm_s: float,
    measured_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Outcome, list[Produced]]:
    """As :func:`produce_closed`, with a connection for each topic of ``partitions`` partitions, one record a batch."""
    known = frozenset(checksums(content))
    produced = [Produced(topic, fresh(partitions), 1, known) for topic in topics]
    with select.epoll() as epoll, quiet_gc():
        producers = [
            Producer(
                bootstrap, epoll, each.topic, spread_requests(each.topic, content, range(partitions)), each.acknowledged
            )
            for each in produced
        ]
        outcome = keep_in_flight(
            epoll,
            producers,
            broker_pid,
            depth=depth,
            batch_bytes=len(content[0]),
            warm_s=warm_s,
            measured_s=measured_s,
            progress=progress,
        )
    return outcome, produced


def keep_in_flight(
    epoll: select.epoll,
    producers: Sequence[Producer],
    broker_pid: int | Sequence[int],
    *,
    depth: int,
    batch_bytes: int,
    warm_s: float,
    measured_s: float,
    limit_bytes: int = 1 << 62,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Each answer is followed by the next request, until time or ``limit_bytes`` is over; closes the producers."""
    outcome, meter = Outcome(), Meter(broker_pid)
    by_fd = {p.socket.fileno(): p for p in producers}
    total = 0
    begin = time.perf_counter()
    warm_until, until = begin + warm_s, begin + warm_s + measured_s
    for producer in producers:
        producer.produce([begin] * depth)
    measuring = stopping = False
    next_word = begin + 0.5
    while True:
        for fd, event in epoll.poll(1.0):
            producer = by_fd[fd]
            if event & select.EPOLLOUT:
                producer.flush()
            answers = producer.receive(outcome.latencies_us if measuring else None)
            total += answers
            if answers and not stopping:
                producer.produce([time.perf_counter()] * answers)
        now = time.perf_counter()
        if not measuring and now >= warm_until:
            measuring, outcome.requests = True, total
            meter.begin()
        if not stopping and measuring and (now >= until or (total - outcome.requests) * batch_bytes >= limit_bytes):
            stopping = True
        if now >= next_word:
            next_word += 0.5
            progress(f"{total:,} requests, {total * batch_bytes / 1e6:,.0f} MB")
        if stopping and not any(p.waiting for p in producers):
            break
        if now > until + DRAIN_S:
            raise UnexpectedAnswer(f"{sum(p.waiting for p in producers)} requests without an answer")
    outcome.requests = total - outcome.requests
    meter.end(outcome)
    for producer in producers:
        producer.close()
    outcome.bytes = outcome.requests * batch_bytes
    outcome.latencies_us = array("d", sorted(outcome.latencies_us))
    return outcome
