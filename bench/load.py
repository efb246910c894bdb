"""Produce as fast as answers come, or on a schedule; either measures the *broker*.

One process, one epoll, requests built beforehand. A closed loop keeps ``depth`` requests in flight on each of its
connections; the open loop sends on a fixed schedule, whatever the answers do, and counts latency from the moment a
request *should* have been sent, so that a broker that stalls cannot hide the requests it delayed.
Every answer must carry error 0 and its partition; what comes back is for :func:`bench.verify.read_back` to judge.
"""

import math
import select
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from bench import raw
from bench.meter import DRAIN_S, RECEIVE_BYTES, Connection, Meter, Outcome, Ticker, quiet_gc
from bench.raw import UnexpectedAnswer
from bench.verify import Produced


class _Producer(Connection):
    """Sends prepared requests in turn and checks each answer."""

    def __init__(self, bootstrap: str, epoll: select.epoll, topic: str, frames: list[tuple[int, bytes]]) -> None:
        super().__init__(bootstrap, epoll)
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

    def receive(self, acknowledged: "dict[int, array[int]]", latencies: "array[float] | None") -> int:
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
        in_flight, answers = self._in_flight, 0
        for size, _, index, error, base, _, _, _ in self._layout.iter_unpack(memoryview(data)[:whole]):
            moment, partition = in_flight.popleft()
            if error or size != stride - 4 or index != partition:
                raise UnexpectedAnswer(f"produce: error {error}, partition {index} for {partition}, {size} bytes")
            acknowledged[index].append(base)
            if latencies is not None:
                latencies.append(1e6 * (now - moment))
            answers += 1
        return answers

    @property
    def waiting(self) -> int:
        return len(self._in_flight)


def _spread(topic: str, content: list[bytes], partitions: Sequence[int]) -> list[tuple[int, bytes]]:
    """Requests that go round ``partitions`` while they go round ``content``."""
    count = math.lcm(len(content), len(partitions)) if len(partitions) > 1 else len(content)
    return [
        (
            partitions[i % len(partitions)],
            raw.produce(topic, partitions[i % len(partitions)], content[i % len(content)]),
        )
        for i in range(min(count, 4 * max(len(content), len(partitions))))
    ]


def _open(
    bootstrap: str, epoll: select.epoll, topic: str, content: list[bytes], connections: int, partitions: int
) -> list[_Producer]:
    """Connection i writes to the partitions i, i + connections, …"""
    opened: list[_Producer] = []
    for i in range(connections):
        own = list(range(i % partitions, partitions, connections)) or [i % partitions]
        opened.append(_Producer(bootstrap, epoll, topic, _spread(topic, content, own)))
    return opened


def _checksums(content: list[bytes]) -> frozenset[int]:
    return frozenset(struct.unpack_from(">I", data, 17)[0] for data in content)


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
    outcome, meter = Outcome(), Meter(broker_pid)
    acknowledged: dict[int, array[int]] = {i: array("q") for i in range(partitions)}
    total = 0
    size = len(content[0])
    with select.epoll() as epoll, quiet_gc():
        producers = _open(bootstrap, epoll, topic, content, connections, partitions)
        by_fd = {p.socket.fileno(): p for p in producers}
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
                answers = producer.receive(acknowledged, outcome.latencies_us if measuring else None)
                total += answers
                if answers and not stopping:
                    producer.produce([time.perf_counter()] * answers)
            now = time.perf_counter()
            if not measuring and now >= warm_until:
                measuring, outcome.requests = True, total
                meter.begin()
            if not stopping and measuring and (now >= until or (total - outcome.requests) * size >= limit_bytes):
                stopping = True
            if now >= next_word:
                next_word += 0.5
                progress(f"{total:,} requests, {total * size / 1e6:,.0f} MB")
            if stopping and not any(p.waiting for p in producers):
                break
            if now > until + DRAIN_S:
                raise UnexpectedAnswer(f"{sum(p.waiting for p in producers)} requests without an answer")
        outcome.requests = total - outcome.requests
        meter.end(outcome)
        for producer in producers:
            producer.close()
    return _finish(outcome, size), Produced(topic, acknowledged, records_a_batch, _checksums(content))


def _finish(outcome: Outcome, batch_bytes: int) -> Outcome:
    outcome.bytes = outcome.requests * batch_bytes
    outcome.latencies_us = array("d", sorted(outcome.latencies_us))
    return outcome


def produce_open(
    bootstrap: str,
    broker_pid: int,
    topic: str,
    content: list[bytes],
    *,
    connections: int,
    partitions: int,
    rate: float,
    warm_s: float,
    measured_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Outcome, Produced]:
    """Sends one-record batches at ``rate`` a second, evenly spaced, round the partitions; latency counts from the
    schedule. ``late_sends`` counts requests that this process itself sent more than 1 ms late.
    """
    outcome, meter = Outcome(), Meter(broker_pid)
    acknowledged: dict[int, array[int]] = {i: array("q") for i in range(partitions)}
    spacing = 1.0 / rate
    planned, warm = int(rate * (warm_s + measured_s)), int(rate * warm_s)
    sent = answered = 0
    with select.epoll() as epoll, Ticker(spacing) as ticker, quiet_gc():
        producers = _open(bootstrap, epoll, topic, content, connections, partitions)
        by_fd = {p.socket.fileno(): p for p in producers}
        epoll.register(ticker.fd, select.EPOLLIN)
        begin = time.perf_counter() + 0.01
        latencies: array[float] | None = None
        next_word = begin + 0.5
        while answered < planned:
            for fd, event in epoll.poll(1.0):
                if fd == ticker.fd:
                    ticker.read()
                    continue
                producer = by_fd[fd]
                if event & select.EPOLLOUT:
                    producer.flush()
                answered += producer.receive(acknowledged, latencies)
            now = time.perf_counter()
            due = min(planned, int((now - begin) / spacing) + 1) if now >= begin else 0
            if due > sent:
                moments: list[list[float]] = [[] for _ in producers]
                for i in range(sent, due):
                    moment = begin + i * spacing
                    moments[i % connections].append(moment)
                    outcome.late_sends += now - moment > 0.001 and i >= warm
                for producer, own in zip(producers, moments, strict=True):
                    if own:
                        producer.produce(own)
                sent = due
            if latencies is None and sent >= warm and answered >= warm:
                latencies, outcome.requests = outcome.latencies_us, answered
                meter.begin()
            if now >= next_word:
                next_word += 0.5
                progress(f"{answered:,} of {planned:,}, {sent - answered:,} in flight")
            if now > begin + planned * spacing + DRAIN_S:
                raise UnexpectedAnswer(f"{sent - answered} requests without an answer")
        outcome.requests = answered - outcome.requests
        meter.end(outcome)
        for producer in producers:
            producer.close()
    return _finish(outcome, len(content[0])), Produced(topic, acknowledged, 1, _checksums(content))
