"""Loads: produce as fast as answers come, produce on a schedule, fetch round and round; each measures the *broker*.

One process, one epoll, requests built beforehand. A closed loop keeps ``depth`` requests in flight on each of its
connections; the open loop sends on a fixed schedule, whatever the answers do, and counts latency from the moment a
request *should* have been sent, so that a broker that stalls cannot hide the requests it delayed. The cost is the
broker's: user + system time of its whole process tree, between the end of the warm-up and the moment when it has
nothing left to do (segments written behind an acknowledgement belong to it).

Nothing is believed: every answer must carry error 0 and its partition, base offsets together must be dense, and
:func:`read_back` fetches everything again: CRC-32C of every batch, its offsets without a hole, its content one of the
batches that were sent, as many as were acknowledged. Anything else raises :class:`~bench.raw.UnexpectedAnswer`.
"""

import ctypes
import gc
import math
import os
import resource
import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import crc32c

from bench import processes, raw
from bench.raw import UnexpectedAnswer

DRAIN_S = 60.0
_RECEIVE_BYTES = 1 << 18


@dataclass
class Outcome:
    """What one load did, after its warm-up. Bytes are those of record batches; ``latencies_us`` is sorted."""

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    broker_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    late_sends: int = 0
    latencies_us: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def cpu_us(self) -> float:
        """Broker CPU a request."""
        return 1e6 * self.broker_cpu_s / max(1, self.requests)

    @property
    def gb_per_cpu_s(self) -> float:
        return self.bytes / 1e9 / max(1e-9, self.broker_cpu_s)

    def percentile_us(self, percent: float) -> float:
        """Latency that ``percent`` of the requests did not exceed."""
        if not self.latencies_us:
            return 0.0
        return self.latencies_us[min(len(self.latencies_us) - 1, math.ceil(len(self.latencies_us) * percent / 100) - 1)]


