"""Produce on a schedule: an *open* loop. Requests go out when they are due, whatever the answers do.

Latency counts from the moment a request *should* have been sent, so that a broker that stalls cannot hide the requests
that it delayed. Request i goes to partition i modulo the number of partitions, evenly spaced in time, and connection
i modulo the number of connections; since a connection's requests are answered in order, the record at offset k of
partition p is request p + k × partitions. So whoever reads a record knows when it should have been sent and what must
be in it (:class:`Schedule`), without a word in the record itself.
"""

import select
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench import load
from bench.load import Sink
from bench.meter import DRAIN_S, Meter, Outcome, Ticker, quiet_gc
from bench.raw import UnexpectedAnswer

LATE_S = 0.001
WOKEN_FOR = 4
"""The generator is woken once for so many requests, every 0.39 ms. Woken for each, it took half a core of the two that
it shares with the broker. What a request waits for the others counts as the broker's latency."""


@dataclass(frozen=True)
class Schedule:
    """Which request is due when. ``partitions`` is a multiple of ``connections``."""

    rate: float
    partitions: int = 128
    connections: int = 16

    @property
    def spacing_s(self) -> float:
        return 1.0 / self.rate

    def request(self, partition: int, offset: int) -> int:
        """The request whose record stands at ``offset`` of ``partition``."""
        return partition + offset * self.partitions

    def content(self, request: int) -> int:
        """Its place in the round of prepared batches (a multiple of the partitions of one connection)."""
        return request // self.connections


RFC = Schedule(10_240)
"""128 partitions, 10 Ki requests a second, 16 connections."""


def produce_open(
    bootstrap: str,
    broker_pid: int | Sequence[int],
    topic: str,
    content: list[bytes],
    schedule: Schedule,
    *,
    warm_s: float,
    measured_s: float,
    acknowledged: "Mapping[int, Sink[int]]",
    latencies: "Sink[float] | None" = None,
    begun: Callable[[float], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
    opened: "Callable[[select.epoll], list[load.Producer]] | None" = None,
) -> Outcome:
    """Sends one-record batches as ``schedule`` says; ``begun`` is called with the time of request 0 before it is sent.

    ``late_sends`` of the outcome counts requests that this process itself sent more than 1 ms late. Latencies go into
    ``latencies`` instead of the outcome where it is given. ``opened`` opens the connections where they do
    not all go to ``bootstrap``.
    """
    outcome, meter = Outcome(), Meter(broker_pid)
    spacing = schedule.spacing_s
    planned, warm = int(schedule.rate * (warm_s + measured_s)), int(schedule.rate * warm_s)
    sent = answered = late = 0
    with select.epoll() as epoll, Ticker(WOKEN_FOR * spacing) as ticker, quiet_gc():
        if opened is None:
            producers = load.open_producers(bootstrap, epoll, topic, content, schedule.connections, acknowledged)
        else:
            producers = opened(epoll)
        by_fd = {p.socket.fileno(): p for p in producers}
        epoll.register(ticker.fd, select.EPOLLIN)
        begin = time.perf_counter() + 0.01
        begun(begin)
        sink: Sink[float] | None = None
        next_word = begin + 0.5
        while answered < planned:
            for fd, event in epoll.poll(1.0):
                if fd == ticker.fd:
                    ticker.read()
                    continue
                producer = by_fd[fd]
                if event & select.EPOLLOUT:
                    producer.flush()
                answered += producer.receive(sink)
            now = time.perf_counter()
            due = min(planned, int((now - begin) / spacing) + 1) if now >= begin else 0
            if due > sent:
                late += _send(producers, range(sent, due), begin, spacing)
                if due <= warm:
                    late = 0
                sent = due
            if sink is None and sent >= warm and answered >= warm:
                sink = outcome.latencies_us if latencies is None else latencies
                outcome.requests = answered
                meter.begin()
            if now >= next_word:
                next_word += 0.5
                outcome.late_sends = late
                progress(f"{answered:,} of {planned:,}, {sent - answered:,} in flight")
            if now > begin + planned * spacing + DRAIN_S:
                raise UnexpectedAnswer(f"{sent - answered} requests without an answer")
        outcome.requests, outcome.late_sends = answered - outcome.requests, late
        meter.end(outcome)
        for producer in producers:
            producer.close()
    outcome.bytes = outcome.requests * len(content[0])
    outcome.latencies_us = array("d", sorted(outcome.latencies_us))
    return outcome


def _send(producers: Sequence[load.Producer], due: range, begin: float, spacing_s: float) -> int:
    """Sends the requests that are due, each by its connection; returns how many of them are late."""
    now, late = time.perf_counter(), 0
    moments: list[list[float]] = [[] for _ in producers]
    for i in due:
        moment = begin + i * spacing_s
        moments[i % len(producers)].append(moment)
        late += now - moment > LATE_S
    for producer, own in zip(producers, moments, strict=True):
        if own:
            producer.produce(own)
    return late
