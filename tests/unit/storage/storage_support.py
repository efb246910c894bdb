"""What the storage tests share: a shard by hand, and appending what a producer would send."""

import random
import struct
from typing import Any

from millstream.format.names import wal_name
from millstream.storage.segments.index import SegmentIndex, grow_index
from millstream.storage.segments.read_faults import ReadFaults
from millstream.telemetry.metrics import StatsSlab
from sim.engine.disk import SimDisk
from sim.engine.local_storage import DATA_DIR, LocalShard, place_of, plain_batch, recover_locally

WAL = f"{DATA_DIR}/wal/0/{wal_name(0)}"
"""The first file of shard 0's write-ahead log."""

SEGMENT = f"{place_of(1).directory}/00000000000000000000"
"""The first segment of group 1's log, without the suffix."""


FAULTS = ReadFaults(StatsSlab(0, "worker"))
"""For a worker whose faults nobody looks at."""


def new_shard(seed: int = 1, disk: SimDisk | None = None, **options: Any) -> LocalShard:
    """A shard over an empty disk, or after recovery over one that is given."""
    rng = random.Random(seed)
    disk = disk or SimDisk(rng)
    report = recover_locally(disk, segment_bytes=options.pop("segment_bytes", 1 << 30))
    assert not report.faults, report.faults
    return LocalShard(disk, rng, clean=report.clean, **options)


def append(log: Any, count: int = 1, size: int = 0, timestamp: int = 1000, epoch: int = 0, pieces: int = 1) -> bytes:
    """Append a batch as a producer sends it; returns it as the log must have it."""
    base = log.next_offset
    data = plain_batch(7777, count, random.Random(base).randbytes(size), timestamp)
    step = -(-len(data) // pieces)
    views = [memoryview(data)[at : at + step] for at in range(0, len(data), step)]
    log.append(views, len(data), base, base + count - 1, epoch, timestamp)
    return struct.pack(">qii", base, len(data) - 12, epoch) + data[16:]


def fill(shard: LocalShard, log: Any, batches: int, size: int = 500, **options: Any) -> list[bytes]:
    """Append so many batches, each durable before the WAL has no room for more."""
    written: list[bytes] = []
    for n in range(batches):
        written.append(append(log, 1, size, **options))
        if n % 50 == 49:
            settle(shard)
    settle(shard)
    return written


def settle(shard: LocalShard) -> None:
    """Until everything appended is durable."""
    shard.run(lambda: shard.storage.wal.idle)


def read_everything(shard: LocalShard, log: Any) -> bytes:
    """The whole log, from wherever it is."""
    offset, data = log.start_offset, b""
    while offset < log.next_offset:
        found = log.read(offset, log.next_offset, 1 << 20, True)
        if found is None:
            found = shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
        if isinstance(found, Exception):
            raise found
        part = bytes(found)
        found.release()
        data += part
        at = 0
        while at < len(part):
            size = int.from_bytes(part[at + 8 : at + 12], "big") + 12
            offset = int.from_bytes(part[at : at + 8], "big") + int.from_bytes(part[at + 23 : at + 27], "big") + 1
            at += size
    return data


def entries(index: SegmentIndex) -> list[tuple[int, int, int]]:
    """(offset, position, timestamp) of each entry of an index."""
    return list(zip(index.offsets, index.positions, index.timestamps, strict=True))


def rebuilt(disk: SimDisk, path: str) -> list[tuple[int, int, int]]:
    """The entries that the index of a log's first segment should have."""
    index = SegmentIndex(0)
    grow_index(disk, path, index, disk.size(path), 0)
    return entries(index)


def kill(shard: LocalShard) -> SimDisk:
    """Only the processes are gone: what was written is there, synced or not."""
    shard.disk.sync_all("")
    return shard.disk


def reopened(disk: SimDisk, report: Any, group: int = 1, **config: Any) -> tuple[LocalShard, Any]:
    """A shard after that recovery, and a log of it."""
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    return shard, shard.open(group, **config)
