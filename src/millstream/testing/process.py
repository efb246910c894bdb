"""A broker as a child process: start, stop, kill -9, start again on the same data.

It runs ``python -m millstream.cli start`` in a session of its own, so that ``kill`` reaches every process of the
broker, and reads the ready line from its standard output; nothing is guessed by waiting. What the broker logs is kept
in ``log_path``. A broker that does not come up raises ``BrokerFailed`` with the last lines of its log. Without
``data_dir`` it lives in a temporary directory that goes with it. It ends with the process that started it, also if
that one is killed. Consumer groups get their first assignment at once:
``group.initial.rebalance.delay.ms`` is 0 unless ``settings`` says otherwise.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millstream.client.security import read_security
from millstream.config.ports import free_ports
from millstream.shard.process import bound_to_us
from millstream.testing import share_groups
from millstream.testing.admin import create_topics
from millstream.testing.stem import Forked, lasting_thread, stem_for

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 120.0
DEFAULTS = {"group.initial.rebalance.delay.ms": 0, "insecure.listeners": "allow"}
"""Other than a broker's own: a test does not wait for more members of its group, and may listen where it likes."""


class BrokerFailed(RuntimeError):
    """The broker did not start, or did not stop as it should."""


class Broker:
    """A broker process; use it as a context manager or call ``start`` and ``close``.

    Attributes:
        bootstrap: ``host:port`` for Kafka clients.
        http: base URL of the HTTP port; metrics are at ``/metrics``.
        pid: of the supervisor.
        data_dir: where its data are.
        settings: of its next start, by name.
        log_path: everything it wrote to standard error, over all its starts.
        ca_path: certificate of the authority of a secure one; None for any other.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | Iterable[str] | None = None,
        settings: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        shards: int | None = None,
        memory: str | None = "256MiB",
        listen: str = "127.0.0.1:0",
        prefix: Sequence[str] = (),
        network: str = "",
        secure: bool = False,
    ) -> None:
        """``topics`` are names, or names with their number of partitions; ``prefix`` stands before the command that
        starts it; ``network`` is a name of ``ip netns``. A ``secure`` one takes TLS only, on its Kafka and HTTP ports,
        with an authority of its own (needs the extra ``security``): ``client`` has what clients need.
        """
        names = [topics] if isinstance(topics, str) else topics or ()
        self._topics = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, 1)
        self.settings = {**DEFAULTS, **(settings or {})}
        self.env = dict(env or {})
        """Added to its environment at its next start."""
        self._shards = shards
        self._memory = memory
        self._listen = listen
        self._prefix = list(prefix)
        self._network = network
        self._owns_directory = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="millstream-") if data_dir is None else data_dir)
        self.log_path = self.data_dir.with_name(self.data_dir.name + ".stderr")
        self._security: dict[str, str] = {}
        self.ca_path = self.data_dir.with_name(self.data_dir.name + ".keys") / "ca.pem" if secure else None
        if self.ca_path is not None:
            self._secure(self.ca_path)
        self._process: subprocess.Popen[str] | Forked | None = None
        self.bootstrap = ""
        self.http = ""
        self.pid = 0

    def command(self) -> list[str]:
        """The command line that starts it."""
        network = ["ip", "netns", "exec", self._network] if self._network else []
        return [*network, *self._prefix, sys.executable, "-m", "millstream.cli", *self._words()]

    def _words(self) -> list[str]:
        words = [
            "start",
            "--data",
            str(self.data_dir),
            "--listen",
            self._listen,
            "--http",
            f"{self._listen.rpartition(':')[0].rpartition('://')[2]}:0",
        ]
        if self._shards is not None:
            words += ["--shards", str(self._shards)]
        if self._memory is not None:
            words += ["--memory", self._memory]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        return words

    def start(self) -> Self:
        """Start it and return when it serves; topics that were asked for exist then."""
        environment = {**os.environ, **self.env}
        self._pick_port()
        with self.log_path.open("ab") as log:
            self._process = lasting_thread(os.getpid()).submit(self._spawn, environment, log.fileno()).result()
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self.wait()
            raise BrokerFailed(f"the broker ended with {code} before it served:\n{self.log_tail()}")
        about = self.about()
        self.bootstrap = about["bootstrap"]
        self.http = about["http"]
        scheme = self._listen.rpartition("://")[0]
        self._listen = f"{scheme}://{self.bootstrap}" if scheme else self.bootstrap
        if self._topics:
            try:
                create_topics(self.bootstrap, self._topics, security=read_security(self._security))
            except BaseException:
                self.kill()  # the caller cannot: it was never handed out
                raise
            self._topics = {}
        return self

    def _spawn(self, environment: dict[str, str], log: int) -> subprocess.Popen[str] | Forked:
        """Start the process, from the thread that its life depends on."""
        stem = None if self._prefix else stem_for(environment)
        if stem is not None:
            return stem.start(self._words(), environment, log, self._network)
        return subprocess.Popen(
            bound_to_us(self.command(), signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def _pick_port(self) -> None:
        """Choose a port where any would do: none that the kernel may give to a connection while the broker is away."""
        address, _, port = self._listen.rpartition(":")
        host = address.rpartition("://")[2]
        if port == "0" and host == "127.0.0.1":  # others may be those of a namespace, where this process is not
            (free,) = free_ports(1, host)
            self._listen = f"{address}:{free}"

    def _secure(self, ca_path: Path) -> None:
        """Make an authority and a certificate, and the settings that use them."""
        from millstream.secure.authority import issue, make_authority

        ca_path.parent.mkdir(mode=0o700, parents=True)
        authority = make_authority("Millstream test authority")
        pair = issue(authority, "broker", ["localhost", "127.0.0.1", "::1"])
        ca_path.write_bytes(authority.certificate)
        key_path = ca_path.with_name("broker.pem")
        key_path.write_bytes(pair.key + pair.certificate)
        given = self.settings
        self.settings = {"ssl.keystore.location": key_path, "http.security.protocol": "SSL", **given}
        self._security = {"security.protocol": "SSL", "ssl.ca.location": str(ca_path)}
        if "://" not in self._listen:
            self._listen = f"SSL://{self._listen}"

    @property
    def client(self) -> dict[str, str]:
        """What a client of confluent-kafka needs: its address, and how it is reached securely."""
        return {"bootstrap.servers": self.bootstrap, **self._security}

    def __repr__(self) -> str:
        state = f"bootstrap={self.bootstrap!r} pid={self.pid}" if self.running else "not running"
        return f"<Broker {state} data_dir={str(self.data_dir)!r}>"

    def new_topic(
        self, partitions: int = 1, *, prefix: str = "topic", config: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic under a name that no other test has; returns the name.

        Args:
            partitions: how many.
            prefix: what the name starts with.
            config: topic properties, such as ``{"retention.ms": -1}``.

        Raises:
            RuntimeError: the broker refuses it, with the broker's message.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        create_topics(self.bootstrap, {name: partitions}, config, read_security(self._security))
        return name

    def new_share_group(self, *, prefix: str = "group") -> str:
        """Make a share group under a name that no other test has, which starts at the beginning of each topic; returns
        the name.

        Raises:
            Rejected: the broker refuses it.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        share_groups.create(self.bootstrap, read_security(self._security), name)
        return name

    def wait_for_share_group(self, group: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until members of a share group have finished every record of their topics. The members have to poll.

        Raises:
            TimeoutError: it does not happen in time; the message says what is left.
        """
        share_groups.wait_until_finished(self.bootstrap, read_security(self._security), group, timeout_s)

    def about(self) -> dict[str, Any]:
        """What the broker wrote to ``broker.json``."""
        return json.loads((self.data_dir / "broker.json").read_text())

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, as an operator would; returns the exit code."""
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise BrokerFailed(f"the broker did not stop in {timeout_s} s:\n{self.log_tail()}") from error
        self._forget()
        return code

    def kill(self) -> None:
        """SIGKILL to every process of the broker, at once."""
        process = self._process
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        self._forget()

    def signal_all(self, signum: int) -> None:
        """Send a signal to every process of the broker."""
        assert self._process is not None
        os.killpg(self._process.pid, signum)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it ends by itself; returns the exit code."""
        process = self._process
        assert process is not None
        code = process.wait(timeout_s)
        self._forget()
        return code

    def restart(self) -> Self:
        """Start again on the same data and the same port, after ``kill`` or ``stop`` (or stop it now)."""
        if self.running:
            self.stop()
        return self.start()

    def close(self) -> None:
        """End it in any state, and remove the directory if it is temporary."""
        try:
            if self.running:
                self.stop()
        finally:
            self.kill()
            if self._owns_directory:
                shutil.rmtree(self.data_dir, ignore_errors=True)
                if self.ca_path is not None:
                    shutil.rmtree(self.ca_path.parent, ignore_errors=True)
                self.log_path.unlink(missing_ok=True)

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()
        if process is not None:
            self._wait_unlocked(process.pid)

    def _wait_unlocked(self, pid: int) -> None:
        """Wait until its lock on the data directory is released: every process of a broker holds it, and one that was
        killed in the midst of a sync ends after the supervisor.
        """
        try:
            lock = os.open(self.data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # it came to no lock, or its disk fails
        limit = time.monotonic() + STOP_TIMEOUT_S
        try:
            while os.pread(lock, 32, 0).strip() == b"%d" % pid and time.monotonic() < limit:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.005)
                else:
                    return
        finally:
            os.close(lock)

    def __enter__(self) -> Self:
        try:
            return self if self.running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


broker = Broker
"""``with broker(topics={"t": 3}) as b: b.bootstrap`` reads best in lower case."""
