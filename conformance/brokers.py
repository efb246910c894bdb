"""The broker that a suite runs against: ours in a temporary directory, or with ``--peer kafka`` a real Apache Kafka.

With ``--brokers 3`` ours is a cluster of three, in which every topic that a suite makes has three replicas unless it
says otherwise. A suite asks for one with the settings that it expects, in Kafka's names, which both understand.
``complaints`` are the ERROR lines of our log with what stands below them: each is a failure of ours, whatever the suite
thinks. A broker that ended by itself is one too.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Protocol

from bench.peers.kafka import KAFKA_VERSION, Kafka, free_port, kafka

from millstream import __version__
from millstream.testing.clusters import Cluster, cluster
from millstream.testing.process import Broker

LINE = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (\w+) ")
EXPECTED = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "3000"}
"""What suites take for granted of a test cluster; all else is at its defaults, which they count on, too: without the
pause before a group's first assignment two members that subscribe together get one after the other.
"""
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
"""What topics of a suite get when it runs against three brokers."""
HAND_OVER_LIMIT_S = 240.0
PEER = {"node.id": "0", "auto.create.topics.enable": "true"}
"""The peer gets the node id that some tests expect, and the defaults that this harness otherwise changes for it."""


class Served(Protocol):
    """A broker, or a cluster, for the time of a suite."""

    @property
    def bootstrap(self) -> str: ...

    def kill(self) -> None:
        """Kills every process of the broker; of a cluster, that of one broker after the other, call by call."""
        ...

    def restart(self) -> None:
        """Starts what was killed again, on the same data."""
        ...

    def hand_over(self) -> None:
        """Moves what one broker of a cluster leads to the others, and lets it lead again; another one at each call. One
        broker alone does nothing.
        """
        ...

    def revive(self) -> bool:
        """Starts again what has ended by itself; returns whether something had."""
        ...

    def complaints(self) -> list[str]:
        """ERROR lines so far, each with the lines below it."""
        ...


class RunningCluster:
    """A cluster of ours for the time of a suite."""

    def __init__(self, brokers: Cluster) -> None:
        self._cluster = brokers
        self._turn = 0

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self) -> None:
        self._turn = self._turn % len(self._cluster.brokers) + 1
        self._cluster.kill(self._turn)

    def restart(self) -> None:
        self._cluster.restart(self._turn)

    def hand_over(self) -> None:
        self._turn = self._turn % len(self._cluster.brokers) + 1
        for change in ("drain", "undrain"):
            program = [sys.executable, "-m", "millstream.cli"]
            command = [*program, "cluster", change, str(self._turn), "--bootstrap", self.bootstrap]
            subprocess.run(command, capture_output=True, timeout=HAND_OVER_LIMIT_S, check=True)

    def revive(self) -> bool:
        ended = [node for node, broker in self._cluster.brokers.items() if not broker.running]
        for node in ended:
            self._cluster.restart(node)
        return bool(ended)

    def complaints(self) -> list[str]:
        texts = [
            broker.log_path.read_text(encoding="utf-8", errors="replace") for broker in self._cluster.brokers.values()
        ]
        return [line for text in texts for line in error_lines(text)]


@contextlib.contextmanager
def running_cluster(settings: Mapping[str, str], keep_log: Path | None = None) -> Generator[RunningCluster]:
    """Runs three brokers; their logs are copied to ``keep_log`` at the end."""
    with cluster(3, settings={**EXPECTED, **settings}, memory="256MiB") as three:
        try:
            yield RunningCluster(three)
        finally:
            if keep_log is not None:
                with open(keep_log, "ab") as kept:
                    kept.writelines(broker.log_path.read_bytes() for broker in three.brokers.values())


class Running:
    """A broker for the time of a suite: ``bootstrap`` is its address."""

    def __init__(self, broker: Broker | Kafka) -> None:
        self._broker = broker

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def data_dir(self) -> Path:
        return self._broker.data_dir

    def kill(self) -> None:
        self._broker.kill()

    def restart(self) -> None:
        """Starts it again on the same data and port."""
        self._broker.restart()

    def hand_over(self) -> None:
        """Does nothing: there is no other broker."""

    def revive(self) -> bool:
        """Starts it again if it has ended by itself; returns whether it had."""
        if not isinstance(self._broker, Broker) or self._broker.running:
            return False
        self._broker.restart()
        return True

    def complaints(self) -> list[str]:
        """ERROR lines of our broker so far, each with the lines below it."""
        if not isinstance(self._broker, Broker):
            return []
        return error_lines(self._broker.log_path.read_text(encoding="utf-8", errors="replace"))


def error_lines(text: str) -> list[str]:
    """The ERROR entries of a broker's log."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        match = LINE.match(line)
        if match:
            inside = match[1] == "ERROR"
            if inside:
                found.append(line)
        elif inside:
            found[-1] += "\n" + line
    return found


def name(peer: str | None, count: int = 1) -> str:
    """What the tables call it."""
    ours = f"Millstream {__version__}" + (f", {count} brokers" if count > 1 else "")
    return f"Apache Kafka {KAFKA_VERSION}" if peer else ours


@contextlib.contextmanager
def running(peer: str | None, settings: Mapping[str, str], keep_log: Path | None = None) -> Generator[Running]:
    """Runs one broker; its log is copied to ``keep_log`` at the end."""
    directory = Path(tempfile.mkdtemp(prefix="conformance-"))
    wanted = {**EXPECTED, **settings}
    try:
        if peer:
            with kafka(properties={**PEER, **wanted}, directory=str(directory)) as theirs:
                yield Running(theirs)
            return
        address = f"127.0.0.1:{free_port()}"
        wanted["advertised.listeners"] = (
            f"PLAINTEXT://{address}"  # set explicitly, as for the peer, because a test expects it
        )
        ours = Broker(settings=wanted, data_dir=directory / "data", memory="512MiB", listen=address)
        try:
            yield Running(ours.start())
        finally:
            try:
                ours.close()
            finally:
                if keep_log is not None:
                    with open(keep_log, "ab") as kept:
                        kept.write(ours.log_path.read_bytes())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
