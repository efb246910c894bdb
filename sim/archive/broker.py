"""A simulated broker whose topic is tiered.

::

    Archiver ─ ArchiveLink ──Lane──► ArchiveWorker ─ ArchiveReader ─ HotTier ─ faulty slots
                                          └──────────────► WorldStore

It runs the production's archiver and link, and the worker of the archive process in steps: each lane carries out one
command after the other, and a command takes effect at one time and is answered at a later one. A broker that goes down
takes the process with it. What was on its way to the store may still happen.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import errno
import os
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.errors import MillstreamError
from millstream.format.archive import TopicDescription
from millstream.model.quantities import Offset, ShardId
from millstream.model.replication import node_of
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.raft.group import GroupRole
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.archiver import Archiver
from millstream.tiers.hot_tier import HotTier
from millstream.tiers.hot_tier.slots import MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier
from millstream.tiers.link import ArchiveLink
from millstream.tiers.log_worker import LogWorker
from millstream.tiers.messages import (
    LANES,
    AppendEntry,
    Join,
    Put,
    Remove,
    RemoveKeys,
    Replace,
    Share,
    Sweep,
    decode_command,
    encode,
)
from millstream.tiers.process import ArchiveWorker
from millstream.tiers.reading import ArchiveReader
from sim.brokers.judge import READ_BYTES, whole_log
from sim.brokers.served import ServedBroker
from sim.brokers.world import GROUP
from sim.engine.local_storage import DATA_DIR
from sim.engine.violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from millstream.format.archive import AbortedSpan
    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.iobuf import IoBuf
    from millstream.model.quantities import RaftGroupId
    from millstream.model.shared import Writer
    from millstream.partition.table import PartitionTable
    from millstream.storage.disk import Disk
    from millstream.tiers.hot_tier import WarmBlocks
    from millstream.tiers.joined_reads import ReadAnswer
    from millstream.tiers.link import OnRead
    from millstream.tiers.messages import Command
    from millstream.tiers.partition_archive import PartitionArchive
    from sim.archive.history import TieredHistory
    from sim.brokers.world import Broker, Checks, Cluster
    from sim.engine.local_storage import LocalShard

SEGMENT_BYTES: Final = 3_000
_MEMORY_BYTES: Final = 4_000
_SLOTS: Final = 6
RETENTION_MS: Final = 300
_SETTINGS: Final = Settings(data_dir=DATA_DIR, objects_url="s3://world")
DELETE_DELAY_US: Final = 300_000
_PROPERTIES: Final = {
    "retention.ms": "-1",
    "retention.local.target.ms": "0",
    "segment.upload.max.ms": "1000",
    "file.delete.delay.ms": "300",
}


class FaultySlots(MemorySlots):
    """Slots of a disk that rots and fails."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._chance = rng
        self.rot = self.errors = 0.0

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset, size_bytes: int) -> memoryview:
        if self._chance.random() < self.errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        block = super().read(slot, owner, base_offset, size_bytes)
        if len(block) and self._chance.random() < self.rot:
            wrong = bytearray(block)
            wrong[self._chance.randrange(len(wrong))] ^= 1
            return memoryview(wrong)
        return block

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, piece: memoryview) -> None:
        if self._chance.random() < self.errors:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(slot, owner, base_offset, piece)


