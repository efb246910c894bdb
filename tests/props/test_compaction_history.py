"""Random lives of a compacted log: produced to, sealed, compacted, trimmed, stopped and crashed at any file operation.

A model knows what was appended and what was promised. Whenever the log is opened, and in the end, a reader must find
nothing that was never written, everything at its offset, and of each key the last promised value behind the log's
start, unless that is a tombstone, which may be gone.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from millstream.iobuf import ArenaFull
from millstream.wire.records import build_batch, iter_batches, iter_records, parse_header
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, Stopped, recover_locally

SEEDS = 60
OPERATIONS = 120


class CompactedLife:
    """One seed's log."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.promised_end = self.promised_start = self.asked_start = 0
        self.now_ms = 1_700_000_000_000
        self.crashes = self.compactions = 0
        self.start()

    def start(self) -> None:
        while True:
            try:
                if self.rng.random() < 0.2:
                    self.disk.crash_at = self.disk.operations + self.rng.randint(1, 40)
                report = recover_locally(self.disk, segment_bytes=3000, now_ms=self.now_ms)
                self.disk.crash_at = -1
                break
            except PowerFailure:
                self.disk.crash(torn=self.rng.random() < 0.8)
        assert not report.faults, report.faults
        self.shard = LocalShard(
            self.disk,
            self.rng,
            now_ms=self.now_ms,
            clean=report.clean,
            settings={
                "log_cleaner_backoff_ms": self.rng.choice([1, 20, 200]),
                "log_cleaner_dedupe_buffer_size": self.rng.choice([24 * 12, 1 << 16]),
                "checkpoint_bytes": self.rng.choice([20_000, 1 << 30]),
            },
        )
        self.log: Any = self.shard.open(
            1,
            cleanup_policy=("compact",),
            segment_bytes=3000,
            min_cleanable_dirty_ratio=self.rng.choice([0.0, 0.3]),
            delete_retention_ms=self.rng.choice([0, 50]),
            file_delete_delay_ms=self.rng.choice([0, 100]),
        )
        self.log.owner.on_durable = self.promise
        self.check()

    def promise(self, end: int) -> None:
        self.promised_end = max(self.promised_end, end)

    def trimmed(self, start: int) -> None:
        self.promised_start = max(self.promised_start, start)

    def live(self) -> None:
        for _ in range(OPERATIONS):
            try:
                if self.disk.crash_at < 0 and self.rng.random() < 0.08:
                    self.disk.crash_at = self.disk.operations + self.rng.randint(1, 80)
                self.operate()
                for _ in range(self.rng.randint(0, 12)):
                    self.shard.step()
            except (PowerFailure, Stopped):
                self.crash()
        self.disk.crash_at = -1
        self.crash()
        if self.log.refresh().size_bytes:
            self.log.roll()
        self.shard.run(lambda: not self.shard.storage.compaction.stretch(self.log).dirty_bytes, 10_000_000)
        self.check()
        self.shard.stop()
        self.start()

    def crash(self) -> None:
        self.crashes += 1
        self.compactions += self.shard.stats.counter("log_cleaner_runs").value
        self.now_ms = self.shard.reactor.wall_ms()
        self.disk.crash(torn=self.rng.random() < 0.8)
        self.start()

    def operate(self) -> None:
        choice = self.rng.random()
        log = self.log
        if choice < 0.6:
            self.produce()
        elif choice < 0.7:
            if log.refresh().size_bytes:
                log.roll()
        elif choice < 0.85:
            self.shard.reactor.sleep(self.shard.reactor.now_us() + self.rng.choice([10_000, 1_000_000]))
        elif choice < 0.88:
            target = self.rng.randint(log.start_offset, max(log.start_offset, log.durable_offset))
            self.asked_start = max(self.asked_start, target)
            log.trim_prefix(target, lambda: self.trimmed(target))
        elif choice < 0.9:
            self.shard.storage.checkpoint(lambda: None)
        elif choice < 0.91:
            self.shard.stop()
            self.now_ms = self.shard.reactor.wall_ms()
            self.start()

    def produce(self) -> None:
        log = self.log
        base = log.next_offset
        records = [
            (b"%d" % self.rng.randrange(12), None if self.rng.random() < 0.1 else self.rng.randbytes(20), (), 1000)
            for _ in range(self.rng.randint(1, 4))
        ]
        data = build_batch(records, compression=self.rng.choice([0, 0, 1]))
        for old in [offset for offset in self.written if offset >= base]:
            del self.written[old]  # a crash took it, nobody was promised it
        for n, (key, value, _, _) in enumerate(records):
            self.written[base + n] = (key, value)
        try:
            log.append((memoryview(data),), len(data), base, base + len(records) - 1, 0, 1000)
        except ArenaFull:
            for n in range(len(records)):
                del self.written[base + n]

    def check(self) -> None:
        log = self.log
        assert self.promised_end <= log.next_offset
        assert self.promised_start <= log.start_offset <= max(self.asked_start, self.promised_start)
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        offset = log.start_offset
        while offset < log.next_offset:
            data = log.read(offset, log.next_offset, 1 << 20, True)
            if data is None:
                data = self.shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
            assert not isinstance(data, Exception), data
            batches = list(iter_batches(bytes(data)))
            data.release()
            assert batches, f"no batch at {offset} of {log.next_offset}"
            for batch in batches:
                found.update((record.offset, (record.key, record.value)) for record in iter_records(batch))
                offset = parse_header(batch).next_offset
        assert offset == max(log.next_offset, log.start_offset)
        segments = log.segments()
        assert segments[0].base_offset <= log.start_offset
        assert [one.end_offset for one in segments[:-1]] == [one.base_offset for one in segments[1:]]
        assert log.size_bytes == sum(one.bytes for one in segments)
        for one in segments:  # what the manifest hands out is there, whole
            if one.sealed and one.flushed_bytes == one.bytes:
                assert self.disk.size(one.path) == one.bytes
        for place, record in found.items():
            assert self.written.get(place) == record, place
        last = {
            self.written[place][0]: place for place in range(log.start_offset, log.next_offset) if place in self.written
        }
        for key, place in last.items():
            assert self.written[place][1] is None or place in found, (
                f"the last value of {key!r}, offset {place}, is gone"
            )


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_life_of_a_compacted_log_loses_a_last_value(first: int) -> None:
    crashes = compactions = 0
    for seed in range(first, first + 10):
        life = CompactedLife(seed)
        try:
            life.live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += life.crashes
        compactions += life.compactions
    assert crashes > 20
    assert compactions > 10
