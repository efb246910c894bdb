"""One shard's storage in one thread: the production code with a reactor, a writer and a worker that are stepped by
hand.

``LocalShard`` runs ``ShardStorage`` over any ``Disk``. What would run in three processes and several threads is a
handful of queues here: callbacks and turns of the reactor, ticks of the writer, one queue per lane of the worker.
``step`` takes one of them, chosen by the generator given, so interleavings differ from seed to seed and repeat from
each; the clock stands still until nothing else can run. A crash is what the disk raises: drop the shard, crash the
disk, ``recover``, make another.

With ``lanes`` (`sim.engine.lanes`) a step of writer, worker and cleaner may also end before an operation of the
disk, and ``hang`` stops one of them for a while in the middle of its work.
"""

from __future__ import annotations

import struct
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from millstream.format.names import wal_directory
from millstream.iobuf import Arena
from millstream.model.quantities import RaftGroupId, ShardId
from millstream.shard.process import ExitStatus
from millstream.storage.compaction.cleaner import Cleaner, Pace
from millstream.storage.disk import DIRECT_BLOCK_BYTES
from millstream.storage.messages.commands import CLEANER_LANE, LANE_OF, Command, Write, decode_command, encode
from millstream.storage.processes.worker import Worker
from millstream.storage.processes.writer import TickWriter
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import RecoveryReport, recover
from millstream.storage.segments.read_faults import ReadFaults
from millstream.storage.shard_storage import ShardStorage
from millstream.storage.throttle import Throttle
from millstream.storage.wal.ticks import SLOT_COUNT, W_RECORDS, TickSlots
from millstream.telemetry.metrics import StatsSlab
from sim.engine.timeline import Timeline
from sim.engine.violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator

    from millstream.config.topic_properties import TopicConfig
    from millstream.storage.disk import Disk
    from millstream.storage.log.log import Log
    from sim.engine.lanes import Lanes

DATA_DIR = "/data"
MIB = 1 << 20
WRITER_LANE = CLEANER_LANE + 1
_LANES_IN_TURN = (WRITER_LANE, *range(WRITER_LANE))
_NO_LANES: frozenset[str] = frozenset()


SMALL: dict[str, Any] = {
    "wal_bytes": 512 * 1024,
    "wal_file_bytes": 64 * 1024,
    "wal_pacing_us": 0,
    "checkpoint_bytes": 256 * 1024,
    "checkpoint_ms": 60_000,
    "storage_reserve_bytes": 0,
    "log_retention_check_interval_ms": 300_000,
    "shards": 1,
    "log_cleaner_enable": True,
    "log_cleaner_backoff_ms": 15_000,
    "log_cleaner_dedupe_buffer_size": 1 << 20,
    "log_cleaner_io_buffer_load_factor": 0.9,
    "log_cleaner_io_max_bytes_per_second": float("inf"),
    "log_cleaner_cpu_percent": 100,
}
"""Default settings of a ``LocalShard``."""


_TOPIC: dict[str, Any] = {
    "segment_bytes": 1 << 30,
    "segment_ms": 7 * 86_400_000,
    "segment_jitter_ms": 0,
    "has_events": False,
    "is_archived": False,
    "index_interval_bytes": 4096,
    "cleanup_policy": ("delete",),
    "retention_ms": -1,
    "retention_bytes": -1,
    "min_cleanable_dirty_ratio": 0.5,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 2**63 - 1,
    "delete_retention_ms": 86_400_000,
    "file_delete_delay_ms": 60_000,
    "storage_mode": "local",
    "segment_upload_max_ms": 3_600_000,
}


def plain_batch(base: int, count: int, body: bytes = b"", timestamp: int = 1000, epoch: int = -1) -> bytes:
    """A batch with a header and checksum as Kafka has them; ``body`` stands where the records would."""
    covered = _COVERED.pack(0, count - 1, timestamp, timestamp, -1, -1, -1, count) + body
    return _UNCOVERED.pack(base, 9 + len(covered), epoch, 2, crc32c(covered)) + covered


_UNCOVERED = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")


