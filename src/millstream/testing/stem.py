"""Many brokers and commands in a fraction of their cost: forks of a process that has imported everything.

The start of a broker or a command costs half a second of processor, nearly all of it for imports. A test run that
starts hundreds calls ``grow`` once. From then on ``Broker.start`` in this process takes its brokers from a stem, which
is started with the first of them, and ``run_command`` takes its commands from another::

    test process ── line ──► stem (imports a broker's modules once) ── fork ──► broker, in a session of its own
         └───────────── waits on the broker's pidfd, and asks the stem for the exit code ─────────┘

A fork is what ``python -m millstream.cli`` with its words would be in its place. Its words, environment, working
directory, limits and descriptors are those that its starter has chosen or has at that moment; it goes the whole
way from the words to the end of the interpreter; a broker that starts itself again does it with a real ``exec``. It
shares the seed of hashes with its siblings. A start with a prefix, or with other variables for the interpreter, the
linker or the locale than the stem has, is an ``exec`` as without a stem: those are read when a program starts.

A stem ends with the process that has started it, however that ends, and every fork with it, as without a stem. If
it does not come up or dies, each start and each wait says so with ``OSError``.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, Literal, NoReturn

from millstream.shard.process import bound_to_us

Kind = Literal["broker", "command"]

COMMAND_TIMEOUT_S: Final = 300.0

_MESSAGE_BYTES: Final = 1 << 20
_LIMITS: Final = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_READ_AT_EXEC: Final = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_")
_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNET: Final = 0x40000000
_NOT_AHEAD: Final = ("pipeline", "job")
"""Commands that import Spark, or what is as large: they do it themselves."""


def _at_exec(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program reads before its first instruction, of these variables."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_EXEC)}


class Forked:
    """A fork of the stem, with the face of ``subprocess.Popen`` as far as it is needed."""

    def __init__(self, stem: "Stem", pid: int, stdout: int | None) -> None:
        self._stem = stem
        self._lock = threading.Lock()
        self._pidfd = os.pidfd_open(pid)  # it stays, at least as a zombie, until this object asks for its end
        self.pid = pid
        self.stdout = None if stdout is None else os.fdopen(stdout, encoding="utf-8")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that has ended it; None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
                self._reap()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return what ``poll`` does.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        if self.returncode is None:
            watch = select.poll()
            watch.register(self._pidfd, select.POLLIN)
            if not watch.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def _reap(self) -> None:
        self.returncode = self._stem.ask({"reap": self.pid})
        os.close(self._pidfd)


class Stem:
    """The starter's end. ``start`` and ``ask`` may be called by any thread."""

    def __init__(self, kind: Kind = "broker") -> None:
        self._lock = threading.Lock()
        self._at_exec = _at_exec(os.environ)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "millstream.testing.stem", kind, str(theirs.fileno())]
            self._process = subprocess.Popen(
                bound_to_us(command, signal.SIGKILL), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

        atexit.register(self._close, os.getpid())

    def _close(self, starter: int) -> None:
        """End the stem, unless it is a fork of the starter that ends here."""
        self._line.close()
        if os.getpid() == starter:
            self._process.kill()
            self._process.wait()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork can have this environment."""
        return _at_exec(environment) == self._at_exec

    def start(self, words: Sequence[str], environment: Mapping[str, str], log: int, network: str = "") -> Forked:
        """Run ``millstream`` with these words, in a network of ``ip netns`` if one is named. What it writes to standard
        error goes to the descriptor ``log``; its standard output is a pipe.
        """
        reading, writing = os.pipe()
        try:
            pid = self._fork(words, environment, [writing, log], network)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return Forked(self, pid, reading)

    def start_between(
        self, words: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> Forked:
        """Run ``millstream`` with these words and standard descriptors."""
        return Forked(self, self._fork(words, environment, [stdout, stderr, stdin]), None)

    def _fork(
        self, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int], network: str = ""
    ) -> int:
        """Its pid. ``descriptors``: standard output, standard error, and perhaps standard input."""
        asked = {
            "words": words,
            "environment": dict(environment),
            "cwd": os.getcwd(),
            "network": network,
            "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        }
        return self.ask(asked, descriptors)

    def ask(self, question: Mapping[str, object], descriptors: Sequence[int] = ()) -> int:
        """What the stem answers: a pid or an exit code."""
        with self._lock:
            try:
                socket.send_fds(self._line, [json.dumps(question).encode()], descriptors)
                answer = self._line.recv(_MESSAGE_BYTES)
            except ConnectionError:
                answer = b""
        if not answer:
            raise OSError(f"the process that forks millstream has ended with {self._process.wait()}")
        return int(answer)


_stems: dict[int, dict[Kind, Stem]] = {}
"""The stems of this process by its pid: a fork of it has none."""


def grow() -> None:
    """Take the brokers and commands that this process starts from stems."""
    _stems.setdefault(os.getpid(), {})


@cache
def lasting_thread(pid: int) -> ThreadPoolExecutor:
    """The thread of process ``pid`` that starts its brokers and stems: the kernel ends them when this very thread ends,
    so it has to last as long as the process.
    """
    return ThreadPoolExecutor(1, f"starts the brokers of {pid}")


def stem_for(environment: Mapping[str, str], kind: Kind = "broker") -> Stem | None:
    """The stem for a fork with this environment; None if it has to be an ``exec``. Called by `lasting_thread`."""
    stems = _stems.get(os.getpid())
    if stems is None:
        return None
    stem = stems[kind] = stems.get(kind) or Stem(kind)
    return stem if stem.fits(environment) else None


def run_command(
    *words: object, stdin: str = "", env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of ``millstream`` to its end; what it has printed. Nothing is checked.

    Raises:
        subprocess.TimeoutExpired: it has not ended in so many seconds; it is killed then.
    """
    environment = dict(os.environ if env is None else env)
    arguments = [str(word) for word in words]
    stem = lasting_thread(os.getpid()).submit(stem_for, environment, "command").result()
    if stem is None:
        command = [sys.executable, "-m", "millstream.cli", *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        forked = stem.start_between(arguments, environment, given.fileno(), out.fileno(), err.fileno())
        try:
            code = forked.wait(timeout_s)
        except BaseException:
            forked.send_signal(signal.SIGKILL)
            forked.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def _words_of_a_fork(line: socket.socket) -> list[str]:
    """Serve the starter until it goes, which ends the process. Returns in each fork, with the words of its command."""
    stem = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 3)
        if not data:
            os._exit(0)
        asked = json.loads(data)
        if "reap" in asked:
            line.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(asked["reap"], 0)[1]))
        elif pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            line.send(b"%d" % pid)
        else:
            line.close()
            _become(asked, stem, *descriptors)
            return asked["words"]


