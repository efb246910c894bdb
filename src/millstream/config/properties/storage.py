"""Write-ahead log, checkpoints and disk space."""

from __future__ import annotations

from millstream.config.forms import INT64_MAX, Integer, Text
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
        doc="Under load, the shortest time between two syncs of a shard: longer saves processor, shorter saves "
        "latency. A lone request never waits for it.",
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
    internal_disk_factory = Property(
        "internal.disk.factory",
        Text("module:callable"),
        "",
        doc="What stands between the storage and the operating system; tests put a faulty disk there.",
        hidden=True,
    )
