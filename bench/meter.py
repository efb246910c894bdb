"""What all loads share: the figures of one, the meters, sockets with a queue of unsent bytes, a fine timer.

The cost of a load is the broker's: user + system time of its whole process tree, between the end of the warm-up and the
moment when it has nothing left to do (segments written behind an acknowledgement belong to it).
"""

import ctypes
import gc
import math
import os
import resource
import select
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from bench import doors, processes

DRAIN_S = 60.0
REST_S = 3.0
RECEIVE_BYTES = 1 << 18


@dataclass
class Outcome:
    """What one load did, after its warm-up. Bytes are those of record batches; ``latencies_us`` is sorted;
    ``stolen_s`` is how long cores had work and the host of the virtual machine ran something else.
    """

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    broker_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    late_sends: int = 0
    stolen_s: float = 0.0
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
        return percentile(self.latencies_us, percent)


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of sorted values; 0 without values."""
    return values[min(len(values) - 1, math.ceil(len(values) * percent / 100) - 1)] if values else 0.0


class Meter:
    """Broker and client CPU between two moments, and what the machine did not get of its cores."""

    def __init__(self, broker_pids: int | Sequence[int]) -> None:
        """The root process of a broker, or those of all brokers of a cluster."""
        self._pids = (broker_pids,) if isinstance(broker_pids, int) else tuple(broker_pids)
        self._broker = self._client = self._clock = self._stolen = 0.0

    def begin(self) -> None:
        self._broker, self._client, self._stolen = self._brokers_cpu(), _own_cpu(), processes.stolen_s()
        self._clock = time.perf_counter()

    def end(self, outcome: Outcome) -> None:
        """Closes the wall clock and the client's share now, the broker's when it has come to rest, `REST_S` at most."""
        outcome.seconds = time.perf_counter() - self._clock
        outcome.client_cpu_s = _own_cpu() - self._client
        outcome.stolen_s = processes.stolen_s() - self._stolen
        for pid in self._pids:
            processes.wait_for_rest(pid, REST_S)
        outcome.broker_cpu_s = self._brokers_cpu() - self._broker

    def _brokers_cpu(self) -> float:
        return sum(map(processes.cpu_seconds, self._pids))


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Connection:
    """Non-blocking socket with a queue of unsent bytes."""

    def __init__(self, bootstrap: str, epoll: select.epoll) -> None:
        self.socket = doors.non_blocking(bootstrap)
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


class Ticker:
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


class quiet_gc:  # noqa: N801 - reads as a statement
    """No collection pause of this process inside a measurement."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