class Stopped(BaseException):
    """The reactor was stopped: the shard is no more."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class LocalTimer:
    """A deadline of a ``LocalReactor``."""

    def __init__(self, deadline_us: int, callback: Callable[[], None]) -> None:
        self.deadline_us = deadline_us
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class LocalReactor:
    """What the storage uses of a reactor, stepped by hand."""

    def __init__(self, now_ms: int) -> None:
        self._now_us = now_ms * 1000
        self.jump_ms = 0
        """By how much the wall clock was set ahead of the monotonic one."""
        self.ready: deque[Callable[[], None]] = deque()
        self._enders: list[Callable[[], None]] = []
        self._timers: Timeline[LocalTimer] = Timeline()

    def now_us(self) -> int:
        return self._now_us

    def wall_ms(self) -> int:
        return self._now_us // 1000 + self.jump_ms

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        self.ready.append(lambda: callback(*args))

    def end_of_turn(self, callback: Callable[[], None]) -> None:
        self._enders.append(callback)

    def call_at(self, deadline_us: int, callback: Callable[[], None]) -> LocalTimer:
        timer = LocalTimer(deadline_us, callback)
        self._timers.add(deadline_us, timer)
        return timer

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> LocalTimer:
        return self.call_at(self._now_us + delay_us, callback)

    def remove_reader(self, fd: int) -> None:
        """Nothing here has a descriptor."""

    def background(
        self, work: str, generator: Generator[None, None, None], share: float, done: Callable[[], None] | None = None
    ) -> None:
        del work, share

        def advance() -> None:
            try:
                next(generator)
            except StopIteration:
                if done is not None:
                    done()
            else:
                self.ready.append(advance)

        self.ready.append(advance)

    def stop(self, exit_code: int = 0, reason: str = "") -> None:
        raise Stopped(exit_code, reason)

    def turn(self) -> bool:
        """Run one callback, or else the end of the turn; False when there is neither."""
        if self.ready:
            self.ready.popleft()()
            return True
        if self._enders:
            enders, self._enders = self._enders, []
            for ender in enders:
                ender()
            return True
        return False

    def sleep(self, limit_us: int) -> bool:
        """Let time go by to the next timer, at most to ``limit_us``; False when there is none before."""
        due_us = self.next_due_us()
        if due_us is None or due_us > limit_us:
            return False
        self._now_us = max(self._now_us, due_us)
        timer = self._timers.pop()
        if timer.callback is not None:
            timer.callback()
        return True

    def next_due_us(self) -> int | None:
        """When the next timer is due; None without one."""
        timers = self._timers
        while timers and timers.next.callback is None:
            timers.pop()
        return timers.due_us()

    def reach(self, now_us: int) -> None:
        """Only the clock, which never goes back."""
        if self._now_us < now_us:
            self._now_us = now_us

    def advance(self, duration_us: int) -> None:
        """Only the clock."""
        self._now_us += duration_us


def _at_once(_seconds: float) -> None:
    """Time is the reactor's: a wait takes none."""


