"""Kafka Connect, from its jars, with the file connectors that it ships.

Standalone: what is written to one file arrives in the other, through a topic, and continues there after a restart.
Distributed: a group of workers keeps connectors, offsets and status in topics; connectors are made, paused, stopped,
reset and deleted over HTTP. Exactly once: workers and the broker are killed with SIGKILL in turn while the source's
file grows; a read_committed consumer must find each line once and in order, and the sink must have written each.
"""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.peers import kafka as peer

from conformance.checks import Bench, Check, CheckFailed
from conformance.java_apps import WAIT_S, JavaApps, application_command, started, stop, wait_for, write_properties
from conformance.transactions import committed

STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
KILLS = 6
"""Of a worker and of the broker, in turn."""
LINES = 50
"""Written to the source's file before and after each kill."""
REBALANCING = (409, 500, 503)
"""What a worker answers while the group settles, and while it waits for another one in vain."""
Json = Any
"""What an answer of Connect's HTTP interface holds."""
Holds = Callable[[], object]


def connect_copies_a_file_and_continues_after_a_restart(bench: Bench) -> None:
    source, sink, said = bench.folder / "source.txt", bench.folder / "sink.txt", bench.folder / "connect.log"
    port = peer.free_port()
    worker = write_properties(
        bench.folder / "worker.properties",
        {
            "bootstrap.servers": bench.bootstrap,
            "key.converter": TEXT,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
            "offset.storage.file.filename": str(bench.folder / "connect.offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{port}",
        },
    )
    reading = write_properties(
        bench.folder / "source.properties", {"name": "file-source", **_source(source, "connected")}
    )
    writing = write_properties(bench.folder / "sink.properties", {"name": "file-sink", **_sink(sink, "connected")})
    command = application_command(bench, STANDALONE, worker, reading, writing)
    limit_s = WAIT_S * bench.patience
    lines = [f"line {i}" for i in range(200)]
    for begin in (0, 100):
        _write(source, lines[begin : begin + 100])
        with started(bench, command, said) as process:
            expected = lines[: begin + 100]
            wait_for("the lines were copied", lambda wanted=expected: _lines(sink) >= wanted, process, said, limit_s)
            if begin == 0:
                wait_for("a task runs", lambda: _state(port, "file-sink") == "RUNNING", process, said, limit_s)
            stop(process, limit_s)
        assert _lines(sink) == expected, "a clean restart copies nothing twice and loses nothing"


def a_distributed_worker_keeps_connectors_and_offsets_in_topics(bench: Bench) -> None:
    source, sink = bench.folder / "source.txt", bench.folder / "sink.txt"
    with ExitStack() as stack:
        worker = Worker(bench, stack, "kept", 1)
        worker.start()
        _write(source, ["one", "two"])
        worker.ask("POST", "/connectors", {"name": "kept-source", "config": _source(source, "kept")})
        worker.ask("POST", "/connectors", {"name": "kept-sink", "config": _sink(sink, "kept")})
        worker.wait("two lines are copied", lambda: _lines(sink) == ["one", "two"])
        worker.ask("PUT", "/connectors/kept-source/pause")
        worker.wait("the source is paused", lambda: worker.states("kept-source") == {"PAUSED"})
        worker.kill()
        worker.start()
        worker.wait("it still is, after a kill", lambda: worker.states("kept-source") == {"PAUSED"})
        _write(source, ["three"])
        worker.ask("PUT", "/connectors/kept-source/resume")
        worker.wait("the third line is copied", lambda: _lines(sink)[-1:] == ["three"])
        assert "three" not in _lines(sink)[:-1], _lines(sink)

        read = {"partition": {"filename": str(source)}, "offset": {"position": len("one\ntwo\nthree\n")}}
        worker.wait(
            "the offset is kept", lambda: worker.ask("GET", "/connectors/kept-source/offsets")["offsets"] == [read]
        )
        worker.ask("PUT", "/connectors/kept-source/stop")
        worker.wait("the source is stopped", lambda: worker.states("kept-source") == {"STOPPED"})
        worker.wait("its offsets are reset", lambda: _asked(worker, "DELETE", "/connectors/kept-source/offsets"))
        worker.ask("PUT", "/connectors/kept-source/resume")
        worker.wait("all lines come again", lambda: _lines(sink)[-3:] == ["one", "two", "three"])
        worker.ask("DELETE", "/connectors/kept-sink")
        worker.wait("one is left", lambda: worker.ask("GET", "/connectors") == ["kept-source"])


def a_source_is_copied_exactly_once_through_kills(bench: Bench) -> None:
    source, sink = bench.folder / "source.txt", bench.folder / "sink.txt"
    lines = [f"line {number}" for number in range((2 * KILLS + 1) * LINES)]
    with ExitStack() as stack:
        workers = [Worker(bench, stack, "once", number) for number in (1, 2)]
        for worker in workers:
            worker.start()
        first = workers[0]
        written = LINES
        _write(source, lines[:written])
        exact = {"exactly.once.support": "required", "transaction.boundary": "poll"}
        first.ask("POST", "/connectors", {"name": "once-source", "config": {**_source(source, "once"), **exact}})
        first.ask("POST", "/connectors", {"name": "once-sink", "config": _sink(sink, "once")})
        first.wait("the first lines are copied", lambda: set(_lines(sink)) >= set(lines[:LINES]))
        for kill in range(KILLS):
            _write(source, lines[written : written + LINES])
            if kill % 2:
                bench.broker.kill()
            else:
                workers[kill // 2 % 2].kill()
            _write(source, lines[written + LINES : written + 2 * LINES])
            written += 2 * LINES
            if kill % 2:
                bench.broker.restart()
            else:
                workers[kill // 2 % 2].start()
            wanted = set(lines[: written - LINES])
            first.wait(f"lines are copied after kill {kill + 1}", lambda wanted=wanted: set(_lines(sink)) >= wanted, 4)
        first.wait("all lines are copied", lambda: set(_lines(sink)) >= set(lines), 4)
        found = [record.decode() for record in committed(bench.bootstrap, "once", WAIT_S * bench.patience)]
    assert len(found) == len(lines), f"{len(found)} records, {len(set(found))} different ones, of {len(lines)} lines"
    assert found == lines, "the order changed"
    assert set(_lines(sink)) == set(lines), "the sink wrote what was never there"


class Worker:
    """A process of a group of workers. Its configuration, offsets and status are in topics of the group."""

    def __init__(self, bench: Bench, stack: ExitStack, group: str, number: int) -> None:
        self._bench = bench
        self._stack = stack
        self._said = bench.folder / f"worker-{number}.log"
        self._port = peer.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        properties = {
            "bootstrap.servers": bench.bootstrap,
            "group.id": f"workers-{group}",
            "key.converter": TEXT,
            "value.converter": TEXT,
            **{f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")},
            **{f"{kind}.storage.replication.factor": "-1" for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "5",
            "offset.flush.interval.ms": "1000",
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "1000",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "consumer.auto.offset.reset": "earliest",
            "consumer.allow.auto.create.topics": "false",
            "listeners": f"http://127.0.0.1:{self._port}",
        }
        path = write_properties(bench.folder / f"worker-{number}.properties", properties)
        self._command = application_command(bench, DISTRIBUTED, path)

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self._process = self._stack.enter_context(started(self._bench, self._command, self._said))
        self.wait("a worker serves", lambda: _request(self._port, "GET", "/connectors") is not None, 2)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait(self, what: str, holds: Holds, times: int = 1) -> None:
        """Waits for something while it runs, ``times`` the usual limit. What it cannot answer yet does not hold yet."""
        assert self._process is not None

        def now() -> bool:
            try:
                return bool(holds())
            except (OSError, LookupError):
                return False

        try:
            wait_for(what, now, self._process, self._said, times * WAIT_S * self._bench.patience)
        except CheckFailed as error:
            raise CheckFailed(f"{error}; {self._status()}") from error

    def ask(self, method: str, path: str, body: object = None) -> Json:
        """Asks it over HTTP, again while workers rebalance. Raises ``CheckFailed`` if it refuses for another reason."""
        end = time.monotonic() + WAIT_S * self._bench.patience
        while True:
            try:
                return _request(self._port, method, path, body)
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code not in REBALANCING or time.monotonic() > end:
                    raise CheckFailed(f"{method} {path}: {error.code} {said[:200]}") from error
            time.sleep(0.1)

    def _status(self) -> str:
        """What it says of its connectors, for a failure."""
        try:
            status = _request(self._port, "GET", "/connectors?expand=status")
        except OSError as error:
            return f"no status: {error}"
        self._bench.note(["GET", "/connectors?expand=status"], json.dumps(status, indent=1).encode())
        return json.dumps(status)[:500]

    def states(self, connector: str) -> set[str]:
        """States of a connector and of its tasks."""
        status = _request(self._port, "GET", f"/connectors/{connector}/status")
        return {status["connector"]["state"], *(task["state"] for task in status["tasks"])}


def _request(port: int, method: str, path: str, body: object = None) -> Json:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def _asked(worker: Worker, method: str, path: str) -> bool:
    """Whether the worker does what it is asked."""
    worker.ask(method, path)
    return True


def _state(port: int, connector: str) -> str:
    """State of a connector; empty while Connect does not listen yet."""
    try:
        return _request(port, "GET", f"/connectors/{connector}/status")["connector"]["state"]
    except OSError:
        return ""


def _source(file: Path, topic: str) -> dict[str, str]:
    one = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "-1"}
    return {"connector.class": SOURCE, "tasks.max": "1", "file": str(file), "topic": topic, **one}


def _sink(file: Path, topic: str) -> dict[str, str]:
    return {"connector.class": SINK, "tasks.max": "1", "file": str(file), "topics": topic}


def _write(path: Path, lines: Sequence[str]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Connect(JavaApps):
    """The suite."""

    name = "connect"
    about = "Kafka Connect, standalone and distributed"
    fast = True

    def is_fast(self, name: str) -> bool:
        return name == a_distributed_worker_keeps_connectors_and_offsets_in_topics.__name__

    def checks(self) -> Sequence[Check]:
        return (
            connect_copies_a_file_and_continues_after_a_restart,
            a_distributed_worker_keeps_connectors_and_offsets_in_topics,
            a_source_is_copied_exactly_once_through_kills,
        )