class Lane:
    """One lane of an archive process: commands in order, one at a time."""

    def __init__(self, broker: TieredBroker, link: WorldLink, worker: ArchiveWorker) -> None:
        self._broker = broker
        self._link = link
        self._worker = worker
        self._life = broker.life
        self._queue: deque[Command] = deque()
        self._busy = self._closed = False

    def send(self, message: bytes) -> None:
        """As `helper.channel.ReactorChannel`."""
        if self._broker.at_once:
            self._answer(self._worker.carry_out(decode_command(message)), frees=False)
            return
        self._queue.append(decode_command(message))
        self._next()

    def close(self) -> None:
        """Commands that were sent may still take effect."""
        self._closed = True
        self._queue.clear()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        command = self._queue.popleft()
        delay_us = self._broker.history_of_archive.begins_us(command)
        self._broker.cluster.after(delay_us, lambda: self._carry_out(command))

    def _carry_out(self, command: Command) -> None:
        broker = self._broker
        if broker.life != self._life or not broker.is_up or self._closed:
            zombie = isinstance(command, AppendEntry | Put | Replace | Remove | RemoveKeys | Share | Sweep | Join)
            if zombie and broker.history_of_archive.chance.random() < 0.5:
                broker.history_of_archive.truth.note("command of a dead broker")
                self._worker.carry_out(command)
            return
        self._answer(self._worker.carry_out(command))

    def _answer(self, reply: Any, *, frees: bool = True) -> None:
        broker, data = self._broker, encode(reply)

        def heard(_: Broker | None = None) -> None:
            if broker.life == self._life and broker.is_up and not self._closed:
                self._busy = self._busy and not frees
                self._link._received(data)
                self._next()

        if broker.at_once:
            assert broker.shard is not None
            broker.shard.reactor.call_soon(heard)
        else:
            at_us = broker.cluster.now + broker.history_of_archive.delay_us()
            broker.cluster.send_at(at_us, broker.replica, heard)


class WorldLink(ArchiveLink):
    """The production's link over lanes in this process."""

    def __init__(self, broker: TieredBroker, shard: LocalShard) -> None:
        reactor: Any = shard.reactor
        super().__init__(reactor, shard.arena, shard.stats, _no_process, _ignore)
        self._broker = broker

    def read(
        self,
        owner: ArchiveId,
        target: ArchivedSegment | ManifestPart,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        done: OnRead,
        *,
        minimum_one: bool,
        aborted: list[AbortedSpan] | None = None,
    ) -> Callable[[], None]:
        """As `ArchiveLink.read`; the world knows until when the object is read."""
        ended = self._broker.history_of_archive.reads.begin(self._broker, owner, target)

        def answered(result: IoBuf | MillstreamError) -> None:
            ended()
            done(result)

        def answered_alone(answer: ReadAnswer) -> None:
            answered(answer[0])

        if self._broker.at_once:  # for a judge, who waits for no lane
            self.read_alone(owner, target, offset, end_offset, max_bytes, answered_alone, minimum_one=minimum_one)
            return lambda: None
        return super().read(
            owner, target, offset, end_offset, max_bytes, answered, minimum_one=minimum_one, aborted=aborted
        )

    def _begin(self) -> None:
        broker = self._broker
        shard, world = broker.shard, broker.history_of_archive
        assert shard is not None
        now_s = lambda: broker.cluster.now / 1e6  # noqa: E731
        broker.slots = FaultySlots(world.chance)
        broker.slots.rot, broker.slots.errors = world.cache_faults
        provider = SlottedTier(
            broker.slots, "interval", _SLOTS, 1 << 62, 0.0, lambda: broker.cluster.now // 1000, now_s
        )
        tier = HotTier(provider, StatsSlab(0, "archive"), now_s)
        filling = SimpleNamespace(put=tier.put)
        warm: WarmBlocks = SimpleNamespace(  # pyright: ignore[reportAssignmentType]
            tier=tier, filling=filling, fills_on_read=True, fills_on_write=world.fills_on_write, name="", size_bytes=0
        )
        log = None
        if broker.writer is not None:
            log = LogWorker(world.store, world.store, broker.files, shard.arena.view, broker.writer, ShardId(0))
        worker = ArchiveWorker(world.store, world.store, broker.files, shard.arena.view, 1e15, warm, log=log)
        worker.reader = ArchiveReader(
            world.store, _MEMORY_BYTES, warm, lambda source: world.truth.note(f"block: {source}")
        )
        lanes: Any = [Lane(broker, self, worker) for _ in range(LANES)]
        self._lanes.channels = lanes
        self._child = _NoProcess()  # pyright: ignore[reportAttributeAccessIssue]