class LocalProcesses:
    """Writer and worker in the same thread: each step of theirs is a call, or a part of one with ``lanes``."""

    def __init__(self, disk: Disk, data_dir: str, shard_id: int, arena: Arena, lanes: Lanes | None = None) -> None:
        self.slots = TickSlots()
        self.tick_writer = TickWriter(
            disk, wal_directory(data_dir, ShardId(shard_id)), ShardId(shard_id), arena.view, direct=True
        )
        self.worker_stats = StatsSlab(shard_id, "worker")
        faults = ReadFaults(self.worker_stats)
        self.file_worker = Worker(disk, data_dir, arena.view, DIRECT_BLOCK_BYTES, faults, wait=_at_once)
        self.file_worker.files.throttle = Throttle(wait=_at_once)
        self.file_worker.new_wal_files.throttle = Throttle(wait=_at_once)
        self._rings = 0
        self._commands = 0  # in all lanes
        self._turn = 0
        self._stopping = False
        self.cleaner = Cleaner(disk, Pace(lambda _: False))
        self._lanes: list[deque[Command]] = [deque() for _ in range(CLEANER_LANE + 1)]
        self._arena = arena.view
        self._sent: dict[int, int] = {}  # writes to segments, and the checksum of what each is to write
        self._attached: tuple[Any, ...] = ()
        self._threads = lanes
        self._names = [f"{shard_id}/{number}" for number in range(WRITER_LANE + 1)]
        self._hangs: dict[int, int] = {}  # lane, and until when
        if lanes is not None:
            lanes.lend_locks(self.file_worker.files, self.file_worker.files.files, self.file_worker.reader)

    count = 3
    """Writer, worker and cleaner."""

    def attach(
        self,
        reactor: LocalReactor,
        on_landed: Callable[[], None],
        on_message: Callable[[bytes], None],
        on_ended: Callable[[str, ExitStatus | None], None],
    ) -> None:
        self._attached = (reactor, on_landed, on_message, on_ended)

    def detach(self) -> None:
        """Nothing to close."""

    def submit(self) -> None:
        self._rings += 1

    def send(self, command: Command) -> None:
        # Through its bytes, as between processes.
        self._lanes[LANE_OF[type(command)]].append(decode_command(encode(command)))
        if isinstance(command, Write):
            self._sent[command.id] = self._checksum(command)
        self._commands += 1

    def stop_worker(self) -> None:
        self._stopping = True

    def hang(self, lane: int, duration_us: int) -> None:
        """A lane makes no progress for so long (``WRITER_LANE`` is the writer's)."""
        reactor = self._attached[0]
        self._hangs[lane] = reactor.now_us() + duration_us
        reactor.call_later(duration_us, lambda: self._hangs.pop(lane, None))

    def steps(self) -> list[Callable[[], None]]:
        """What could happen next."""
        threads = self._threads
        found: list[Callable[[], None]] = []
        at_work = _NO_LANES if threads is None else threads.at_work
        if not at_work and not self._rings and not self._commands and not self._stopping:
            return found
        under_way = False
        for lane in _LANES_IN_TURN:
            name = self._names[lane]
            if threads is not None and name in at_work:
                under_way = True
                if lane not in self._hangs and not threads.blocked(name):
                    found.append(lambda name=name: threads.resume(name))
            elif lane not in self._hangs and (self._rings if lane == WRITER_LANE else self._lanes[lane]):
                found.append(lambda lane=lane: self._begin(lane))
        if self._stopping and not under_way and not any(self._lanes):
            found.append(self._end)
        return found

    def _begin(self, lane: int) -> None:
        job = self._write_tick if lane == WRITER_LANE else lambda: self._work(lane)
        if self._threads is None:
            job()
        else:
            self._threads.start(self._names[lane], job)

    def _write_tick(self) -> None:
        reactor, on_landed, _, on_ended = self._attached
        self._rings -= 1
        slot = self.slots.slots[self._turn]
        if not slot.words[W_RECORDS]:
            reactor.call_soon(on_ended, "writer", ExitStatus(0))
            return
        if self.tick_writer.write(slot):
            self._turn = (self._turn + 1) % SLOT_COUNT
        reactor.call_soon(on_landed)

    def _work(self, lane: int) -> None:
        reactor, _, on_message, _ = self._attached
        command = self._lanes[lane].popleft()
        self._commands -= 1
        reply = self.cleaner.carry_out(command) if lane == CLEANER_LANE else self.file_worker.carry_out(command)
        if isinstance(command, Write) and self._checksum(command) != self._sent.pop(command.id):
            raise Violation(f"the memory of a write to {command.path} was given to others before it was written")
        if reply is not None:
            reactor.call_soon(on_message, encode(reply))

    def _checksum(self, write: Write) -> int:
        spans, sum32 = write.spans, 0
        for start, end in zip(spans[::2], spans[1::2], strict=True):
            sum32 = crc32c(self._arena[start:end], sum32)
        return sum32

    def _end(self) -> None:
        reactor, _, _, on_ended = self._attached
        self._stopping = False
        self.file_worker.finish()
        reactor.call_soon(on_ended, "worker", ExitStatus(0))
        reactor.call_soon(on_ended, "cleaner", ExitStatus(0))


class _Context:
    """What ``ShardStorage`` uses of a shard."""

    def __init__(self, shard_id: int, reactor: LocalReactor, arena: Arena, stats: StatsSlab) -> None:
        self.id = shard_id
        self.reactor = reactor
        self.arena = arena
        self.stats = stats


