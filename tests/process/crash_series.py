"""One broker directory through many power failures, under load that lives through all of them.

Each time the broker is killed, all of its processes at once, at the N-th write, sync, change of names or network
send, sometimes while it recovers from the crash before; then everything that no sync had covered is taken back (some
of it only in part), and the broker starts again, with another number of shards. Every choice comes from the seed,
which a failure prints; it repeats the run as far as real processes repeat.
"""

import random
import subprocess
import time

import msgspec
from bench import processes
from crash_workload import Complaint, Workload

from millstream.config.ports import free_ports
from millstream.storage.disk import SystemDisk
from millstream.storage.verification.log import Progress, find_logs, verify_log
from millstream.storage.verification.wal import verify_wal
from millstream.testing import Broker, BrokerFailed
from millstream.testing.disk import NAME, SEND, SYNC, WRITE, Faults, apply_crash
from millstream.testing.history import Outcome, Send

PARTITIONS = 4
POINT_S = 4.0  # an operation that is not reached by then: the broker is killed wherever it is
KINDS = {
    "write": (WRITE, 500),
    "sync": (SYNC, 500),
    "name": (NAME, 150),
    "send": (SEND, 500),
    "any": (WRITE | SYNC | NAME | SEND, 1000),
}
"""What is counted, and how far at most: an operation of the kind should come within seconds."""

SETTINGS = {
    "internal.disk.factory": "millstream.testing.disk:FaultDisk",
    "internal.shard.hook": "millstream.testing.disk:kill_at_send",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "auto.create.topics.enable": "false",  # a producer that asks for a topic it once wrote to would bring it back
    # Everything that a log does in weeks happens in seconds.
    "wal.file.bytes": "1MiB",
    "wal.bytes": "4MiB",
    "checkpoint.bytes": "1MiB",
    "checkpoint.ms": 300,
    "log.segment.bytes": "1MiB",
    "log.roll.ms": 300,
    "log.retention.check.interval.ms": 200,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.001,
    "log.segment.delete.delay.ms": 200,
}


class Point(msgspec.Struct):
    """One crash."""

    kind: str
    count: int
    recovering: bool = False
    reached: bool = True
    torn: bool = False

    def __str__(self):
        flags = ("recovering" * self.recovering, "torn" * self.torn, "" if self.reached else "not reached")
        return " ".join(filter(None, (self.kind, str(self.count), *flags)))


class Series:
    """One directory, one port, one load, many crashes. ``on_point`` hears of each crash when it is over."""

    def __init__(self, directory, seed, settings=None, *, on_point=None):
        self.seed = seed
        self.rng = random.Random(seed)
        self.directory = directory
        self.faults = Faults(directory / "faults")
        self.settings = {**SETTINGS, **(settings or {})}
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"
        self.broker = None
        self.workload = None
        self.pids = []
        self.points = []
        self.taken_back = 0
        self.seconds = 0.0
        self.on_point = on_point or (lambda point: None)

    @property
    def acknowledged(self):
        """Records that were acknowledged, all of which are looked for at the end."""
        operations = self.workload.history.operations
        return sum(isinstance(one, Send) and one.outcome is Outcome.OK for one in operations)

    def start(self, topics=None):
        """A new broker on the directory; raises BrokerFailed if it was killed on its way up."""
        self.broker = Broker(
            topics=topics,
            settings=self.settings,
            data_dir=self.directory / "data",
            env=self.faults.environment,
            shards=self.rng.choice([1, 2]),
            listen=self.listen,
        )
        self.broker.start()
        self.pids = processes.tree(self.broker.pid)

    def arm(self, *, recovering=False):
        """Chooses the next crash point; few operations are more likely than many."""
        kind = self.rng.choice(list(KINDS))
        kinds, most = KINDS[kind]
        count = int((60 if recovering else most) ** self.rng.random())
        self.faults.kill_at(count, kinds)
        self.points.append(Point(kind, count, recovering))

    def crash(self):
        """The armed point is reached, or the time is over; then the power is gone."""
        try:
            code = self.broker.wait(POINT_S)
        except subprocess.TimeoutExpired:
            self.points[-1].reached = False
            self.broker.kill()
            code = -9
        assert code == -9, f"the broker ended by itself with {code}:\n{self.broker.log_tail()}"
        self.lose_power()

    def lose_power(self):
        left = processes.wait_gone(self.pids)
        assert left == [], [processes.name_of(pid) for pid in left]
        point = self.points[-1]
        point.torn = self.rng.random() < 0.5
        self.taken_back += apply_crash(self.faults.directory, self.rng, torn=point.torn)
        self.faults.kill_at(0, 0)
        self.on_point(point)

    def restart(self):
        """Comes back, one time in four only after a crash on the way."""
        if self.rng.random() < 0.25:
            self.arm(recovering=True)
            try:
                self.start()
            except BrokerFailed:
                self.broker.kill()  # only forgets it: it was killed on its way up
                self.pids = []
                self.lose_power()
            else:
                self.crash()
        self.start()

    def run(self, points):
        """The whole series of so many crashes or one more; raises what it finds, with what is needed to repeat it."""
        began = time.monotonic()
        try:
            self._run(points)
        except BaseException as error:
            done = "; ".join(map(str, self.points))
            error.add_note(f"seed {self.seed}, history in {self.directory}, points: {done}")
            raise
        finally:
            self.seconds = time.monotonic() - began
            self.faults.close()

    def _run(self, points):
        self.start(topics={"crash": PARTITIONS})
        workload = self.workload = Workload(self.listen, "crash", PARTITIONS, padding=500, mixed=True)
        try:
            workload.start()
            while len(self.points) < points:
                workload.wait_progress(self.rng.choice([1, 20, 200]))
                self.arm()
                self.crash()
                self.restart()
                workload.alive()
                workload.ask()
            workload.wait_progress(100)
            workload.finish()
            assert self.broker.stop() == 0
            self.check_log()
            self.check_files()
        except Complaint:
            workload.finish()  # what clients complain of should show in the history, too
            raise
        except BaseException:
            workload.history.save(self.directory / "history")
            raise
        finally:
            workload.give_up()
            self.broker.kill()

    def check_log(self):
        said = self.broker.log_path.read_text(errors="replace")
        bad = [line for line in said.splitlines() if " ERROR " in line or "Traceback" in line]
        assert bad == [], bad[:5]

    def check_files(self):
        """After all that, nothing on disk is damaged."""
        disk, progress = SystemDisk(), Progress()
        for log in find_logs(disk, str(self.directory / "data")):
            verify_log(disk, log, progress, deep=True)
        verify_wal(disk, str(self.directory / "data"), progress, str)
        assert progress.findings == []
