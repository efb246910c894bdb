"""The warm cache between memory and the object store: blocks of archived segments, on a disk or in memory.

::

    lookup ──► memory of the reader ──► hot tier ──► object store
                                          ▲ fill: what was read from the store, what is uploaded (`cache.fill`)

A **file tier** is one file of slots of one size. A slot begins with a header: whose block it is, its length and
checksum. Blocks larger than a slot are not cached. The policy (`core.eviction`) decides which block is admitted and
which one leaves; `cache.max.size.bytes` is a hard limit over all shards.

**Whatever happens to it, a reader is served from the store.** A block that does not match its header or checksum is
forgotten; three of them in a minute switch the tier off for a minute. So does an error of its disk. Below 10 % of free
space nothing is added. A start finds the tier empty. Fills are done by a thread of their own, and are dropped when too
many wait. Nothing is synced.

Source: the RFC of a hot-tier NVMe cache for tail segments (AutoMQ, 2025), with the decisions of ADR 10.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from crc32c import crc32c

from millstream.core.eviction import Block, BlockKey, PartitionKey, ReaderId, make_policy
from millstream.errors import Rejected
from millstream.model.quantities import Offset, TimestampMs
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.settings import Settings
    from millstream.core.eviction import Policy
    from millstream.format.manifest import ArchiveId
    from millstream.telemetry.metrics import StatsSlab

SLOT_BYTES: Final = 1_310_720
"""1.25 MiB: a block of 1 MiB, and what its last batch is longer."""

_HEADER: Final = struct.Struct("<8s16sIqII")
"""magic, topic id, partition, base offset, length, CRC-32C of the block"""

_MAGIC: Final = b"MSHOT\r\n\x00"
_CORRUPTIONS_MAX: Final = 3
_WINDOW_S: Final = 60.0
_OFF_S: Final = 60.0
_QUEUE_MAX: Final = 16
_FREE_SHARE_MIN: Final = 0.1
_SPACE_CHECK_S: Final = 5.0


class Slots(Protocol):
    """Where the blocks of a tier are."""

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        """The block in a slot; None if the slot holds anything else. Raises OSError."""
        ...

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, block: memoryview) -> None:
        """Fill a slot. Raises OSError."""
        ...

    def has_room(self) -> bool:
        """Whether blocks may be added."""
        ...

    def close(self) -> None:
        """Give everything up."""
        ...


class MemorySlots:
    """Blocks in memory of this process."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[ArchiveId, Offset, memoryview]] = {}

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        found = self._blocks.get(slot)
        return found[2] if found is not None and found[:2] == (owner, base_offset) else None

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, block: memoryview) -> None:
        self._blocks[slot] = (owner, base_offset, block)

    def has_room(self) -> bool:
        return True

    def close(self) -> None:
        self._blocks.clear()


