"""What the tests of compaction share: a topic's keys and values on a shard by hand, and what a consumer would see."""

from __future__ import annotations

from typing import Any

from storage_support import new_shard, read_everything, settle

from millstream.wire.records import build_batch, iter_batches, iter_records, parse_header
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard

COMPACTED: dict[str, Any] = {
    "cleanup_policy": ("compact",),
    "segment_bytes": 2000,
    "min_cleanable_dirty_ratio": 0.01,
    "file_delete_delay_ms": 1000,
}
NOW_MS = 1_700_000_000_000


def compacted_shard(seed: int = 1, disk: SimDisk | None = None, **settings: Any) -> LocalShard:
    """A shard whose compacted topics are looked at every 100 ms."""
    return new_shard(seed, disk, settings={"log_cleaner_backoff_ms": 100, **settings})


def put(
    shard: LocalShard, log: Any, *records: tuple[bytes | None, bytes | None], durable: bool = True, **batch: Any
) -> int:
    """Append one batch of keys and values, one millisecond apart; its base offset."""
    base = log.next_offset
    stamped = [(key, value, [("h", b"x")], NOW_MS + base + n) for n, (key, value) in enumerate(records)]
    data = build_batch(stamped, **batch)
    log.append((memoryview(data),), len(data), base, base + len(records) - 1, 0, stamped[-1][3])
    if durable:
        settle(shard)
    return base


def overwrite(shard: LocalShard, log: Any, rounds: int, keys: int = 10, **batch: Any) -> dict[bytes, bytes]:
    """Write every key in every round, in batches of two; what each is in the end."""
    for count in range(rounds):
        for key in range(0, keys, 2):
            pair = [(b"key%d" % one, b"%d of %d %s" % (count, one, bytes(40))) for one in (key, key + 1)]
            put(shard, log, *pair, **batch)
    return {b"key%d" % key: b"%d of %d %s" % (rounds - 1, key, bytes(40)) for key in range(keys)}


def records_of(shard: LocalShard, log: Any) -> list[Any]:
    """Every record that a consumer from the start would see."""
    data = read_everything(shard, log)
    return [record for batch in iter_batches(data) for record in iter_records(batch)]


def headers_of(shard: LocalShard, log: Any) -> list[Any]:
    """The headers of all batches."""
    return [parse_header(batch) for batch in iter_batches(read_everything(shard, log))]


def last_values(records: list[Any]) -> dict[bytes, bytes | None]:
    """What the records amount to."""
    return {record.key: record.value for record in records}


def compact(shard: LocalShard, log: Any) -> None:
    """Until everything that can be compacted is."""
    compaction = shard.storage.compaction
    shard.run(lambda: not compaction.stretch(log).dirty_bytes and not compaction.is_busy, limit_us=60_000_000)
    assert not compaction.stretch(log).dirty_bytes


def files_of(shard: LocalShard, log: Any) -> list[str]:
    """Names of the log's segment files."""
    return sorted(name for name in shard.disk.list(log.directory) if ".log" in name)
