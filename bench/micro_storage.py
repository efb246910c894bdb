"""What the storage costs without a network: appends through the log cache, the write-ahead log and the segments.

    .venv/bin/python bench/micro_storage.py [--dir DIR] [append] [small] [bulk] [rfc] [open] [recover]

Real reactor, real helper processes, real disk. CPU is that of each process, user and system apart. `append` is the bare
call; `small` appends 1 KB batches over 128 logs and `bulk` 128 KiB batches over 4, as fast as they become durable,
after a warm-up in which the write-ahead log's files are made; `rfc` is an open loop of 10,240 batches of 1 KB a second;
`open` opens 1,000 logs after a clean stop and after a kill; `recover` replays what a kill left. What was written is
read back and compared, through the cache and from the segments: a figure of a path that lost bytes is no figure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.iobuf import Arena, ArenaFull
from millstream.shard.context import Shard
from millstream.shard.reactor import Reactor
from millstream.storage.disk import SystemDisk
from millstream.storage.log.log import Log
from millstream.storage.processes.start import start_processes
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import RecoveryReport, recover
from millstream.storage.shard_storage import ShardStorage
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.records import build_batch

MIB = 1 << 20
TOPIC_ID = bytes(15) + b"\1"
NOW_MS = 1_700_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")

Cpu = list[tuple[float, float]]  # (user, system) µs of reactor, writer, worker


class Bench:
    """One life of a shard in this process."""

    def __init__(self, directory: str, memory: int = 256 * MIB, *, fresh: bool = True, **settings: Any) -> None:
        if fresh:
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory)
        self.directory = directory
        self.settings = Settings(data_dir=directory, shards=1, **settings)
        self.disk = SystemDisk()
        begun = time.perf_counter()
        self.report: RecoveryReport = recover(self.disk, directory, self.locate, shards=1)
        self.recovered_s = time.perf_counter() - begun
        arena = Arena.create(0, memory)
        slabs = {role: StatsSlab(0, role) for role in ("writer", "worker", "cleaner")}
        self.storage_processes = start_processes(0, arena, self.disk, self.settings, slabs)
        self.stats = StatsSlab(0, "shard")
        self.reactor = Reactor(0, self.stats)
        nobody: Any = None
        self.shard = Shard(0, 1, self.reactor, [arena], nobody, self.stats)
        self.storage = ShardStorage(self.shard, self.settings, self.disk, directory, self.storage_processes)
        self.config = topic_config({}, self.settings)

    def locate(self, group: int) -> LogPlace:
        return LogPlace(f"{self.directory}/topics/{TOPIC_ID.hex()}/{group - 1}", f"bench/{group - 1}", 1 << 30)

    def logs(self, count: int) -> list[Log]:
        clean = self.report.clean
        return [
            self.storage.registry.open_partition_log(n + 1, TOPIC_ID, "bench", n, self.config, clean=clean)
            for n in range(count)
        ]

    def cpu(self) -> Cpu:
        return [_cpu(pid) for pid in (os.getpid(), *(child.pid for child in self.storage_processes.children[:2]))]

    def run(self, step: Callable[[], None]) -> None:
        self.reactor.call_soon(step)
        self.reactor.run()

    def finish(self) -> None:
        self.storage.stop(lambda: self.reactor.stop(0))

    def kill(self) -> None:
        """The helpers die without a word; what was written stays in the page cache."""
        for child in self.storage_processes.children:
            child.kill()
            child.wait()


def _cpu(pid: int) -> tuple[float, float]:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) * 1e6 / TICKS, int(fields[12]) * 1e6 / TICKS


def batch(size: int) -> bytes:
    return build_batch([(None, os.urandom(size), (), NOW_MS)])


class ClosedLoop:
    """Keeps `in_flight` batches unacknowledged, spread over the logs in turn."""

    def __init__(self, bench: Bench, logs: list[Log], data: bytes, warm_up: int, total: int, in_flight: int) -> None:
        self.bench, self.logs, self.data = bench, logs, data
        self.views = (memoryview(data),)
        self.warm_up, self.total, self.in_flight = warm_up, warm_up + total, in_flight
        self.sent = self.acked = self.refused = 0
        self.ends = dict.fromkeys(logs, 0)
        self.before: Cpu = []
        self.begun = 0.0
        self.ticks = 0
        for log in logs:
            log.owner.on_durable = self._follow(log)
        self._landed = bench.storage.tick_landed
        bench.storage.tick_landed = self._on_landed

    def _follow(self, log: Log) -> Callable[[int], None]:
        def durable(end: int) -> None:
            self.acked += end - self.ends[log]
            self.ends[log] = end

        return durable

    def top_up(self) -> None:
        size, count = len(self.data), len(self.logs)
        try:
            while self.sent - self.acked < self.in_flight and self.sent < self.total:
                log = self.logs[self.sent % count]
                offset = log.next_offset
                log.append(self.views, size, offset, offset, 0, NOW_MS)
                self.sent += 1
        except ArenaFull:
            self.refused += 1
            self.bench.reactor.call_later(500, self.top_up)

    def _on_landed(self) -> None:
        self._landed()
        if not self.before and self.acked >= self.warm_up:
            self.before, self.begun = self.bench.cpu(), time.perf_counter()
            self.ticks = self.bench.stats.counter("wal_ticks").value
            self.refused = 0
        if self.acked >= self.total:
            self.bench.storage.tick_landed = self._landed
            took = time.perf_counter() - self.begun
            self.bench.storage.checkpoint(lambda: self._over(took))
            return
        self.top_up()

    def _over(self, took: float) -> None:
        count = self.total - self.warm_up
        report(self.bench, self.before, took, count, len(self.data), self.ticks, self.refused)
        ReadBack(self.bench, self.logs, self.data, self.total).advance()


def report(bench: Bench, before: Cpu, took: float, count: int, size: int, ticks_before: int, refused: int) -> None:
    """CPU includes the checkpoint that makes everything durable in the segments."""
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, bench.cpu(), strict=True)]
    ticks = bench.stats.counter("wal_ticks").value - ticks_before
    latency = bench.stats.histogram("wal_tick_latency")
    whole = sum(map(sum, spent))
    print(
        f"  {count:,} batches of {size:,} bytes in {took:.2f} s: {count / took:,.0f}/s,"
        f" {count * size / took / 1e9:.2f} GB/s; {count / ticks:.1f} a tick, tick p50 <{latency.quantile(0.5)}"
        f" p99 <{latency.quantile(0.99)} µs; refused {refused}x"
    )
    parts = ", ".join(
        f"{name} {user / count:.2f}+{system / count:.2f}"
        for name, (user, system) in zip(("reactor", "writer", "worker"), spent, strict=True)
    )
    rate = count * size / whole / 1e3
    print(f"  CPU µs a batch, user+system: {parts}; together {whole / count:.2f} = {rate:.2f} GB/CPU-s")


class ReadBack:
    """Reads everything there is, from the cache or the segments, and compares it."""

    def __init__(self, bench: Bench, logs: list[Log], data: bytes, total: int) -> None:
        self.bench, self.data, self.total = bench, data, total
        self.todo = [(log, log.start_offset) for log in logs]
        self.seen = self.cold = 0
        self.begun = time.perf_counter()
        self.before = bench.cpu()

    def advance(self) -> None:
        while self.todo:
            log, offset = self.todo[-1]
            if offset >= log.next_offset:
                self.todo.pop()
                continue
            found = log.read(offset, log.durable_offset, MIB, True)
            if found is None:
                log.read_cold(offset, log.durable_offset, MIB, True, self._cold)
                return
            self._take(found)
        if self.seen != self.total:
            raise AssertionError(f"{self.seen} batches came back of {self.total}")
        took = time.perf_counter() - self.begun
        spent = sum(sum(b) - sum(a) for a, b in zip(self.before, self.bench.cpu(), strict=True))
        print(
            f"  read back and compared at {self.total * len(self.data) / took / 1e9:.2f} GB/s,"
            f" {self.cold:,} batches cold, {spent / self.total:.2f} CPU µs a batch"
        )
        self.bench.finish()

    def _take(self, found: Any) -> int:
        whole = b"".join(found.views())
        found.release()
        size = len(self.data)
        for at in range(0, len(whole), size):
            if whole[at + 16 : at + size] != self.data[16:]:
                raise AssertionError("other bytes came back")
        log, offset = self.todo[-1]
        count = len(whole) // size
        self.todo[-1] = (log, offset + count)
        self.seen += count
        return count

    def _cold(self, found: Any) -> None:
        if isinstance(found, Exception):
            raise found
        self.cold += self._take(found)
        self.bench.reactor.call_soon(self.advance)


def append(directory: str) -> None:
    """The bare call on the reactor, best of many turns: what noise leaves."""
    bench = Bench(directory, wal_bytes=1024 * MIB)
    logs = bench.logs(128)
    data = batch(1024)
    views, size = (memoryview(data),), len(data)
    best = [1e9]
    turns = [0]

    def turn() -> None:
        begun = time.perf_counter_ns()
        for log in logs:
            offset = log.next_offset
            log.append(views, size, offset, offset, 0, NOW_MS)
        best[0] = min(best[0], (time.perf_counter_ns() - begun) / len(logs))
        turns[0] += 1
        bench.storage.wal.when_durable(bench.finish if turns[0] == 1500 else turn)

    bench.run(turn)
    print(f"append: {best[0]:.0f} ns a 1 KB batch on the reactor, the tick not counted")


def small(directory: str) -> None:
    for count in (128, 1):
        print(f"small: 1 KB batches, {count} logs, 128 in flight")
        bench = Bench(directory, wal_bytes=128 * MIB, checkpoint_bytes=64 * MIB)
        loop = ClosedLoop(bench, bench.logs(count), batch(1024), 120_000, 300_000, 128)
        bench.run(loop.top_up)


def bulk(directory: str) -> None:
    print("bulk: 128 KiB batches, 4 logs, 16 in flight")
    bench = Bench(directory, memory=512 * MIB, wal_bytes=512 * MIB, checkpoint_bytes=256 * MIB)
    loop = ClosedLoop(bench, bench.logs(4), batch(131_400), 6_000, 16_000, 16)
    bench.run(loop.top_up)


def rfc(directory: str) -> None:
    for pacing in (0, 500):
        print(f"rfc: 128 logs, 10,240 batches of 1 KB a second for 10 s, pacing {pacing} µs")
        bench = Bench(directory, wal_pacing_us=pacing)
        OpenLoop(bench, bench.logs(128), batch(1024), 102_400, 10_240).run()


class OpenLoop:
    """Appends when it is time, whatever became of those before; latency counts from the time it was due."""

    def __init__(self, bench: Bench, logs: list[Log], data: bytes, total: int, rate: int) -> None:
        self.bench, self.logs, self.data, self.total, self.rate = bench, logs, data, total, rate
        self.latency: list[int] = []
        self.sent = 0
        self.waiting: dict[Log, list[tuple[int, int]]] = {log: [] for log in logs}
        for log in logs:
            log.owner.on_durable = self._follow(self.waiting[log])

    def _follow(self, queue: list[tuple[int, int]]) -> Callable[[int], None]:
        def durable(end: int) -> None:
            now = self.bench.reactor.now_us()
            while queue and queue[0][0] < end:
                self.latency.append(now - queue.pop(0)[1])

        return durable

    def run(self) -> None:
        self.before = self.bench.cpu()
        self.begun = self.bench.reactor.now_us()
        self.bench.run(self._tick)

    def _tick(self) -> None:
        reactor, size = self.bench.reactor, len(self.data)
        views = (memoryview(self.data),)
        due = min(self.total, (reactor.now_us() - self.begun) * self.rate // 1_000_000)
        for n in range(self.sent, due):
            log = self.logs[n * 37 % len(self.logs)]
            offset = log.next_offset
            self.waiting[log].append((offset, self.begun + n * 1_000_000 // self.rate))
            log.append(views, size, offset, offset, 0, NOW_MS)
        self.sent = due
        if due < self.total:
            reactor.call_at(self.begun + (due + 1) * 1_000_000 // self.rate, self._tick)
        else:
            self.bench.storage.wal.when_durable(self._over)

    def _over(self) -> None:
        took = (self.bench.reactor.now_us() - self.begun) / 1e6
        self.latency.sort()
        report(self.bench, self.before, took, self.total, len(self.data), 0, 0)
        at = [self.latency[int(len(self.latency) * q)] for q in (0.5, 0.95, 0.99, 0.999)]
        print(f"  latency µs p50 {at[0]} p95 {at[1]} p99 {at[2]} p99.9 {at[3]} max {self.latency[-1]}")
        self.bench.finish()


def open_logs(directory: str) -> None:
    """A thousand logs, opened again."""
    bench = Bench(directory)
    logs = bench.logs(1000)
    data = batch(1024)

    def write() -> None:
        for log in logs:
            log.append((memoryview(data),), len(data), 0, 0, 0, NOW_MS)
        bench.storage.wal.when_durable(bench.finish)

    bench.run(write)
    for how in ("a clean stop", "a kill"):
        begun = time.perf_counter()
        again = Bench(directory, fresh=False)
        logs = again.logs(1000)
        took = time.perf_counter() - begun
        assert all(log.next_offset == (1 if how == "a clean stop" else 2) for log in logs)
        print(f"open: 1,000 logs after {how}: {took:.3f} s, recovery {again.recovered_s:.3f} s of it")
        again.run(lambda logs=logs, again=again: _append_one(again, logs, data))
        again.kill()


def _append_one(bench: Bench, logs: list[Log], data: bytes) -> None:
    for log in logs:
        offset = log.next_offset
        log.append((memoryview(data),), len(data), offset, offset, 0, NOW_MS)
    bench.storage.wal.when_durable(lambda: bench.reactor.stop(0))


def replay(directory: str) -> None:
    """What a kill left in the write-ahead log of a busy shard."""
    bench = Bench(directory, wal_bytes=512 * MIB, checkpoint_bytes=512 * MIB)
    logs = bench.logs(128)
    data = batch(1024)
    total = 115_000

    def write() -> None:
        for _ in range(8):
            for log in logs:
                offset = log.next_offset
                log.append((memoryview(data),), len(data), offset, offset, 0, NOW_MS)
        done = sum(log.next_offset for log in logs) >= total
        bench.storage.wal.when_durable((lambda: bench.reactor.stop(0)) if done else write)

    bench.run(write)
    bench.kill()
    cpu = time.process_time()
    again = Bench(directory, fresh=False)
    report = again.report
    print(
        f"recover: {report.records:,} records, {report.bytes / 1e6:.0f} MB of the write-ahead log in"
        f" {again.recovered_s:.2f} s, CPU {time.process_time() - cpu:.2f} s"
    )
    assert sum(log.next_offset for log in again.logs(128)) >= total
    again.kill()


SCENES: dict[str, Callable[[str], None]] = {
    "append": append,
    "small": small,
    "bulk": bulk,
    "rfc": rfc,
    "open": open_logs,
    "recover": replay,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", default="/tmp/millstream-micro")
    parser.add_argument("what", nargs="*", choices=[*SCENES, []], default=[])
    chosen = parser.parse_args()
    for name in chosen.what or SCENES:
        SCENES[name](chosen.dir)
    shutil.rmtree(chosen.dir, ignore_errors=True)
    sys.exit(0)
