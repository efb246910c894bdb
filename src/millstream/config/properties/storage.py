"""Write-ahead log, checkpoints and disk space."""

from __future__ import annotations

from millstream.config.forms import DOUBLE_MAX, INT64_MAX, Boolean, Integer, Number, Text
from millstream.config.property import Property

_MIB = 2**20


class StorageProperties:
    """What is synced when, and how much disk is left alone."""

    wal_bytes = Property(
        "wal.bytes",
        Integer(4 * _MIB, INT64_MAX, unit="bytes"),
        256 * _MIB,
        doc="Write-ahead log of one shard. A checkpoint must have freed its oldest part before it is full.",
        example="1GiB",
    )
    wal_file_bytes = Property(
        "wal.file.bytes",
        Integer(_MIB, 2**31 - 1, unit="bytes"),
        32 * _MIB,
        doc="One of the files that the write-ahead log is made of; they are zero-filled once and reused.",
    )
    wal_pacing_us = Property(
        "wal.pacing.us",
        Integer(0, 1_000_000, unit="µs"),
        500,
        doc="Under load, the shortest time between two syncs of a shard, a quarter as long again while only a few "
        "records are waiting and more may come: longer saves processor, shorter saves latency. A lone request never "
        "waits for it.",
    )
    checkpoint_bytes = Property(
        "checkpoint.bytes",
        Integer(_MIB, INT64_MAX, unit="bytes"),
        128 * _MIB,
        doc="Segments are synced after this much of the write-ahead log was written.",
    )
    checkpoint_ms = Property(
        "checkpoint.ms",
        Integer(100, INT64_MAX, unit="ms"),
        60_000,
        doc="Segments are synced at least this often while there are writes.",
    )
    storage_direct_io = Property(
        "storage.direct.io",
        Boolean(),
        True,
        doc="Whether the write-ahead log and large writes to segments go past the page cache (O_DIRECT). Without it "
        "producers cost more processor and wait longer, and the page cache holds what consumers far behind will read, "
        "if there is memory to spare. Where a file system has no such writes, none are made.",
    )
    storage_reserve_bytes = Property(
        "storage.reserve.bytes",
        Integer(0, INT64_MAX, unit="bytes"),
        256 * _MIB,
        doc="Free space on the data directory's disk below which producers get a retriable error; reads, deletes and "
        "the broker's own records go on.",
    )
    log_retention_check_interval_ms = Property(
        "log.retention.check.interval.ms",
        Integer(1, INT64_MAX, unit="ms"),
        300_000,
        doc="How often segments are looked at for retention by time and size.",
    )
    log_cleaner_enable = Property(
        "log.cleaner.enable",
        Boolean(),
        True,
        doc="Whether topics with cleanup.policy=compact are compacted, __consumer_offsets among them.",
    )
    log_cleaner_backoff_ms = Property(
        "log.cleaner.backoff.ms",
        Integer(0, INT64_MAX, unit="ms"),
        15_000,
        doc="How long to wait before looking again when there is nothing to compact.",
    )
    log_cleaner_dedupe_buffer_size = Property(
        "log.cleaner.dedupe.buffer.size",
        Integer(4096, INT64_MAX, unit="bytes"),
        134_217_728,
        doc="Memory for the keys of the log that is being compacted, over all shards, 24 bytes a key; taken only while "
        "one is. A log with more keys is compacted in several passes.",
    )
    log_cleaner_io_buffer_load_factor = Property(
        "log.cleaner.io.buffer.load.factor",
        Number(0.01, 1.0),
        0.9,
        doc="How full the memory for keys may get: more holds more keys and finds each more slowly.",
    )
    log_cleaner_io_max_bytes_per_second = Property(
        "log.cleaner.io.max.bytes.per.second",
        Number(1.0),
        DOUBLE_MAX,
        doc="Bytes that compaction reads and writes in a second, over all shards.",
    )
    log_cleaner_cpu_percent = Property(
        "log.cleaner.cpu.percent",
        Integer(1, 100),
        50,
        doc="Share of a core that compaction may use on each shard, of what is left over: it runs at the lowest "
        "priority.",
    )
    internal_disk_factory = Property(
        "internal.disk.factory",
        Text("module:callable"),
        "",
        doc="What stands between the storage and the operating system; tests put a faulty disk there.",
        hidden=True,
    )