class FileSlots:
    """Blocks in one file of a directory that belongs to the broker.

    The directory is absolute, is no symbolic link, belongs to the broker's user, and nobody else may enter it. Raises
    Rejected or OSError if it cannot be used.
    """

    def __init__(self, directory: str, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        _check_directory(directory)
        path = f"{directory}/{name}"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno == errno.EWOULDBLOCK:
                raise Rejected(f"cache.path: {path} is in use by another broker") from None
            raise
        self._clock = clock
        self._checked_s = -_SPACE_CHECK_S
        self._room = True

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        data = memoryview(os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES))
        if len(data) < _HEADER.size:
            return None
        magic, topic, partition, base, length, checksum = _HEADER.unpack_from(data)
        block = data[_HEADER.size : _HEADER.size + length]
        right = magic == _MAGIC and (topic, partition, base) == (
            owner.topic_id.bytes,
            owner.partition_index,
            base_offset,
        )
        return block if right and len(block) == length and crc32c(block) == checksum else None

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, block: memoryview) -> None:
        head = _HEADER.pack(_MAGIC, owner.topic_id.bytes, owner.partition_index, base_offset, len(block), crc32c(block))
        written = os.pwritev(self._fd, [head, block], slot * SLOT_BYTES)
        if written != len(head) + len(block):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def has_room(self) -> bool:
        if self._clock() - self._checked_s >= _SPACE_CHECK_S:
            self._checked_s = self._clock()
            space = os.fstatvfs(self._fd)
            self._room = space.f_bavail >= _FREE_SHARE_MIN * space.f_blocks
        return self._room

    def close(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _check_directory(directory: str) -> None:
    if not os.path.isabs(directory):
        raise Rejected(f"cache.path: {directory!r} is no absolute directory")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Rejected(
            f"cache.path: {directory} must be a directory of the broker's user that nobody else may enter (mode 0700), "
            "and no symbolic link"
        )


class HotTier:
    """One shard's warm cache. Safe for threads.

    Invariants: a block that the policy knows has a slot, and the other way round; every other slot is free.
    """

    def __init__(
        self,
        slots: Slots,
        policy: str,
        slots_max: int,
        age_max_ms: int,
        stats: StatsSlab,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._policy: Policy = make_policy(policy, slots_max, age_max_ms)
        self._now_ms = now_ms
        self._clock = clock
        self._lock = threading.Lock()  # of everything below
        self._places: dict[BlockKey, tuple[int, int]] = {}  # slot, block bytes
        self._free = deque[int]()
        self._unused = 0  # slots from here on were never used
        self._slots_max = slots_max
        self._partitions: dict[ArchiveId, PartitionKey] = {}
        self._corruptions: deque[float] = deque(maxlen=_CORRUPTIONS_MAX)
        self._off_until_s = 0.0
        self._bytes = 0
        self._lines = RateLimit(per_minute=6)
        self._hits = stats.counter("hot_tier_hits")
        self._misses = stats.counter("hot_tier_misses")
        self._fills = stats.counter("hot_tier_fills")
        self._size = stats.gauge("hot_tier_size_bytes")
        self._latency = stats.histogram("hot_tier_read_latency")
        self._evictions = {
            reason: stats.counter("hot_tier_evictions", reason=reason) for reason in ("capacity", "age", "fault")
        }
        self._dropped = stats.counter("hot_tier_dropped_fills")

    def get(self, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        """The block that begins at the offset, checked; None if it is not here. The bytes are the caller's."""
        begun_ns = time.monotonic_ns()
        with self._lock:
            key = BlockKey(self._partition(owner), base_offset)
            place = None if self._clock() < self._off_until_s else self._places.get(key)
        if place is None:
            self._misses.inc()
            return None
        try:
            block = self._slots.read(place[0], owner, base_offset)
        except OSError as error:
            self._switch_off(error.strerror or "its disk failed")
            self._misses.inc()
            return None
        with self._lock:
            if block is None:
                if self._places.get(key) == place:  # or it left, and the slot was filled anew meanwhile
                    self._forget(key, "fault")
                    self._corrupt()
            else:
                self._policy.used(key)
        (self._misses if block is None else self._hits).inc()
        self._latency.observe((time.monotonic_ns() - begun_ns) // 1000)
        return block

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, appended_ms: TimestampMs) -> None:
        """Offer a block. The tier may refuse it, and never raises for what its disk does."""
        if _HEADER.size + len(block) > SLOT_BYTES:
            return
        now_ms = TimestampMs(self._now_ms())
        with self._lock:
            if self._clock() < self._off_until_s:
                return
            key = BlockKey(self._partition(owner), base_offset)
            if key in self._places:
                return
            for expired in self._policy.expire(now_ms):
                self._give_back(expired, "age")
            try:
                if not self._slots.has_room():
                    return
            except OSError as error:
                self._off(error.strerror or "its disk failed")
                return
            admission = self._policy.offer(Block(key, appended_ms), now_ms)
            for victim in admission.victims:
                self._give_back(victim, "capacity")
            if not admission.admitted:
                return
            slot = self._take_slot()
            try:
                # Under the lock: no reader may take a slot for filled that is not.
                self._slots.write(slot, owner, base_offset, block)
            except OSError as error:
                self._free.append(slot)
                self._policy.remove(key)
                self._off(error.strerror or "its disk failed")
                return
            self._places[key] = (slot, len(block))
            self._bytes += len(block)
            self._size.set(self._bytes)
            self._fills.inc()

    def reader_at(self, owner: ArchiveId, reader: ReaderId, next_offset: Offset, place_ms: TimestampMs) -> None:
        """A reader goes on at this offset, where the data are as old as ``place_ms`` says."""
        with self._lock:
            now_ms = TimestampMs(self._now_ms())
            self._policy.reader_at(self._partition(owner), reader, next_offset, place_ms, now_ms)

    def dropped(self) -> None:
        """A fill was given up, because too many waited."""
        self._dropped.inc()

    def close(self) -> None:
        """Give everything up."""
        self._slots.close()

    def _partition(self, owner: ArchiveId) -> PartitionKey:
        key = self._partitions.get(owner)
        if key is None:
            key = self._partitions[owner] = PartitionKey(len(self._partitions))
        return key

    def _take_slot(self) -> int:
        if self._free:
            return self._free.popleft()
        assert self._unused < self._slots_max, "the policy admits no more blocks than there are slots"
        self._unused += 1
        return self._unused - 1

    def _forget(self, key: BlockKey, reason: str) -> None:
        self._policy.remove(key)
        self._give_back(key, reason)

    def _give_back(self, key: BlockKey, reason: str) -> None:
        slot, size_bytes = self._places.pop(key)
        self._free.append(slot)
        self._bytes -= size_bytes
        self._size.set(self._bytes)
        self._evictions[reason].inc()

    def _corrupt(self) -> None:
        now_s = self._clock()
        self._corruptions.append(now_s)
        if len(self._corruptions) == _CORRUPTIONS_MAX and now_s - self._corruptions[0] <= _WINDOW_S:
            self._corruptions.clear()
            self._off(f"{_CORRUPTIONS_MAX} blocks in it were damaged")

    def _switch_off(self, why: str) -> None:
        with self._lock:
            self._off(why)

    def _off(self, why: str) -> None:
        """The caller holds the lock. What is in it is given up: nobody knows what it is worth."""
        self._off_until_s = self._clock() + _OFF_S
        for key in list(self._places):
            self._forget(key, "fault")
        if self._lines.allows():
            operator_log.warning("the warm cache is off for a minute: %s; readers are served from the store", why)


class WarmBlocks:
    """A hot tier, and what fills it (``cache.fill``)."""

    def __init__(self, tier: HotTier, fill: str) -> None:
        self.tier = tier
        self.filling = Filling(tier)
        self.fills_on_read = fill in ("read", "both")
        self.fills_on_write = fill in ("write", "both")


def open_warm_blocks(settings: Settings, shard_id: int, stats: StatsSlab) -> WarmBlocks | None:
    """The warm cache of a shard; None without one, or if its directory cannot be used, which is logged."""
    slots_max = settings.cache_max_size_bytes // settings.shards // SLOT_BYTES
    if settings.cache_type == "none" or not slots_max:
        return None
    slots: Slots
    if settings.cache_type == "memory":
        slots = MemorySlots()
    else:
        directory = settings.cache_path or f"{os.path.abspath(settings.data_dir)}/cache"
        try:
            slots = FileSlots(directory, f"shard-{shard_id}")
        except (OSError, Rejected) as error:
            operator_log.warning("there is no warm cache, readers are served from the store: %s", error)
            return None
    tier = HotTier(slots, settings.cache_eviction_policy, slots_max, settings.cache_max_segment_age_ms, stats)
    return WarmBlocks(tier, settings.cache_fill)


class Filling:
    """Fills a tier in a thread of its own, so that no reader waits for it; what is too much is dropped."""

    def __init__(self, tier: HotTier) -> None:
        self._tier = tier
        self._queue: deque[tuple[ArchiveId, Offset, memoryview, TimestampMs]] = deque()
        self._bell = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, appended_ms: TimestampMs) -> None:
        """Offer a block, soon."""
        if len(self._queue) >= _QUEUE_MAX:
            self._tier.dropped()
            return
        self._queue.append((owner, base_offset, block, appended_ms))
        self._bell.release()

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            self._tier.put(*self._queue.popleft())
