"""The processes and files behind ``millstream dev``.

::

    DIR/dev.json       how each broker is started: its ports and options; written once
    DIR/cluster.json   {"bootstrap": "…,…", "brokers": [{"id": 1, "pid": …, "bootstrap": …, "http": …}]}
    DIR/1, DIR/2, …    data directories
    DIR/1.log, …       what each broker wrote to standard error

Each broker runs in a session of its own, so that Ctrl-C at the terminal reaches this command alone, which stops them in
order. Ports are chosen at the first start and kept, because brokers find each other under the addresses that formed the
cluster.

**Failure.** If a broker dies, the others continue, and one line reports it. Brokers keep running if the command itself
is killed; the next command finds them, refuses to start, and names them. Only files that ``dev.json`` lists are
deleted. **Races.** Both files change under a lock on ``DIR/dev.lock``, and each is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.cli.failure import CommandFailed
from millstream.cli.key_files import KeyFiles
from millstream.cli.output import remark
from millstream.config.ports import free_ports, is_free
from millstream.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

HOST: Final = "127.0.0.1"
_USER: Final = "admin"
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
_LOOK_S: Final = 0.2


class DevBroker(msgspec.Struct):
    """One broker in ``cluster.json``."""

    id: int
    pid: int
    bootstrap: str
    http: str


class _Written(msgspec.Struct):
    """``cluster.json``."""

    bootstrap: str
    brokers: list[DevBroker]


class _Plan(msgspec.Struct):
    """``dev.json``: addresses by broker, and options that all of them get."""

    listen: dict[int, str]
    peer: dict[int, str]
    http: dict[int, str]
    options: list[str]
    config: str = ""
    """Properties of all brokers; with them clients are served over TLS."""

    def command(self, node: int, data: Path) -> list[str]:
        """The command line of one broker."""
        command = [sys.executable, "-m", "millstream.cli", "start", "--data", str(data / str(node))]
        listen = f"SSL://{self.listen[node]}" if self.config else self.listen[node]
        command += ["--listen", listen, "--http", self.http[node], *self.options]
        if self.config:
            command += ["--config", self.config]
        if len(self.peer) > 1:
            command += ["--node-id", str(node), "--peer-listen", self.peer[node]]
            command += ["--seeds", ",".join(self.peer.values()), "--set", "shards.pin=false"]
        return command


class DevCluster:
    """One dev cluster in its directory.

    Lifecycle: ``running`` starts it and stops it at the end of the block; ``restart`` is for another process.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._plan_path = data / "dev.json"
        self._path = data / "cluster.json"
        self.brokers: dict[int, DevBroker] = {}
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._dead: set[int] = set()
        """Process ids of brokers whose end was reported."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for _, broker in sorted(self.brokers.items()))

    # The command that runs the cluster

    @contextmanager
    def running(self, count: int, options: Sequence[str], *, keep: bool, secure: bool = False) -> Generator[None]:
        """Start the brokers; stop all of them at the end of the block, also those that ``restart`` has started.

        Raises:
            CommandFailed: the directory is something else, brokers of it run already, or a broker did not start.
        """
        signal.signal(signal.SIGTERM, _interrupt)
        self._check_ours()
        with self._locked():
            plan = self._prepare(count, options, keep=keep)
            plan.config = self._secured() if secure else ""
            _replace(self._plan_path, plan)
        try:
            with self._locked():
                for node in plan.listen:
                    self._spawn(plan, node)
                for node in plan.listen:
                    self.brokers[node] = self._await(node)
                self._save()
            yield
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._stop_all()

    def wait(self) -> None:
        """Return when no broker is left; say which one ended."""
        while True:
            time.sleep(_LOOK_S)
            for node, child in self._children.items():
                if child.poll() is not None and child.pid not in self._dead:
                    self._dead.add(child.pid)
                    remark(
                        f"broker {node} has ended ({_ending(child.returncode)}); 'millstream dev restart {node} --data "
                        f"{self._data}' starts it again, {self._data / f'{node}.log'} says what it wrote"
                    )

    def _check_ours(self) -> None:
        """Refuse a directory with other content, before anything is written into it."""
        if self._data.is_dir() and not self._plan_path.exists() and any(self._data.iterdir()):
            raise CommandFailed(
                f"{self._data} is not empty and holds no dev cluster; give an empty directory, or a new one"
            )

    def _prepare(self, count: int, options: Sequence[str], *, keep: bool) -> _Plan:
        """The plan to start by, after what was here before is refused, kept or removed."""
        before = self._load_plan()
        for broker in self._load().values():
            if _runs(self._data / str(broker.id), broker.pid):
                raise CommandFailed(
                    f"broker {broker.id} of {self._data} is running (process {broker.pid}); stop the command that "
                    f"started it, or the process with 'kill {broker.pid}'"
                )
        if keep and before is not None:
            if len(before.listen) != count:
                raise CommandFailed(
                    f"{self._data} holds a cluster of {len(before.listen)} brokers, not {count}; give -n "
                    f"{len(before.listen)}, or leave --keep out to start empty"
                )
            plan = msgspec.structs.replace(before, options=list(options))
            for node in plan.listen:
                self._move_ports(plan, node)
        else:
            for node in before.listen if before is not None else ():
                shutil.rmtree(self._data / str(node), ignore_errors=True)
                (self._data / f"{node}.log").unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
            ports = iter(free_ports(3 * count, HOST))
            nodes = range(1, count + 1)
            listen, peer, http = ({node: f"{HOST}:{next(ports)}" for node in nodes} for _ in range(3))
            plan = _Plan(listen, peer, http, list(options))
        return plan

    @property
    def client_properties(self) -> Path:
        """What clients of a secure cluster need."""
        return (self._data / "security" / "users" / _USER / "client.properties").resolve()

    def _secured(self) -> str:
        """The properties of brokers with TLS; their keys are made if they are not there."""
        keys = KeyFiles(self._data / "security")
        try:
            if not keys.directory.exists():
                keys.create(_USER)
                keys.add_node("localhost", [])
                keys.add_user(_USER)
        except Rejected as error:
            raise CommandFailed(error.message) from None
        return str((keys.directory / "localhost" / "broker.properties").resolve())

    def _move_ports(self, plan: _Plan, node: int) -> None:
        """Give a broker that does not run other ports for those that another process has taken since, and say so.
        The broker tells the others where it is when it registers.
        """
        for what, addresses in (("clients", plan.listen), ("other brokers", plan.peer), ("HTTP", plan.http)):
            before = addresses[node]
            if not is_free(int(before.rpartition(":")[2]), HOST):
                (port,) = free_ports(1, HOST)
                addresses[node] = f"{HOST}:{port}"
                remark(f"broker {node}: another process listens on {before}; its port for {what} is {port} from now on")

    def _stop_all(self) -> None:
        """Stop every broker in ``cluster.json``, and every child that is not in it yet."""
        with self._locked():
            pids = {child.pid for child in self._children.values() if child.poll() is None}
            pids |= {broker.pid for broker in self._load().values() if _runs(self._data / str(broker.id), broker.pid)}
            for pid in pids:
                _signal(pid, signal.SIGTERM)
            limit = time.monotonic() + STOP_TIMEOUT_S
            for child in self._children.values():
                try:
                    child.wait(max(limit - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    _signal(child.pid, signal.SIGKILL)
                    child.wait()
            for pid in pids:
                _await_end(pid, limit)

    # The command that starts one broker again

    def restart(self, node: int) -> DevBroker:
        """Start a broker again and return when it serves.

        Raises:
            CommandFailed: there is no such broker, or it did not start.
        """
        plan = self._load_plan()
        if plan is None:
            raise CommandFailed(
                f"{self._data} holds no dev cluster; 'millstream dev cluster --data {self._data}' starts one"
            )
        if node not in plan.listen:
            raise CommandFailed(
                f"the dev cluster in {self._data} has no broker {node}; it has {', '.join(map(str, plan.listen))}"
            )
        with self._locked():
            self.brokers = self._load()
            before = self.brokers.get(node)
            if before is not None and _runs(self._data / str(node), before.pid):
                _signal(before.pid, signal.SIGTERM)
                _await_end(before.pid, time.monotonic() + STOP_TIMEOUT_S)
            self._move_ports(plan, node)
            _replace(self._plan_path, plan)
            self._spawn(plan, node)
            broker = self.brokers[node] = self._await(node)
            self._save()
        return broker

    # Processes

    def _spawn(self, plan: _Plan, node: int) -> None:
        with (self._data / f"{node}.log").open("ab") as log:
            self._children[node] = subprocess.Popen(
                plan.command(node, self._data),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _await(self, node: int) -> DevBroker:
        """The broker that was spawned, once it serves."""
        child = self._children[node]
        assert child.stdout is not None
        readable, _, _ = select.select([child.stdout], [], [], READY_TIMEOUT_S)
        line = child.stdout.readline() if readable else ""
        if not line:
            log = self._data / f"{node}.log"
            if readable:
                child.wait()
                raise CommandFailed(f"broker {node} did not start: {_last_line(log)}; see {log}")
            raise CommandFailed(f"broker {node} does not serve after {READY_TIMEOUT_S:g} s; see {log}")
        about = json.loads((self._data / str(node) / "broker.json").read_text(encoding="utf-8"))
        return DevBroker(node, about["pid"], about["bootstrap"], about["http"])

    # Files

    @contextmanager
    def _locked(self) -> Generator[None]:
        self._data.mkdir(parents=True, exist_ok=True)
        with (self._data / "dev.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load_plan(self) -> _Plan | None:
        return _read(self._plan_path, _Plan)

    def _load(self) -> dict[int, DevBroker]:
        written = _read(self._path, _Written)
        return {} if written is None else {broker.id: broker for broker in written.brokers}

    def _save(self) -> None:
        brokers = [broker for _, broker in sorted(self.brokers.items())]
        _replace(self._path, _Written(self.bootstrap, brokers))


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CommandFailed(
            f"{path} is not what 'millstream dev cluster' writes: {error}; remove its directory"
        ) from None


def _replace(path: Path, content: object) -> None:
    """Replace a file as a whole."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    new.rename(path)


def _runs(data: Path, pid: int) -> bool:
    """Whether a broker with this process id holds the data directory; another process may have that id by now."""
    try:
        lock = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 32, 0).strip() == str(pid).encode()
    finally:
        os.close(lock)
    return False


def _signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass  # it has ended by itself


def _await_end(pid: int, limit: float) -> None:
    """Return when a process has ended; one that takes longer than until ``limit`` is killed."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([descriptor], [], [], max(limit - time.monotonic(), 0.1))[0]:
            _signal(pid, signal.SIGKILL)
            select.select([descriptor], [], [], STOP_TIMEOUT_S)
    finally:
        os.close(descriptor)


def _interrupt(signum: int, frame: object) -> None:
    _ = signum, frame
    raise KeyboardInterrupt


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it wrote nothing"