class LocalShard:
    """The storage of one shard in this process, over a directory."""

    def __init__(
        self,
        disk: Disk,
        rng: random.Random,
        *,
        shard_id: int = 0,
        now_ms: int = 1_700_000_000_000,
        memory_bytes: int = 8 * MIB,
        clean: bool = True,
        settings: dict[str, Any] | None = None,
        lanes: Lanes | None = None,
        processes_disk: Disk | None = None,
    ) -> None:
        """``processes_disk`` is ``disk`` as the other processes have it, unless it is the same object: with event
        topics each process has a ``ChunkDisk`` of its own.
        """
        self.rng = rng
        self.disk = disk
        self.clean = clean
        self.reactor = LocalReactor(now_ms)
        self.arena = Arena.create(ShardId(shard_id), memory_bytes, poison=True)
        self.stats = StatsSlab(shard_id, "shard")
        # Not ``Settings``: its bounds are for people, a test wants a write-ahead log of a few KiB.
        self.settings = SimpleNamespace(**{**SMALL, **(settings or {})})
        given: Any = self.settings
        self.processes = LocalProcesses(processes_disk or disk, DATA_DIR, shard_id, self.arena, lanes)
        self.context: Any = _Context(shard_id, self.reactor, self.arena, self.stats)
        processes: Any = self.processes
        self.storage = ShardStorage(self.context, given, disk, DATA_DIR, processes)
        self.storage.write_bytes_min = 0

    def open(self, group: int, *, replicated: bool = False, **config: Any) -> Log:
        """Open the only partition of a topic whose name and id are made of its group."""
        return self.storage.registry.open_partition_log(
            RaftGroupId(group),
            bytes(12) + group.to_bytes(4, "big"),
            f"topic{group}",
            0,
            self.config(**config),
            clean=self.clean,
            replicated=replicated,
        )

    def config(self, **config: Any) -> TopicConfig:
        """What the storage asks of a topic's configuration; any value goes."""
        made: Any = SimpleNamespace(**{**_TOPIC, **config})
        return made

    def step(self) -> bool:
        """One thing happens; False when nothing can but time."""
        choices: list[Callable[[], Any]] = list(self.processes.steps())
        if self.reactor.ready:
            choices += [self.reactor.turn] * 2
        if not choices:
            return self.reactor.turn()
        self.rng.choice(choices)()
        return True

    def run(self, until: Callable[[], bool] | None = None, limit_us: int = 3_600_000_000) -> None:
        """Run until ``until`` holds, or nothing is left to do."""
        end_us = self.reactor.now_us() + limit_us
        while until is None or not until():
            if not self.step() and (until is None or not self.reactor.sleep(end_us)):
                break

    def call(self, verb: Callable[..., None], *args: Any) -> Any:
        """Run until the callback that ``verb`` takes as its last argument was called; its argument."""
        answers: list[Any] = []

        def answered(*answer: Any) -> None:
            answers.append(answer[0] if answer else None)

        verb(*args, answered)
        self.run(lambda: bool(answers))
        if not answers:
            raise AssertionError(f"{verb} never answered")
        return answers[0]

    def stop(self) -> None:
        """An orderly stop."""
        self.call(self.storage.stop)


def place_of(group: int, segment_bytes: int = 1 << 30, *, replicated: bool = False) -> LogPlace:
    """Where ``LocalShard.open`` puts a group."""
    topic_id = bytes(12) + group.to_bytes(4, "big")
    return LogPlace(f"{DATA_DIR}/topics/{topic_id.hex()}/0", f"topic{group}/0", segment_bytes, replicated)


def recover_locally(
    disk: Disk,
    *,
    shards: int = 1,
    segment_bytes: int = 1 << 30,
    now_ms: int = 1_700_000_000_000,
    deleted: frozenset[int] | set[int] = frozenset(),
    replicated: bool = False,
) -> RecoveryReport:
    """Recovery over the disk of ``LocalShard``s; groups in ``deleted`` are those that the controller no longer
    knows, ``replicated`` says that the others have several voters.
    """

    def locate(group: int) -> LogPlace | None:
        return None if group in deleted else place_of(group, segment_bytes, replicated=replicated)

    return recover(disk, DATA_DIR, locate, shards=shards, now_ms=now_ms)
