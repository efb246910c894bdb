"""A full disk: producers are refused, what failed is tried again, and they are let in again when there is space.

The free space is read once a second while something is appended, and until there is space again; of an idle shard
every five seconds, so that a disk that others have filled is known before the first batch. Less than
``storage.reserve.bytes`` free, or a write that found no space, turns ``accepts_writes`` off. Nothing is lost:
what could not be written stays in memory and in the write-ahead log. Free space that can't be read stops
the shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from millstream.storage.disk import DiskFault
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.config.settings import Settings
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.maintenance.checkpoint import Checkpointer
    from millstream.storage.wal.wal import Wal
    from millstream.telemetry.metrics import StatsSlab

_CHECK_US: Final = 1_000_000
_IDLE_US: Final = 5_000_000
_STARTS_AGAIN: Final = 1.05
"""Producers are let in again with this much of the reserve free, so that the answer does not flicker."""


class SpaceHost(Protocol):
    """What ``Space`` needs of its storage."""

    reactor: Reactor
    stats: StatsSlab
    settings: Settings
    disk: Disk
    data_dir: str
    wal: Wal
    checkpointer: Checkpointer

    def fail(self, fault: DiskFault, reason: str) -> None:
        """Stop the shard."""
        ...


class Space:
    """The free space of one shard's disk."""

    def __init__(self, storage: SpaceHost) -> None:
        self._storage = storage
        self._read_only = storage.stats.gauge("storage_read_only")
        self._full_faults = storage.stats.counter("storage_faults", kind="disk_full")
        self._refused: dict[OpenLog, None] = {}  # logs whose last write found the disk full
        self._checks_soon = False
        self._timer = storage.reactor.call_later(_IDLE_US, self._check)
        self._full_since_us = 0
        self.accepts_writes = True
        """False while the disk is full."""

    def look_later(self) -> None:
        """Bytes were appended: read the free space within a second."""
        if not self._checks_soon:
            self._checks_soon = True
            self._timer.cancel()
            self._timer = self._storage.reactor.call_later(_CHECK_US, self._check)

    def written(self, log: OpenLog) -> None:
        """A write to a log's segment succeeded, or the log was removed."""
        if self._refused:
            self._refused.pop(log, None)

    def write_refused(self, log: OpenLog, why: str) -> None:
        """A segment write found the disk full: it is tried again once a second."""
        self._refused[log] = None
        self.disk_full(why)

    def disk_full(self, why: str) -> None:
        """The disk said that it is full."""
        self._full_faults.inc()
        if self.accepts_writes:
            self._refuse(why)
        self.look_later()

    def _refuse(self, why: str) -> None:
        storage = self._storage
        self.accepts_writes = False
        self._read_only.set(1)
        self._full_since_us = storage.reactor.now_us()
        operator_log.error("disk full: producers are refused until there is space in %s: %s", storage.data_dir, why)

    def _check(self) -> None:
        self._checks_soon = False
        storage = self._storage
        if storage.wal.closed:
            return
        try:
            free = storage.disk.free_bytes(storage.data_dir)
        except OSError as error:
            storage.fail(DiskFault.WRITE, f"{storage.data_dir} cannot be read: {error.strerror}")
            return
        reserve = storage.settings.storage_reserve_bytes
        if self.accepts_writes:
            if free < reserve:
                self._refuse(f"{free} bytes are free, {reserve} are kept in reserve")
        else:
            self._try_again()
            trouble = self._refused or storage.checkpointer.refused or storage.wal.full or storage.wal.refused
            if free >= reserve * _STARTS_AGAIN and not trouble:
                self.accepts_writes = True
                self._read_only.set(0)
                operator_log.info(
                    "space again: producers are let in after %d s",
                    (storage.reactor.now_us() - self._full_since_us) // 1_000_000,
                )
        if self.accepts_writes:
            self._timer = storage.reactor.call_later(_IDLE_US, self._check)
        else:
            self.look_later()

    def _try_again(self) -> None:
        self._storage.wal.try_again()
        for log in list(self._refused):
            if not log.behind.under_way:
                log.guard("write behind", log.behind.advance)
                if not log.behind.under_way:
                    del self._refused[log]  # what was to be written has been deleted
        self._storage.checkpointer.request()
