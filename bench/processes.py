"""What a running broker costs, read from ``/proc``: CPU and memory of a whole process tree.

A broker here is one process (the peer) or a supervisor with shards and helpers (ours); both are named by the pid of
the root. CPU is user + system time of every live process of the tree plus what its reaped children used (``cutime``),
so a helper that ended in between is not lost. Memory is PSS, which divides a page shared by n processes by n: the sum
over a tree is what the tree really holds. A process that ends between the listing and the reading counts as nothing.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Self

from millstream.shard.process import become_ordinary, become_realtime

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_AT_REST = 0.075


def _stat_fields(pid: int) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` after the name (which may hold spaces): index 0 is the state; empty if there is
    no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie, which only waits to be reaped, does not."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def _tasks(pid: int) -> list[int]:
    """Its threads."""
    try:
        return [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                yield from (int(child) for child in file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue


def tree(root: int) -> list[int]:
    """Live pids of ``root`` and all its descendants, the root first."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if is_alive(pid):
            found.append(pid)
            waiting.extend(_children(pid))
    return found


def cpu_seconds(root: int) -> float:
    """User + system time of the tree since each of its processes began."""
    ticks = 0
    for pid in tree(root):
        fields = _stat_fields(pid)
        if fields:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_A_SECOND


class Watched:
    """CPU of a tree whose processes come and go, some of them reaped without a trace in their parent's ``cutime``.

    Spark's daemon of Python workers ignores SIGCHLD, so the kernel forgets the CPU of a worker that ends. A thread
    looks at the tree every tenth of a second while the block lasts; what a process used after its last look is lost.
    """

    LOOK_S = 0.1

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks: dict[tuple[int, str], int] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look_on, name="cpu", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self) -> float:
        """User + system time of every process that was ever seen in the tree; never falls."""
        self._look()
        with self._lock:
            return sum(self._ticks.values()) / TICKS_A_SECOND

    def _look_on(self) -> None:
        while not self._ended.wait(self.LOOK_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            for pid in tree(self._root):
                fields = _stat_fields(pid)
                if fields:  # a pid may come again; with its start time it is one process
                    self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])


def make_realtime(root: int) -> None:
    """Gives every thread of the tree, and what they will start, real-time priority."""
    for pid in tree(root):
        for task in _tasks(pid):
            with contextlib.suppress(ProcessLookupError):
                become_realtime(task)


@contextlib.contextmanager
def realtime() -> Generator[None]:
    """This thread, and what it starts meanwhile, at real-time priority. PermissionError without the right to it."""
    become_realtime()
    try:
        yield
    finally:
        become_ordinary()


def wait_for_rest(root: int, limit_s: float, look_s: float = 0.2) -> None:
    """Waits until the tree used less than 7.5 % of a core between two samples, at most for ``limit_s``."""
    deadline = time.monotonic() + limit_s
    used_s = cpu_seconds(root)
    while time.monotonic() < deadline:
        before_s = used_s
        time.sleep(look_s)
        used_s = cpu_seconds(root)
        if used_s - before_s < _AT_REST * look_s:
            return


def stolen_s() -> float:
    """How long cores of this machine had work and its host ran something else, since the start, over all cores.

    The kernel counts it in ticks of its clock, mostly 10 ms, so it says little about less than a second.
    """
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def pss_bytes(root: int) -> int:
    """Proportional set size of the tree."""
    total = 0
    for pid in tree(root):
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                total += next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def descriptors(root: int) -> int:
    """Open descriptors of all processes of the tree."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += len(os.listdir(f"/proc/{pid}/fd"))
    return total


def allocated_bytes(directory: Path) -> int:
    """What the files under a directory take on the disk. A file that is removed meanwhile counts as nothing."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += 512 * path.stat().st_blocks
    return total


def name_of(pid: int) -> str:
    """Command line of ``pid``, or its short name, for messages."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip() or "?"
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def comm_of(pid: int) -> str:
    """Short name of ``pid``; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill_tree(root: int) -> list[int]:
    """SIGKILL to every process of the tree, the root first so that nothing is started again; returns the pids."""
    pids = tree(root)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def wait_gone(pids: list[int], timeout_s: float = 60.0) -> list[int]:
    """Waits until none of ``pids`` runs; returns those that still do when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in pids if is_alive(pid)]
        if not left or time.monotonic() >= deadline:
            return left
        _wait_exit(left[0], min(0.2, max(0.0, deadline - time.monotonic())))


def _wait_exit(pid: int, timeout_s: float) -> None:
    """Sleeps until ``pid`` ends or the time is over, on the process itself (pidfd), not on a clock."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)
