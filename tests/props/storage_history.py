"""Random histories of a shard's storage on a disk that forgets, judged by a model: what `test_storage_model` runs.

The model knows what was appended and what was promised. After every crash and recovery it is asked whether what is
there can be explained: everything promised, nothing that was never written, in order, once, at its place; indexes as
a rebuild would make them.
"""

from __future__ import annotations

import random
from typing import Any

from millstream.iobuf import ArenaFull
from millstream.storage.disk import read_file
from millstream.storage.index import Growing, SegmentIndex, batches_from
from millstream.testing.local_storage import LocalShard, Stopped, place_of, plain_batch, recover_locally
from millstream.testing.sim_disk import PowerFailure, SimDisk
from millstream.testing.storage_world.judge import read_log
from millstream.testing.storage_world.models import Violation

SEGMENT_BYTES = 40_000


class Model:
    """What a log may and must hold."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.batches: list[tuple[int, int, bytes]] = []  # base, next, bytes
        self.promised_end = 0
        self.start = 0  # promised
        self.asked_start = 0
        self.votes = [b""]  # the promised one, then those asked for
        self.epoch = 0

    @property
    def next_offset(self) -> int:
        return self.batches[-1][1] if self.batches else 0


class History:
    """One seed's world: a disk, some shards, a few logs, and what they promised."""

    def __init__(self, seed: int, *, groups: int = 4) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.models = {group: Model(group) for group in range(1, groups + 1)}
        self.next_group = groups + 1
        self.deleted: set[int] = set()
        self.shards: list[LocalShard] = []
        self.logs: dict[int, Any] = {}
        self.crashes = 0
        self.time_ms = 1_700_000_000_000
        self.failures: list[str] = []

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        count = self.rng.choice([1, 1, 2])
        while True:
            try:
                if self.rng.random() < 0.15:
                    self.disk.crash_at = self.disk.operations + self.rng.randint(1, 30)
                report = recover_locally(
                    self.disk, shards=count, segment_bytes=SEGMENT_BYTES, now_ms=self.time_ms, deleted=self.deleted
                )
                self.disk.crash_at = -1
                break
            except PowerFailure:
                self.crashes += 1
                self.disk.crash(torn=self.rng.random() < 0.8)
        if report.faults:
            raise Violation(f"seed {self.seed}: recovery reports {report.faults}")
        self.shards = [
            LocalShard(
                self.disk,
                self.rng,
                shard_id=number,
                now_ms=self.time_ms,
                memory_bytes=self.rng.choice([2, 4, 8]) << 20,
                clean=report.clean,
                settings={
                    "wal_pacing_us": self.rng.choice([0, 500]),
                    "wal_bytes": self.rng.choice([4, 8]) * 65536,
                    "checkpoint_bytes": self.rng.choice([20_000, 100_000, 1 << 30]),
                },
            )
            for number in range(count)
        ]
        for group, model in self.models.items():
            self.open(group, model)

    def open(self, group: int, model: Model) -> None:
        shard = self.shards[group % len(self.shards)]
        log = shard.open(group, segment_bytes=SEGMENT_BYTES)
        self.logs[group] = log
        log.producer_snapshot = lambda: b"%d" % log.next_offset
        self.check(log, model, shard)
        self.follow(log, model)

    def follow(self, log, model: Model) -> None:
        def durable(end: int) -> None:
            model.promised_end = max(model.promised_end, end)

        log.on_durable = durable

    def shard_of(self, group: int) -> LocalShard:
        return self.shards[group % len(self.shards)]

    def play(self, operations: int) -> None:
        """A history of so many operations, with crashes in between, and a last look at everything."""
        self.start()
        for _ in range(operations):
            try:
                if self.disk.crash_at < 0 and self.rng.random() < 0.1:
                    self.disk.crash_at = self.disk.operations + self.rng.randint(1, 60)
                self.operate()
                for _ in range(self.rng.randint(0, 6)):
                    self.rng.choice(self.shards).step()
            except (PowerFailure, Stopped):
                self.power_cycle()
        self.disk.crash_at = -1
        self.power_cycle()
        for shard in self.shards:
            shard.stop()
        self.shards = []
        self.start()

    def power_cycle(self) -> None:
        self.crashes += 1
        self.disk.capacity_bytes = None
        self.disk.crash(torn=self.rng.random() < 0.8)
        self.start()

    # -- operations ----------------------------------------------------------------------------------------------------

    def operate(self) -> None:
        verb = self.rng.choices(
            [
                self.append,
                self.settle,
                self.checkpoint,
                self.roll,
                self.trim,
                self.vote,
                self.cut,
                self.delete,
                self.restart,
            ],
            [60, 14, 6, 4, 5, 3, 2, 1, 1],
        )[0]
        verb(self.rng.choice(list(self.models)))

    def append(self, group: int) -> None:
        log, model = self.logs[group], self.models[group]
        for _ in range(self.rng.choice([1, 1, 3, 10])):
            size = self.rng.choice([0, 30, 200, 1000, 5000, 20_000])
            count = self.rng.randint(1, 5)
            base = log.next_offset
            if self.rng.random() < 0.02:
                model.epoch += 1
            data = plain_batch(base, count, self.rng.randbytes(size), self.rng.randint(1000, 9000), model.epoch)
            sent = data[:8] + b"\xff" * 8 + data[16:]  # the broker sets what a producer cannot know
            sent = b"\xaa" * 8 + sent[8:]
            cut = self.rng.randint(0, len(sent))
            views = [memoryview(sent)] if self.rng.random() < 0.7 else [memoryview(sent[:cut]), memoryview(sent[cut:])]
            stamp = int.from_bytes(data[35:43], "big")
            try:
                log.append(views, len(sent), base, base + count - 1, model.epoch, stamp)
            except ArenaFull:
                return
            model.batches.append((base, base + count, data))

    def settle(self, group: int) -> None:
        log = self.logs[group]
        self.shard_of(group).run(lambda: log.durable_offset == log.next_offset, limit_us=100_000)

    def checkpoint(self, group: int) -> None:
        self.shard_of(group).storage.checkpointer.request()

    def roll(self, group: int) -> None:
        log = self.logs[group]
        if log.refresh().size_bytes:
            log.roll()

    def trim(self, group: int) -> None:
        log, model = self.logs[group], self.models[group]
        offset = self.rng.choice([log.durable_offset, self.rng.randint(log.start_offset, log.durable_offset)])

        def done() -> None:
            model.start = max(model.start, offset)

        try:
            log.trim_prefix(offset, done)
        except ArenaFull:
            return
        model.asked_start = max(model.asked_start, offset)

    def vote(self, group: int) -> None:
        model = self.models[group]
        vote = self.rng.randbytes(self.rng.randint(1, 20))

        def done() -> None:
            if vote in model.votes:
                model.votes = model.votes[model.votes.index(vote) :]

        try:
            self.logs[group].save_vote(vote, done)
        except ArenaFull:
            return
        model.votes.append(vote)

    def cut(self, group: int) -> None:
        """Truncate a suffix, as Raft does: nothing behind is promised any more, and it waits before it goes on."""
        log, model = self.logs[group], self.models[group]
        bases = [base for base, _, _ in model.batches if base >= log.start_offset and base >= model.asked_start]
        if not bases or log.cutting:
            return
        offset = self.rng.choice(bases[-6:])
        done: list[int] = []
        try:
            log.truncate_suffix(offset, lambda: done.append(1))
        except ArenaFull:
            return
        self.disk.capacity_bytes = None
        model.promised_end = min(model.promised_end, offset)
        log.on_durable = lambda end: None
        self.shard_of(group).run(lambda: bool(done), limit_us=10_000_000)
        if not done:
            raise Violation(f"seed {self.seed}: a cut of {log!r} never became durable")
        model.batches = [one for one in model.batches if one[0] < offset]
        self.follow(log, model)

    def space(self, group: int) -> None:
        """The disk is full, or nearly, or has space again."""
        if self.disk.capacity_bytes is None:
            used = (1 << 40) - self.disk.free_bytes("")
            self.disk.capacity_bytes = used + self.rng.choice([0, 0, 5_000, 60_000])
        else:
            self.disk.capacity_bytes = None

    def wait(self, group: int) -> None:
        """A second or two go by."""
        self.shard_of(group).run(limit_us=self.rng.choice([10_000, 2_500_000]))

    def delete(self, group: int) -> None:
        if len(self.models) < 2:
            return
        self.shard_of(group).storage.delete_log(self.logs.pop(group), lambda: None)
        del self.models[group]
        self.deleted.add(group)
        fresh = self.next_group
        self.next_group += 1
        self.models[fresh] = Model(fresh)
        self.open(fresh, self.models[fresh])

    def restart(self, group: int) -> None:
        """An orderly stop and a start: nothing may need replaying."""
        self.disk.capacity_bytes = None
        for shard in self.shards:
            shard.stop()
        for model in self.models.values():
            model.promised_end = model.next_offset
            model.start = model.asked_start
            model.votes = model.votes[-1:]
        self.time_ms += 1000
        self.start()

    # -- judgement -----------------------------------------------------------------------------------------------------

    def check(self, log, model: Model, shard: LocalShard) -> None:
        """What was recovered is what was promised, or more of what was asked for."""
        where = f"seed {self.seed}, after {self.crashes} crashes, {log!r}"
        known = {base: (following, data) for base, following, data in model.batches}
        if log.next_offset < model.promised_end:
            raise Violation(f"{where}: {model.promised_end} was promised")
        if not model.start <= log.start_offset <= model.asked_start:
            raise Violation(f"{where}: the start may be {model.start} to {model.asked_start}")
        if log.vote not in model.votes:
            raise Violation(f"{where}: vote {log.vote!r} of {model.votes}")
        kept: list[tuple[int, int, bytes]] = [one for one in model.batches if one[1] <= log.start_offset]
        offset = log.start_offset
        for data in self.read_all(log, shard):
            base = int.from_bytes(data[:8], "big")
            if base > offset or base not in known:
                raise Violation(f"{where}: a batch at {base} where {offset} was due")
            if data != known[base][1]:
                raise Violation(f"{where}: other bytes at {base}")
            kept.append((base, *known[base]))
            offset = known[base][0]
        if offset != log.next_offset:
            raise Violation(f"{where}: batches end at {offset}")
        self.check_epochs(log, kept, where)
        self.check_indexes(log, where)
        model.batches = kept
        model.promised_end = log.next_offset
        model.start = model.asked_start = log.start_offset
        model.votes = [log.vote]
        model.epoch = log.leader_epochs[-1][0] if log.leader_epochs else model.epoch

    def read_all(self, log, shard: LocalShard):
        try:
            yield from read_log(shard, log)
        except Violation as found:
            raise Violation(f"seed {self.seed}: {found}") from found

    def check_epochs(self, log, kept: list[tuple[int, int, bytes]], where: str) -> None:
        seen: list[tuple[int, int]] = []
        for base, _, data in kept:
            epoch = int.from_bytes(data[12:16], "big")
            if not seen or epoch > seen[-1][0]:
                seen.append((epoch, base))
        if [one for one in log.leader_epochs if one[1] < log.next_offset] != seen:
            raise Violation(f"{where}: epochs {log.leader_epochs}, the batches say {seen}")

    def check_indexes(self, log, where: str) -> None:
        for segment in log.segments_list.all():
            if not segment.size_bytes:
                continue
            index = SegmentIndex.load(self.disk, segment.path, segment.base_offset)
            fresh = SegmentIndex(segment.base_offset)
            growing = Growing(fresh, 0)
            file = self.disk.open(segment.path)
            starts: dict[int, tuple[int, int]] = {}
            for batch in batches_from(file, 0, file.size()):
                starts[batch.position] = (batch.base_offset, growing.summary(sealed=False).max_timestamp)
                growing.add(batch)
            made, found = growing.summary(sealed=False), segment.summary(sealed=False)
            same = ("base_offset", "end_offset", "size_bytes")
            if any(getattr(made, name) != getattr(found, name) for name in same):
                raise Violation(f"{where}: {found} is known of a segment, a rebuild says {made}")
            # Times may cover batches that were cut off, never fewer.
            if found.max_timestamp < made.max_timestamp or found.min_timestamp > made.min_timestamp:
                raise Violation(f"{where}: {found} is known of a segment, a rebuild says {made}")
            for offset, position, stamp in zip(index.offsets, index.positions, index.timestamps, strict=True):
                if position not in starts or starts[position][0] != offset or stamp < starts[position][1]:
                    raise Violation(f"{where}: index entry {offset} at {position}, {stamp}: {starts.get(position)}")


def state_bytes(disk: SimDisk, group: int) -> bytes:
    """The epochs file of a group."""
    return bytes(read_file(disk, f"{place_of(group).directory}/epochs"))
