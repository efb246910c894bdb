"""Reports to the starter of the broker: one line when it serves, and states for a service manager.

The line goes to standard output. Where standard error is another place, the log there has the line, too.

States go by systemd's protocol (``Type=notify``, sd_notify(3)). A state is one datagram of
``NAME=value`` lines to the socket in ``NOTIFY_SOCKET``; a name that starts with ``@`` is an abstract one. Without the
variable nothing is sent. A manager that does not listen is no error.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from millstream.shard.reactor import Reactor
from millstream.telemetry.log import log

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

BEGIN_ANEW: Final = "begin_anew"
"""On the control channel: this broker is to stop in order, and to start again by itself."""
_START_FIELD: Final = 19
"""Of ``/proc/PID/stat``, after the name: when the process started, in clock ticks since boot (proc(5))."""


def print_ready_line(line: str) -> None:
    """Print the line that says that the broker serves; the log has it where that is not the same place."""
    if not os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
        log.info("%s", line)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def seconds_since_exec() -> float:
    """Age of this process: what its starter has waited, the interpreter's own start included."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def tell_manager(state: str) -> None:
    """Send a state such as ``READY`` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return


def catch_signals(reactor: Reactor, stop: Callable[[], None], reload: Callable[[], None]) -> None:
    """SIGTERM and SIGINT stop the broker, SIGHUP has it read its key material again; the handlers run between callbacks
    and only ring a bell.
    """
    bell_read, bell_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(signum: int, frame: object) -> None:
        _ = frame
        os.write(bell_write, bytes((signum,)))

    def rung() -> None:
        received = signal.Signals(os.read(bell_read, 1)[0])
        log.info("%s received", received.name)
        if received is signal.SIGHUP:
            reload()
        else:
            stop()

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, ring)
    reactor.add_reader(bell_read, rung)


def begin_anew() -> NoReturn:
    """Start the same command again in this process, which has stopped everything."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
