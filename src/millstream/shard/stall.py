"""Watches for shards that are stuck in one callback, and makes them write their stack.

The reactor stamps shared memory when it enters a callback and clears the stamp when it leaves (``reactor``). A stamp
older than the limit means a callback that does not return. The supervisor looks at the stamps of all processes once in
each ``limit``, at the price of one load each, and once more at the time at which a callback that it met would pass the
limit. A callback that is longer than the limit is thus met while it runs, wherever it starts between two looks. A
signal then makes the stalled process write its own stack to stderr, between two steps of the interpreter, or when a
system call that it waits in is interrupted. C code that computes shows its caller when it returns::

    watch = StallWatch(limit_ms=100)
    watch.add(slab)                    # after the process has started
    watch.poll()                       # at once, and again at each watch.next_us

A stall is dumped once, and a process writes at most ``DUMPS_MAX`` stacks in ``QUIET_MS``, so that an overloaded machine
does not flood the log. A process stopped by SIGSTOP shows its stack only after it continues. In a process that has not
called ``dump_on_signal`` the signal would be fatal, so spawned children call it first.

The stack is not written by ``faulthandler``, which would do without the interpreter: in Python 3.11 it reads frames
that are being made or left, and one in some thousand stacks of a busy process ended the process.

A limit of a millisecond costs the supervisor some per cent of a core; the default costs next to nothing. The supervisor
is an ordinary process: if no core is free for it, it looks late, and a short stall may have passed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.telemetry.log import log
from millstream.telemetry.metrics import ENTERED_CELL

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from millstream.telemetry.metrics import Counter, StatsSlab

DUMP_SIGNAL: Final = signal.SIGUSR2
DEFAULT_LIMIT_MS: Final = 100
QUIET_MS: Final = 10_000
FRAMES_MAX: Final = 100
"""Frames of a stack, from the newest on."""

DUMPS_MAX: Final = 8
"""Stacks of one process in ``QUIET_MS``: enough to see which callback it is, some hundred lines."""


def dump_on_signal() -> None:
    """Make this process write its stacks to stderr on ``DUMP_SIGNAL``. Called by its first thread."""
    signal.signal(DUMP_SIGNAL, _write_stacks)


def _write_stacks(signum: int, frame: FrameType | None) -> None:
    """Write the stack of each thread in one piece; the first thread, which runs this, comes last."""
    _ = signum
    if frame is not None and frame.f_code in (_write_stacks.__code__, _stack.__code__):
        return  # a flood of signals: the stack that is being written is the answer
    current = threading.get_ident()
    lines: list[str] = []
    for thread, top in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        if thread != current:
            lines += _stack(f"Thread 0x{thread:016x}", top)
    lines += _stack(f"Current thread 0x{current:016x}", frame)
    with contextlib.suppress(OSError):
        os.write(2, "".join(lines).encode(errors="replace"))


def _stack(title: str, frame: FrameType | None) -> list[str]:
    lines = [f"{title} (most recent call first):\n"]
    while frame is not None and len(lines) <= FRAMES_MAX:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
        frame = frame.f_back
    return lines


class _Watched:
    """A watched process."""

    __slots__ = ("cells", "dumped_ns", "dumps", "recent_ns", "slab")

    def __init__(self, slab: StatsSlab) -> None:
        self.slab = slab
        self.cells = slab.cells
        self.dumped_ns = 0  # stamp of the stall that was dumped last
        self.recent_ns: deque[int] = deque(maxlen=DUMPS_MAX)  # times of the last dumps
        self.dumps: Counter = slab.counter("reactor_stall_dumps")


class StallWatch:
    """The watch over all processes. It belongs to the supervisor, their parent."""

    def __init__(self, limit_ms: int = DEFAULT_LIMIT_MS, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._limit_ns = limit_ms * 1_000_000
        self._now_ns = now_ns
        self._watched: list[_Watched] = []
        self.next_us = 0
        """When to poll again, in µs of ``now_ns``'s clock."""

    def add(self, slab: StatsSlab) -> None:
        """Watch the process that owns ``slab``."""
        self._watched.append(_Watched(slab))

    def poll(self) -> int:
        """Check all stamps. Returns the number of processes that were made to write their stack."""
        now_ns = self._now_ns()
        next_ns = now_ns + self._limit_ns
        reported = 0
        for watched in self._watched:
            entered_ns = watched.cells[ENTERED_CELL]
            if not entered_ns or entered_ns == watched.dumped_ns:
                continue
            if now_ns - entered_ns < self._limit_ns:
                next_ns = min(next_ns, entered_ns + self._limit_ns)
                continue
            recent_ns = watched.recent_ns
            if len(recent_ns) == DUMPS_MAX and now_ns < recent_ns[0] + QUIET_MS * 1_000_000:
                continue
            watched.dumped_ns = entered_ns
            recent_ns.append(now_ns)
            self._dump(watched, (now_ns - entered_ns) // 1_000_000)
            reported += 1
        self.next_us = next_ns // 1000 + 1
        return reported

    def _dump(self, watched: _Watched, stalled_ms: int) -> None:
        slab = watched.slab
        log.warning("%s %d has been in one callback for %d ms; its stack follows", slab.role, slab.shard, stalled_ms)
        watched.dumps.inc()
        try:
            os.kill(slab.pid, DUMP_SIGNAL)
        except ProcessLookupError:
            return  # the code that waits for the process reports its end
