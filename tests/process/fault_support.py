"""A broker whose disk fails on demand, under a load of stock clients that lives through it and writes down what it saw.

`Scene` is the broker, the load and what an operator sees: the log and the metrics. Its end is always the same: the
fault is over, the broker serves (after a restart if it stopped), everything is read once more and the checker judges.
"""

import re
import struct
import time
import urllib.request

from bench import processes
from crash_series import SETTINGS
from crash_workload import Workload

from millstream.cli.exposition import Exposition
from millstream.client.connection import Connection
from millstream.config.ports import free_ports
from millstream.model.error_code import ErrorCode
from millstream.testing import Broker
from millstream.testing.disk import Faults, apply_crash
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from waits import until

EXIT_STORAGE = 74
TOPIC = "crash"
PARTITIONS = 4


class Scene:
    """See the module. ``data_dir`` is on the file system that is to fail; without it, the disk is a `FaultDisk`."""

    def __init__(self, directory, rng, *, shards=1, data_dir=None, settings=None, **load):
        self.directory = directory
        self.rng = rng
        self.load = {"rate": 200, "padding": 500, **load}
        self.workload = None
        self.faults = Faults(directory / "faults") if data_dir is None else None
        own = {name: value for name, value in SETTINGS.items() if not name.startswith("internal.")}
        if self.faults:
            own["internal.disk.factory"] = SETTINGS["internal.disk.factory"]
        self.broker = Broker(
            topics={TOPIC: PARTITIONS},
            settings={**own, **(settings or {})},
            data_dir=data_dir or directory / "data",
            env=self.faults.environment if self.faults else None,
            shards=shards,
            listen=f"127.0.0.1:{free_ports(1)[0]}",
        )
        self.broker.log_path = directory / "log"  # not beside the data, whose disk may be full

    def __enter__(self):
        self.broker.start()
        self.workload = Workload(self.broker.bootstrap, TOPIC, PARTITIONS, **self.load)
        return self

    def __exit__(self, *_):
        self.workload.give_up()
        self.broker.kill()
        if self.faults:
            self.faults.close()

    def begin(self, records=200):
        """The load runs."""
        self.workload.start()
        self.workload.wait_progress(records)

    # What an operator sees

    def lines(self, level="[A-Z]+"):
        """What the broker logged at a level, without time and level."""
        said = self.broker.log_path.read_text(errors="replace")
        return re.findall(rf"^\S+Z (?:{level}) +(.*)$", said, re.MULTILINE)

    def said(self, text, level="[A-Z]+"):
        return any(text in line for line in self.lines(level))

    def complaints(self, *parts):
        """ERROR lines that have all of these in them."""
        return [line for line in self.lines("ERROR") if all(part in line for part in parts)]

    def metric(self, name, **labels):
        with urllib.request.urlopen(f"{self.broker.http}/metrics", timeout=60) as answer:
            return Exposition(answer.read().decode(), time.monotonic()).value(name, **labels)

    def until(self, done, what):
        until(done, lambda: f"{what}:\n{self.broker.log_tail()}")

    def pid_of(self, role):
        """The process that ps shows as ``millstream: <role>``."""
        for pid in processes.tree(self.broker.pid):
            if processes.name_of(pid).endswith(f": {role}"):
                return pid
        raise AssertionError(f"no process is {role}")

    # The end

    def stops(self, reason):
        """The broker has ended by itself, as a disk that cannot be trusted demands, and has said why."""
        assert self.broker.wait(60) == EXIT_STORAGE, self.broker.log_tail()
        errors = self.lines("ERROR")
        assert any(re.search(reason, line) for line in errors), errors

    def comes_back(self):
        """The disk is in order again. What was not synced is gone; what was acknowledged must not be."""
        if self.faults:
            self.faults.inject()
            apply_crash(self.faults.directory, self.rng, torn=self.rng.random() < 0.5)
        self.broker.start()
        self.ends_well()

    def ends_well(self):
        """The load goes on, and nothing that was acknowledged is missing."""
        self.workload.wait_progress(100)
        self.workload.finish()


def fetch_error(broker, topic, partition, offset):
    """The name of the error that a consumer is told for one partition."""
    host, port = broker.bootstrap.rsplit(":", 1)
    connection = Connection(host, int(port))
    asked = [
        FetchTopic(topic, partitions=[FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)])
    ]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=0, session_epoch=-1, topics=asked)
    try:
        answer = connection.call(request, FetchResponse, 11)
    finally:
        connection.close()
    return ErrorCode(answer.responses[0].partitions[0].error_code).name


def segments(data_dir, topic, partition):
    """Segment files of a partition, oldest first."""
    for directory in (data_dir / "topics").iterdir():
        if (directory / "topic").read_text().strip() == topic:
            return sorted((directory / str(partition)).glob("*.log"))
    raise AssertionError(f"{topic} is not there")


def batches(path):
    """(position, size, first offset) of each batch in a segment file."""
    data, position, found = path.read_bytes(), 0, []
    while position + 12 <= len(data):
        base, size = struct.unpack_from(">qi", data, position)
        found.append((position, size + 12, base))
        position += size + 12
    return found


def flip(path, position):
    """Change one bit of a file, as a disk does that rots."""
    with path.open("r+b") as file:
        file.seek(position)
        (old,) = file.read(1)
        file.seek(position)
        file.write(bytes((old ^ 0x10,)))
