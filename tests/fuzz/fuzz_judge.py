"""Judging one input: a crash, a hang, too much memory, or nothing; and making what was found as small as it goes.

Time is the CPU time of this thread, so that a busy machine condemns nobody, and a verdict is only given when the
shortest of three runs was too long. Memory is what ``tracemalloc`` saw at its peak, and, where that would allow for one
that is too large, the largest piece of it. That is slow, so only some inputs are traced (``trace``), while a fence
around the whole process (``fence``) catches a large claim that was believed in any of them. An input that does not come
back at all is ended by a timer after ``STUCK_S`` seconds of CPU.
"""

import contextlib
import gc
import hashlib
import resource
import signal
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "props"))

from allocation import largest_bytes, peak_bytes
from fuzz_targets import Target

HANG_MS = 50
STUCK_S = 3.0
FENCE_BYTES = 512 << 20
"""Address space that the process may grow by: a believed claim of a gigabyte ends in MemoryError."""

_SHRINK_STEPS = 3000


class Stuck(BaseException):
    """Raised by the timer into code that does not come back."""


class Finding(NamedTuple):
    """An input that a target should have stood, and what happened."""

    target: str
    kind: str
    """crash, hang or memory."""

    where: str
    """Of a crash, the exception and its line: two inputs with the same are one finding."""

    detail: str
    data: bytes

    @property
    def name(self) -> str:
        words = "-".join(self.target.split())
        return f"{words}-{self.kind}-{hashlib.sha256(self.where.encode()).hexdigest()[:8]}"


def judge(target: Target, data: bytes, trace: bool = False) -> Finding | None:
    """Run the target on ``data``; None when it stood."""
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)
    began = time.thread_time_ns()
    try:
        target.run(data)
    except target.allowed:
        pass
    except Stuck:
        return Finding(target.name, "hang", "stuck", f"no end within {STUCK_S:.0f} s", data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return _crash(target, data, error)
    finally:
        took_ms = (time.thread_time_ns() - began) / 1e6
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if took_ms > HANG_MS:
        took_ms = min(took_ms, *(_once_ms(target, data) for _ in range(2)))
        if took_ms > HANG_MS:
            return Finding(target.name, "hang", "slow", f"{took_ms:.0f} ms for {len(data)} bytes", data)
    return _memory(target, data) if trace else None


def _memory(target: Target, data: bytes) -> Finding | None:
    def run() -> object:
        try:
            return target.run(data)
        except target.allowed as error:
            return error

    most, single = target.memory_max(len(data)), target.single_max(len(data))
    peak = peak_bytes(run, min(most, single))
    if peak > most:
        return Finding(target.name, "memory", "peak", f"{peak} bytes for {len(data)}", data)
    if peak > single:
        largest = largest_bytes(run, single)
        if largest > single:
            return Finding(target.name, "memory", "single", f"{largest} bytes at once for {len(data)}", data)
    return None


def _once_ms(target: Target, data: bytes) -> float:
    began = time.thread_time_ns()
    with contextlib.suppress(*target.allowed):
        target.run(data)
    return (time.thread_time_ns() - began) / 1e6


def _crash(target: Target, data: bytes, error: Exception) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "millstream" in f.filename or "/tests/" in f.filename), frames[-1])
    where = f"{type(error).__name__} in {last.name}: {last.line}"
    return Finding(target.name, "crash", where, f"{type(error).__name__}: {error}", data)


@contextlib.contextmanager
def fence() -> Generator[None]:
    """Bounds for the process: its address space, and the time of one input."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, _stuck)
    resource.setrlimit(resource.RLIMIT_AS, (held + FENCE_BYTES, before[1]))
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


def _stuck(*_: object) -> None:
    raise Stuck


def shrink(target: Target, finding: Finding) -> Finding:
    """The same finding from fewer, plainer bytes: runs left out, halves first, then bytes made zero."""
    best = finding
    left = _SHRINK_STEPS if finding.where != "stuck" else 30

    def attempt(data: bytes) -> bool:
        nonlocal best, left
        left -= 1
        found = judge(target, data, trace=finding.kind == "memory")
        if found is None or (found.kind, found.where) != (finding.kind, finding.where):
            return False
        best = found
        return True

    size = max(1, len(best.data) // 2)
    while left > 0:
        at = 0
        while at < len(best.data) and left > 0:
            if not attempt(best.data[:at] + best.data[at + size :]):
                at += size
        if size == 1:
            break
        size //= 2
    for at in range(len(best.data)):
        if left > 0 and best.data[at]:
            attempt(best.data[:at] + b"\0" + best.data[at + 1 :])
    return best