class TieredBroker(ServedBroker):
    """A broker whose partition is archived.

    Lifecycle: as `Broker`.
    """

    storage_mode = "tiered"
    writer: Writer | None = None
    """Its life in the store, if acknowledgements wait for that."""

    def __init__(self, cluster: Cluster, node_id: int, world: TieredHistory) -> None:
        self.history_of_archive = world
        self.at_once = False
        """The archive process answers in the same turn."""
        self.slots = FaultySlots(world.chance)
        self.archiver: Archiver | None = None
        super().__init__(cluster, node_id)

    @property
    def files(self) -> Disk:
        """Its disk, as the archive process has it."""
        return self.disk

    @property
    def archive(self) -> PartitionArchive | None:
        """The archive of its partition."""
        return self.partition.archive

    @property
    def archives(self) -> dict[RaftGroupId, PartitionArchive]:
        """All its archives, by Raft group."""
        return {} if self.archive is None else {GROUP: self.archive}

    def _open(
        self, lifecycle: Lifecycle, table: PartitionTable, name: str, group: RaftGroupId, config: Any
    ) -> Partition:
        if lifecycle.archiver is None:
            assert self.shard is not None
            lifecycle.archiver = self.archiver = self._make_archiver(self.shard, WorldLink(self, self.shard))
        config = topic_config({**_PROPERTIES, "storage.mode": self.storage_mode}, _SETTINGS)
        config.__dict__.update(segment_bytes=SEGMENT_BYTES)
        return super()._open(lifecycle, table, name, group, config)

    def _make_archiver(self, shard: LocalShard, link: WorldLink) -> Archiver:
        reactor: Any = shard.reactor
        return Archiver(reactor, shard.storage, link, shard.stats, RETENTION_MS, self._describe)

    def _describe(self, topic_id: bytes) -> TopicDescription | None:
        return TopicDescription("t", topic_id.hex(), 1, {}, "", len(self.cluster.brokers))

    def step(self) -> None:
        """Do one thing, and look at the archives after it."""
        super().step()
        for group, archive in self.archives.items():
            if not archive.closed:
                self.history_of_archive.judges[group].look(node_of(self.replica), archive)

    @property
    def has_archived(self) -> bool:
        """Whether this broker leads, and nothing of its archive waits to be written."""
        archive = self.archive
        return (
            archive is not None
            and self.group.role is GroupRole.LEADING
            and not archive.attempts.busy
            and not archive.uploads.pending
            and archive.replacement is None
            and archive.next_upload() is None
            and archive.archive.next_spill() is None
        )

    def _check_whole(self, checks: Checks) -> None:
        """Read everything that is committed, from the archive as far as it is not local."""
        log, archive, shard = checks.log, self.archives[checks.group.group], self.shard
        assert shard is not None
        # A replica moves its start some time after it learns of that.
        truth = self.history_of_archive.judges[checks.group.group].truth
        offset = max(log.start_offset, truth.start)
        if archive.archive.version < truth.version:
            offset = log.first_local_offset  # it does not know the newest join, and its readers ask again
        self.at_once = True
        try:
            while offset < min(log.first_local_offset, checks.group.high_watermark):
                found = _read_archived(shard, archive, Offset(offset))
                if isinstance(found, MillstreamError):
                    raise Violation(f"F3: {self.replica} can't read offset {offset} from its archive: {found}")
                self.history_of_archive.truth.note("read from the archive at a heal")
                offset = checks.compare_whole(found, offset)
        finally:
            self.at_once = False
        end = checks.group.high_watermark
        for data in whole_log(shard, checks, Offset(offset)):
            offset = checks.compare_whole(data, offset)
        checks.history.check_acknowledged(self.replica, log.start_offset, end)


def _read_archived(shard: LocalShard, archive: PartitionArchive, offset: Offset) -> memoryview | MillstreamError:
    def read(done: Any) -> None:
        archive.read(offset, READ_BYTES, done, minimum_one=True)

    found = shard.call(read)
    if isinstance(found, MillstreamError):
        return found
    data = memoryview(found.copy(0, len(found)))
    found.release()
    return data


class _NoProcess:
    """What `WorldLink` says that its process is."""

    pidfd = -1

    def kill(self) -> None:
        """The lanes learn that the link has stopped."""


def _no_process() -> Any:
    raise AssertionError("an archive process here is no process")


def _ignore(_: str) -> None:
    """The process does not end by itself."""
