"""A shard's storage as it really runs: its own reactor, a writer and a worker process, the operating system's disk."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from storage_support import append

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.iobuf import Arena
from millstream.shard.context import Shard
from millstream.shard.process import EXIT_CHILD, EXIT_OK
from millstream.shard.reactor import Reactor
from millstream.storage.disk import SystemDisk
from millstream.storage.processes.start import start_processes
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import RecoveryReport, recover
from millstream.storage.shard_storage import ShardStorage
from millstream.telemetry.metrics import StatsSlab

MIB = 1 << 20
TOPIC_ID = bytes(15) + b"\x07"


class RealShard:
    """One life of a shard in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        disk = SystemDisk()
        self.settings = Settings(
            data_dir=self.directory, shards=1, wal_bytes=16 * MIB, wal_file_bytes=2 * MIB, checkpoint_bytes=4 * MIB
        )
        self.report: RecoveryReport = recover(disk, self.directory, self.locate, shards=1)
        arena = Arena.create(0, 32 * MIB)
        slabs = {role: StatsSlab(0, role) for role in ("writer", "worker", "cleaner")}
        self.processes = start_processes(0, arena, disk, self.settings, slabs)
        stats = StatsSlab(0, "shard")
        self.reactor = Reactor(0, stats)
        context: Any = None
        shard = Shard(0, 1, self.reactor, [arena], context, stats)
        self.storage = ShardStorage(shard, self.settings, disk, self.directory, self.processes)
        self.stats = stats

    def locate(self, group: int) -> LogPlace:
        return LogPlace(f"{self.directory}/topics/{TOPIC_ID.hex()}/{group}", f"t/{group}", MIB)

    def open(self, partition: int) -> Any:
        config = topic_config({"segment.bytes": str(MIB)}, self.settings)
        return self.storage.registry.open_partition_log(
            partition, TOPIC_ID, "t", partition, config, clean=self.report.clean
        )

    def run(self, script: Callable[[], None]) -> int:
        """Run the reactor with `script` in its first turn, until something stops it."""
        self.reactor.call_soon(script)
        try:
            return self.reactor.run()
        finally:
            os.close(self.processes._go_fd)
            os.close(self.processes._done_fd)

    def stop(self) -> None:
        self.storage.stop(lambda: self.reactor.stop(EXIT_OK))


def test_batches_written_in_one_life_are_read_in_the_next(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    logs = [shard.open(n) for n in (1, 2, 3)]
    written: dict[int, list[bytes]] = {1: [], 2: [], 3: []}

    def more(*_: object) -> None:
        if sum(map(len, written.values())) >= 3000:
            shard.storage.wal.when_durable(shard.stop)
            return
        for log in logs:
            written[log.group] += [append(log, 1, 1000) for _ in range(20)]
        shard.storage.wal.when_durable(more)

    assert shard.run(more) == EXIT_OK
    assert [child.status.code for child in shard.processes.children if child.status is not None] == [0, 0, 0]

    again = RealShard(tmp_path)
    assert again.report.clean
    logs = [again.open(n) for n in (1, 2, 3)]
    assert [log.next_offset for log in logs] == [1000] * 3
    assert [one.sealed for one in logs[0].segments()] == [True, False]
    got = {1: b"", 2: b"", 3: b""}
    todo = [(log, 0) for log in logs]

    def read_on(found: Any = None) -> None:
        if found is not None:
            log, _ = todo[-1]
            data = bytes(found)
            found.release()
            got[log.group] += data
            todo[-1] = (log, len(got[log.group]) // 1061)
            if todo[-1][1] == 1000:
                todo.pop()
        if todo:
            log, offset = todo[-1]
            log.read_cold(offset, log.next_offset, 100_000, True, read_on)
        else:
            again.stop()

    assert again.run(read_on) == EXIT_OK
    assert got == {group: b"".join(batches) for group, batches in written.items()}


@pytest.mark.parametrize("which", ["writer", "worker", "cleaner"])
def test_the_shard_stops_with_a_reason_when_a_helper_is_killed(tmp_path: Path, which: str) -> None:
    shard = RealShard(tmp_path)
    log = shard.open(1)
    acked: list[int] = []
    log.owner.on_durable = acked.append
    victim = next(child for child in shard.processes.children if child.name == f"{which} 0")

    def script() -> None:
        append(log, 1, 1000)
        shard.storage.wal.when_durable(lambda: os.kill(victim.pid, signal.SIGKILL))

    assert shard.run(script) == EXIT_CHILD
    assert f"{which} 0 was killed by SIGKILL" in shard.reactor.stop_reason
    assert acked == [1]
    for child in shard.processes.children:
        child.kill()
        child.wait()
    for end in shard.processes._ends:
        end.close()
    again = RealShard(tmp_path)
    assert (again.report.clean, again.report.records) == (False, 1)
    assert again.open(1).next_offset == 1
    assert again.run(again.stop) == EXIT_OK


def test_a_sync_that_takes_long_does_not_delay_cold_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's threads: a checkpoint hangs in its sync while a read comes back."""
    gate_read, gate_write = os.pipe()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            os.read(gate_read, 1)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    shard = RealShard(tmp_path)
    log = shard.open(1)
    order: list[str] = []

    def script() -> None:
        append(log, 1, 1000)
        shard.storage.wal.when_durable(lambda: log.behind.when_written(log.ends.durable_position, written))

    def written() -> None:
        shard.storage.checkpoint(checkpointed)
        log.read_cold(0, 1, 10_000, True, read)

    def read(found: Any) -> None:
        order.append("read")
        found.release()
        os.write(gate_write, b"xxxxxxxx")

    def checkpointed() -> None:
        order.append("checkpoint")
        shard.stop()

    assert shard.run(script) == EXIT_OK
    assert order == ["read", "checkpoint"]
    os.close(gate_read)
    os.close(gate_write)


def test_no_thread_runs_beside_a_reactor(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    append(shard.open(1), 1, 1000)
    seen: list[int] = []

    def script() -> None:
        seen.append(threading.active_count())
        shard.stop()

    assert shard.run(script) == EXIT_OK
    assert seen == [threading.active_count()]