def _become(asked: Mapping[str, Any], stem: int, output: int, log: int, given: int = 0) -> None:
    """Be what the starter would have started itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if failed or os.getppid() != stem:
        os._exit(1)
    os.setsid()
    os.dup2(given, 0)
    os.dup2(output, 1)
    os.dup2(log, 2)
    os.closerange(3, max(output, log, given) + 1)
    if asked["network"]:
        with open(f"/run/netns/{asked['network']}", "rb") as space:
            if libc.setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the network {asked['network']}")
    os.chdir(asked["cwd"])
    for limit, values in asked["limits"]:
        if resource.getrlimit(limit) != tuple(values):
            resource.setrlimit(limit, values)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    sys.orig_argv = [sys.executable, "-m", "millstream.cli", *asked["words"]]


def _import_broker() -> None:
    importlib.import_module("millstream.app.broker")
    importlib.import_module("millstream.kafka.served").warm_up()


def _import_commands() -> None:
    package = importlib.import_module("millstream.cli")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith(("_", *_NOT_AHEAD)):
            importlib.import_module(f"millstream.cli.{module.name}")


_IMPORTS: Final = {"broker": _import_broker, "command": _import_commands}


def _main(kind: str, descriptor: int) -> NoReturn:
    from millstream.cli.__main__ import main

    gc.disable()  # as the command does before it imports the broker
    _IMPORTS[kind]()
    gc.collect()
    gc.freeze()  # else each fork would look through all of it, and copy it by that
    if kind == "command":
        gc.enable()
    sys.exit(main(_words_of_a_fork(socket.socket(fileno=descriptor))))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
