"""Fetch what a produce load left behind, round and round: a connection a partition, one request in flight on each.

``python -m bench.fetch_load`` does so in a process of its own, beside another load (see ``child``).

While it measures it checks the header of every answer and the first and the last batch in it; that all between them are
whole and right, :func:`bench.verify.read_back` has shown before.
"""

import json
import math
import select
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable

from bench import raw
from bench.child import Child, instructions
from bench.meter import DRAIN_S, Connection, Meter, Outcome, quiet_gc
from bench.raw import UnexpectedAnswer
from bench.verify import Produced


class _Consumer(Connection):
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
    bytes_a_second: float = math.inf,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """A connection a partition, one request in flight on each, start to end and again, up to ``bytes_a_second``."""
    outcome, meter = Outcome(), Meter(broker_pid)
    shape = produced.records_a_batch, batch_bytes
    moved = 0
    with select.epoll() as epoll, quiet_gc():
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
        held: deque[_Consumer] = deque()  # they may not ask yet
        total = 0
        while waiting:
            now = time.perf_counter()
            over = now >= begin + warm_s + measured_s
            while held and (over or total <= bytes_a_second * (now - begin)):
                consumer = held.popleft()
                if over:
                    waiting -= 1
                else:
                    consumer.ask()
            if not measuring and now >= begin + warm_s:
                measuring, moved, outcome.requests = True, 0, 0
                meter.begin()
            if now >= next_word:
                next_word += 0.5
                progress(f"{moved / 1e6:,.0f} MB")
            if now > begin + warm_s + measured_s + DRAIN_S:
                raise UnexpectedAnswer(f"{waiting} fetches without an answer")
            for fd, event in epoll.poll(0.002 if held else 1.0):
                consumer = by_fd[fd]
                if event & select.EPOLLOUT:
                    consumer.flush()
                done = consumer.receive()
                if done is None:
                    continue
                moved += done[0]
                total += done[0]
                outcome.requests += 1
                if measuring:
                    outcome.latencies_us.append(1e6 * done[1])
                if over or total > bytes_a_second * (now - begin):
                    held.append(consumer)
                else:
                    consumer.ask()
        meter.end(outcome)
        for consumer in consumers:
            consumer.close()
    outcome.bytes = moved
    outcome.latencies_us = array("d", sorted(outcome.latencies_us))
    return outcome


def beside(
    bootstrap: str,
    broker_pid: int,
    produced: Produced,
    *,
    batch_bytes: int,
    seconds: float,
    bytes_a_second: float = 0.0,
) -> Child:
    """The same in a process of its own, begun at once; its result is ``bytes``, ``seconds``, ``p50_ms``, ``p99_ms``."""
    return Child(
        "bench.fetch_load",
        {
            "bootstrap": bootstrap,
            "pid": broker_pid,
            "topic": produced.topic,
            "batches": {str(partition): len(bases) for partition, bases in produced.acknowledged.items()},
            "records": produced.records_a_batch,
            "batch_bytes": batch_bytes,
            "seconds": seconds,
            "bytes_a_second": bytes_a_second,
        },
    )


def main() -> int:
    given = instructions()
    bases = {int(partition): array("q", bytes(8 * count)) for partition, count in given["batches"].items()}
    outcome = fetch_round(
        given["bootstrap"],
        given["pid"],
        Produced(given["topic"], bases, given["records"], frozenset()),
        max_bytes=1 << 20,
        batch_bytes=given["batch_bytes"],
        warm_s=0.0,
        measured_s=given["seconds"],
        bytes_a_second=given["bytes_a_second"] or math.inf,
    )
    percentiles = {f"p{percent}_ms": outcome.percentile_us(percent) / 1000 for percent in (50, 99)}
    print(json.dumps({"bytes": outcome.bytes, "seconds": outcome.seconds, **percentiles}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