class Meter:
    """Broker and client CPU between two moments."""

    def __init__(self, broker_pid: int) -> None:
        self._pid = broker_pid
        self._broker = self._client = self._clock = 0.0

    def begin(self) -> None:
        self._broker, self._client, self._clock = processes.cpu_seconds(self._pid), _own_cpu(), time.perf_counter()

    def end(self, outcome: Outcome) -> None:
        """Closes the wall clock and the client's share now, the broker's when it has come to rest (at most 3 s)."""
        outcome.seconds = time.perf_counter() - self._clock
        outcome.client_cpu_s = _own_cpu() - self._client
        last = processes.cpu_seconds(self._pid)
        for _ in range(15):
            time.sleep(0.2)
            now = processes.cpu_seconds(self._pid)
            if now - last < 0.015:
                break
            last = now
        outcome.broker_cpu_s = processes.cpu_seconds(self._pid) - self._broker


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Connection:
    """Non-blocking socket with a queue of unsent bytes."""

    def __init__(self, bootstrap: str, epoll: select.epoll) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._epoll = epoll
        self._unsent: deque[memoryview | bytes | bytearray] = deque()
        epoll.register(self.socket.fileno(), select.EPOLLIN)

    def send(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Sends, or queues what the kernel does not take."""
        if self._unsent:
            self._unsent.extend(frames)
            return
        sent = 0
        try:
            sent = self.socket.sendmsg(frames)
        except BlockingIOError:
            pass
        for part in frames:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._unsent.append(memoryview(part)[sent:])
                sent = 0
        if self._unsent:
            self._epoll.modify(self.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """The socket takes bytes again."""
        waiting, self._unsent = list(self._unsent), deque()
        self.send(waiting[:512])  # sendmsg takes at most 1024 parts
        self._unsent.extend(waiting[512:])
        if not self._unsent:
            self._epoll.modify(self.socket.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._epoll.unregister(self.socket.fileno())
        self.socket.close()


class _Producer(_Connection):
    """Sends prepared requests in turn and checks each answer."""

    def __init__(self, bootstrap: str, epoll: select.epoll, topic: str, frames: list[tuple[int, bytes]]) -> None:
        super().__init__(bootstrap, epoll)
        self._layout = raw.produce_answer(topic)
        self._frames = frames  # (partition, request)
        self._next = 0
        self._in_flight: deque[tuple[float, int]] = deque()  # when it was (or should have been) sent, partition
        self._left = b""
        self.scratch = bytearray(_RECEIVE_BYTES)

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


@dataclass
class Produced:
    """What a produce load left behind, for :func:`read_back`: base offsets by partition, batches that were sent."""

    topic: str
    acknowledged: "dict[int, array[int]]"
    records_a_batch: int
    checksums: frozenset[int]


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
    with select.epoll() as epoll, _quiet_gc():
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
    with select.epoll() as epoll, _Ticker(spacing) as ticker, _quiet_gc():
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


class _Ticker:
    """Timer descriptor that becomes readable every ``interval_s``; epoll's own timeout knows only milliseconds."""

    def __init__(self, interval_s: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
        nanoseconds = max(50_000, int(interval_s * 1e9))
        setting = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
        if self.fd < 0 or libc.timerfd_settime(self.fd, 0, setting, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass


class _quiet_gc:  # noqa: N801 - reads as a statement
    """No collection pause of this process inside a measurement."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


class _Consumer(_Connection):
    """Fetches one partition round and round, one request in flight, into one buffer."""

    def __init__(
        self,
        bootstrap: str,
        epoll: select.epoll,
        topic: str,
        partition: int,
        max_bytes: int,
        end: int,
        shape: tuple[int, int],
    ) -> None:
        super().__init__(bootstrap, epoll)
        self._topic = topic
        self._request, self._place = raw.fetch(topic, partition, max_bytes)
        self._end = end
        self._records, self._batch_bytes = shape
        self._offset = 0
        self._buffer = memoryview(bytearray(max_bytes + 2 * self._batch_bytes + 4096))
        self._have = 0
        self._asked = 0.0

    def ask(self) -> None:
        """Sends the next request."""
        struct.pack_into(">q", self._request, self._place, self._offset)
        self._asked = time.perf_counter()
        self.send([bytes(self._request)])

    def receive(self) -> tuple[int, float] | None:
        """Bytes of records and seconds of a finished answer, None while it is still coming."""
        try:
            count = self.socket.recv_into(self._buffer[self._have :])
        except BlockingIOError:
            return None
        if count == 0:
            raise UnexpectedAnswer("the broker closed a fetching connection")
        self._have += count
        if self._have < 4 or self._have < 4 + struct.unpack_from(">i", self._buffer)[0]:
            return None
        self._have = 0
        return self._take(), time.perf_counter() - self._asked

    def _take(self) -> int:
        """Checks the first and the last batch of an answer and moves on; all between them is checked by read_back."""
        frame = self._buffer[4:]
        answer = raw.FetchAnswer(frame, self._topic)
        count = (answer.records_end - answer.records_start) // self._batch_bytes
        if count == 0:
            raise UnexpectedAnswer(f"fetch of {self._topic} at {self._offset} of {self._end}: no whole batch")
        for i in (0, count - 1):
            start = answer.records_start + i * self._batch_bytes
            base, length = struct.unpack_from(">qi", frame, start)
            if base != self._offset + i * self._records or length != self._batch_bytes - 12:
                raise UnexpectedAnswer(f"fetch of {self._topic} at {self._offset}: batch {i} at {base}, {length} bytes")
        self._offset += count * self._records
        if self._offset >= self._end:
            self._offset = 0
        return count * self._batch_bytes


def fetch_round(
    bootstrap: str,
    broker_pid: int,
    produced: Produced,
    *,
    max_bytes: int,
    batch_bytes: int,
    warm_s: float,
    measured_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """One connection a partition, one request in flight on each, from the start to the end again and again."""
    outcome, meter = Outcome(), Meter(broker_pid)
    shape = produced.records_a_batch, batch_bytes
    moved = 0
    with select.epoll() as epoll, _quiet_gc():
        consumers = [
            _Consumer(bootstrap, epoll, produced.topic, partition, max_bytes, len(bases) * shape[0], shape)
            for partition, bases in produced.acknowledged.items()
        ]
        by_fd = {c.socket.fileno(): c for c in consumers}
        begin = time.perf_counter()
        waiting = len(consumers)
        for consumer in consumers:
            consumer.ask()
        measuring = False
        next_word = begin + 0.5
        while waiting:
            now = time.perf_counter()
            if not measuring and now >= begin + warm_s:
                measuring, moved, outcome.requests = True, 0, 0
                meter.begin()
            if now >= next_word:
                next_word += 0.5
                progress(f"{moved / 1e6:,.0f} MB")
            if now > begin + warm_s + measured_s + DRAIN_S:
                raise UnexpectedAnswer(f"{waiting} fetches without an answer")
            for fd, event in epoll.poll(1.0):
                consumer = by_fd[fd]
                if event & select.EPOLLOUT:
                    consumer.flush()
                done = consumer.receive()
                if done is None:
                    continue
                moved += done[0]
                outcome.requests += 1
                if measuring:
                    outcome.latencies_us.append(1e6 * done[1])
                if now < begin + warm_s + measured_s:
                    consumer.ask()
                else:
                    waiting -= 1
        meter.end(outcome)
        for consumer in consumers:
            consumer.close()
    outcome.bytes = moved
    outcome.latencies_us = array("d", sorted(outcome.latencies_us))
    return outcome


def check_dense(produced: Produced) -> int:
    """Base offsets of each partition, sorted, are 0, r, 2r, … for r records a batch; returns the number of records."""
    records = 0
    for partition, bases in produced.acknowledged.items():
        step = produced.records_a_batch
        expected = range(0, len(bases) * step, step)
        if any(got != wanted for got, wanted in zip(sorted(bases), expected, strict=True)):
            raise UnexpectedAnswer(f"{produced.topic}/{partition}: acknowledged offsets have holes or doubles")
        records += len(bases) * step
    return records


def read_back(bootstrap: str, produced: Produced, max_bytes: int = 4 << 20) -> int:
    """Fetches everything from the start: every batch whole, unharmed, known, in its place. Returns the records read."""
    check_dense(produced)
    total = 0
    with raw.Caller(bootstrap) as caller:
        for partition, bases in produced.acknowledged.items():
            end = len(bases) * produced.records_a_batch
            request, place = raw.fetch(produced.topic, partition, max_bytes)
            offset = 0
            while offset < end:
                struct.pack_into(">q", request, place, offset)
                frame = memoryview(caller.call(request))
                answer = raw.FetchAnswer(frame, produced.topic)
                offset = _check_batches(frame[answer.records_start : answer.records_end], offset, produced, partition)
            if offset != end:
                raise UnexpectedAnswer(f"{produced.topic}/{partition}: {offset} records read, {end} acknowledged")
            total += offset
    return total


def _check_batches(data: memoryview, offset: int, produced: Produced, partition: int) -> int:
    """Offset behind the last whole batch of ``data``."""
    position, began = 0, offset
    header = raw.BATCH_HEADER
    while position + header.size <= len(data):
        base, length, _, magic, crc, _, last_delta, *_, count = header.unpack_from(data, position)
        if position + 12 + length > len(data):
            break
        problem = (
            base != offset
            or magic != 2
            or count != produced.records_a_batch
            or last_delta != count - 1
            or crc not in produced.checksums
            or crc32c.crc32c(data[position + 21 : position + 12 + length]) != crc
        )
        if problem:
            raise UnexpectedAnswer(f"{produced.topic}/{partition}: bad batch at {base}, expected {offset}")
        offset += count
        position += 12 + length
    if offset == began:
        raise UnexpectedAnswer(f"{produced.topic}/{partition}: nothing to read at {offset}")
    return offset
