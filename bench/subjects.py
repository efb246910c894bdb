"""The brokers that are measured, behind one face: ours with some number of shards, and the peer.

A subject is started with everything at its defaults, except that the peer gets the heap its makers recommend for a
small broker (1 GiB) and a long broker session, so that a pause of this machine does not fence it. Ours syncs every
acknowledged byte to the disk; the peer, at its defaults, does not sync at all: that difference is meant, and is said
in every table.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from bench import processes, raw
from bench.doors import PROTOCOL, Doors
from bench.peers.kafka import Kafka, free_port
from bench.verify import Produced
from millstream.cli.exposition import Exposition, read_exposition
from millstream.testing.process import Broker

PEER = "kafka"
PEER_HEAP = "1g"
FIRST_ACK_TIMEOUT_S = 120.0


class Subject:
    """A running broker: ``name``, ``bootstrap``, ``pid`` of its root process."""

    def __init__(
        self,
        name: str,
        directory: str,
        shards: int | None,
        settings: Mapping[str, str] | None = None,
        *,
        secure: bool = False,
    ) -> None:
        self.name = name
        self.shards = shards
        self.data_directory = Path(directory)
        self.filled: dict[int, Produced] = {}  # topics that fetch scenarios share, by records a batch
        self._peer: Kafka | None = None
        self._ours: Broker | None = None
        self._raw: subprocess.Popen[bytes] | None = None
        self._log_read = 0
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        own = Doors(Path(directory, "keys"), self.bootstrap) if secure else None
        given = dict(settings or {})
        if shards is None:
            given |= own.peer() if own else {}
            self._peer = Kafka(Path(directory), PEER_HEAP, given, (), port, PROTOCOL if own else "PLAINTEXT")
            self._peer.format()
        else:
            given |= own.ours() if own else {}
            self._ours = Broker(
                settings=given,
                data_dir=Path(directory, "data"),
                env={"MILLSTREAM_BOOTSTRAP_USER_FILE": str(own.user_file)} if own else {},
                shards=shards,
                memory=None,
                listen=f"{PROTOCOL}://{self.bootstrap}" if own else self.bootstrap,
            )

    def give(self, settings: Mapping[str, str]) -> None:
        """More settings for the next start of ours."""
        assert self._ours is not None
        self._ours.settings.update(settings)

    @property
    def is_peer(self) -> bool:
        return self._peer is not None

    @property
    def pid(self) -> int:
        if self._peer is not None:
            return self._peer.pid
        assert self._ours is not None
        return self._raw.pid if self._raw is not None else self._ours.pid

    def start(self) -> None:
        """Starts it and waits until it serves."""
        if self._peer is not None:
            self._peer.start()
        else:
            assert self._ours is not None
            self._ours.start()

    def spawn(self) -> None:
        """Starts it without waiting, so that the wait can be measured from outside."""
        if self._peer is not None:
            self._peer.spawn()
            return
        assert self._ours is not None
        with self._ours.log_path.open("ab") as log:
            self._raw = subprocess.Popen(
                self._ours.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def end(self, *, kill: bool) -> None:
        """Stops it as an operator would, or kills every process of it."""
        if self._peer is not None:
            if kill:
                self._peer.kill()
            else:
                self._peer.stop()
        elif self._raw is not None:
            process, self._raw = self._raw, None
            pids = processes.tree(process.pid)
            if kill:
                processes.kill_tree(process.pid)
            else:
                process.terminate()
            process.wait(60)
            processes.wait_gone(pids)
        elif self._ours is not None and self._ours.running:
            if kill:
                self._ours.kill()
            else:
                self._ours.stop()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the broker's log."""
        if self._peer is not None:
            text = self._peer.log_text()
        else:
            assert self._ours is not None
            text = self._ours.log_path.read_text(errors="replace") if self._ours.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def complaints(self) -> list[str]:
        """Warnings and errors in our log since the last call; none of the peer."""
        if self._ours is None or not self._ours.log_path.exists():
            return []
        with self._ours.log_path.open("rb") as log:
            log.seek(self._log_read)
            text = log.read().decode(errors="replace")
            self._log_read = log.tell()
        return complaints(text)

    def metrics(self) -> Exposition | None:
        """The metrics of our broker; None for the peer."""
        if self._ours is None:
            return None
        return read_exposition(f"{self._ours.about()['http']}/metrics", 10.0)

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def pss_bytes(self) -> int:
        return processes.pss_bytes(self.pid)


def complaints(log: str) -> list[str]:
    """The warnings and errors of a broker's log, and the stacks that follow them."""
    found: list[str] = []
    continues = False
    for line in log.splitlines():
        continues = " WARN " in line or " ERROR " in line or (continues and " INFO " not in line)
        if continues:
            found.append(line)
    return found


@contextlib.contextmanager
def subject(
    name: str,
    shards: int | None,
    *,
    start: bool = True,
    settings: Mapping[str, str] | None = None,
    secure: bool = False,
) -> Generator[Subject]:
    """A broker in a temporary directory of its own, gone afterwards. ``shards`` is None for the peer; ``settings`` are
    added to its defaults. A ``secure`` one takes TLS 1.3 with a login alone (`doors`).
    """
    directory = tempfile.mkdtemp(prefix=f"bench-{name.split()[0]}-")
    try:
        made = Subject(name, directory, shards, settings, secure=secure)
        try:
            if start:
                made.start()
            yield made
        except Exception as error:
            error.add_note(f"--- the last that {name} said\n{made.log_tail()}")
            raise
        finally:
            made.end(kill=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, "data.stderr"))


def seconds_to_first_ack(bootstrap: str, topic: str, began: float, *, create: bool) -> float:
    """Tries from ``began`` (monotonic) on until one record to ``topic`` is acknowledged, every 2 ms."""
    record = raw.batch([b"first"])
    while True:
        try:
            with raw.Caller(bootstrap, timeout_s=FIRST_ACK_TIMEOUT_S) as caller:
                if create:
                    caller.create_topics({topic: 1})
                    create = False
                caller.produce_one(topic, 0, record)
                return time.monotonic() - began
        except (OSError, raw.UnexpectedAnswer):
            if time.monotonic() - began > FIRST_ACK_TIMEOUT_S:
                raise
            time.sleep(0.002)
