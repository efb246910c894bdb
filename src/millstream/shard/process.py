"""Forking, naming, pinning and waiting for processes.

All processes of a broker are forks of one supervisor that has imported everything and started no thread. They start in
milliseconds and share its pages. ``spawn`` forks one::

    child = spawn("writer 0", main)      # main() -> exit code, in the child
    reactor.add_reader(child.pidfd, …)   # readable when it has ended
    child.wait() -> ExitStatus

Guarantees to a child: it is killed (SIGKILL) when its parent ends for any reason, even before the child's first
instruction. It ignores SIGINT, SIGTERM and SIGHUP, which a terminal or a service manager sends to the whole group; the
supervisor alone decides how to stop, and kills processes that do not. It has none of the parent's exit handlers and
leaves through ``os._exit``, with ``main``'s result as exit code. An exception that escapes ``main`` is written to
stderr with its traceback and ends in ``EXIT_SOFTWARE``.

Guarantee to the parent: the descriptor reports the child's end even if its pid was reused.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.shard.stall import dump_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.quantities import ShardId

EXIT_OK: Final = 0
EXIT_UNAVAILABLE: Final = 69  # the port or the data directory is taken or unusable
EXIT_SOFTWARE: Final = 70  # a broken invariant
EXIT_STORAGE: Final = 74  # a write or a sync failed
EXIT_CHILD: Final = 75  # another process of the broker died

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)

_LAUNCHER: Final = (
    "import ctypes, os, sys\n"
    f"failed = ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(sys.argv[1]), 0, 0, 0)\n"
    "if failed or os.getppid() != int(sys.argv[2]): os._exit(1)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)
"""Asks the kernel for a signal when its parent ends, then becomes the command."""


def bound_to_us(command: list[str], signum: signal.Signals) -> list[str]:
    """``command``, to be started by this process: it gets ``signum`` when the thread that has started it ends.

    A launcher does it, not a ``preexec_fn``: a fork that runs Python finalises the objects of other threads, and
    py4j's close the connection that the child shares with its parent.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(int(signum)), str(os.getpid()), *command]


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: with an exit code, or by a signal (then the code is 128 + signal)."""

    code: int
    signal: int = 0

    def __str__(self) -> str:
        return f"was killed by {signal.Signals(self.signal).name}" if self.signal else f"exited with code {self.code}"


class Child:
    """A forked process. ``pidfd`` becomes readable at its end."""

    __slots__ = ("name", "pid", "pidfd", "status")

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.status: ExitStatus | None = None

    def poll(self) -> ExitStatus | None:
        """Its exit status, None while it runs. Reaps the process."""
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._ended(status)
        return self.status

    def wait(self, timeout_s: float | None = None) -> ExitStatus | None:
        """Wait for its end; None if ``timeout_s`` passed first. Not on a reactor's thread."""
        if self.status is None:
            ended = select.poll()  # select() accepts no descriptor above 1023
            ended.register(self.pidfd, select.POLLIN)
            if not ended.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            self._ended(os.waitpid(self.pid, 0)[1])
        return self.status

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal. No effect after the process has ended."""
        if self.status is not None:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, signum)
        except ProcessLookupError:
            return

    def _ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.status = ExitStatus(code) if code >= 0 else ExitStatus(128 - code, -code)
        os.close(self.pidfd)

    def __repr__(self) -> str:
        return f"Child({self.name!r}, pid {self.pid}, {self.status or 'running'})"


def spawn(name: str, main: Callable[[], int | None]) -> Child:
    """Fork a process that runs ``main`` and exits with its result. The module lists the guarantees."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return Child(name, pid)
    code = EXIT_SOFTWARE
    try:
        _begin(name, parent)
        code = main() or EXIT_OK
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_SOFTWARE
    except BaseException:  # noqa: BLE001  # the last stop of this process
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            code = code or EXIT_SOFTWARE
        os._exit(code)


def _begin(name: str, parent: int) -> None:
    """First steps of a child: die with the parent, ignore group signals, take the name."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(EXIT_CHILD)  # the parent ended before the line above
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    dump_on_signal()
    rename(name)


def rename(name: str) -> None:
    """Show the process as ``name`` in ps and top: in the 15 bytes of its short name, and in its command line as far as
    it fits.
    """
    title = f"millstream: {name}".encode()
    _libc.prctl(_PR_SET_NAME, b"ms " + name.encode()[:12], 0, 0, 0)
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49
    except (OSError, IndexError, ValueError):
        return
    room = end - begin
    if room > 1:
        ctypes.memmove(begin, title[: room - 1].ljust(room, b"\0"), room)


def pin(core: int) -> None:
    """Bind this process to one core. Its later forks inherit that, so fork helper processes first."""
    os.sched_setaffinity(0, {core})


def become_realtime(thread: int = 0) -> None:
    """Give a thread, and what it starts later, real-time priority over all ordinary work, the kernel's own threads
    included. An ordinary process that wakes up may wait behind one of those until the next clock tick.

    ``SCHED_RR`` at the lowest priority, so that a shard and a writer on one core take turns. PermissionError without
    the right to it.
    """
    os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


def become_ordinary() -> None:
    """Give this thread's real-time priority back."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def may_become_realtime() -> bool:
    """Whether this ordinary process has the right to real-time priority. Its forks then have it, too."""
    try:
        become_realtime()
    except PermissionError:
        return False
    become_ordinary()
    return True


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def core_of(shard: ShardId) -> int:
    """The core that a pinned shard runs on: that of its number, among those that the broker may use."""
    usable = cores()
    return usable[shard % len(usable)]


def threads() -> int:
    """Number of threads of this process, native ones included. A supervisor must have one when it forks."""
    return max(len(os.listdir("/proc/self/task")), threading.active_count())
