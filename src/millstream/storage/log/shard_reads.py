"""Everything that reads the segments of one shard's logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.storage.log.cold_reads import ColdReads
from millstream.storage.log.event_reads import EventReads
from millstream.storage.log.page_reads import PageReads
from millstream.storage.log.timestamps import Timestamps
from millstream.storage.segments.read_faults import ReadFaults

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Arena
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import WorkerLink
    from millstream.telemetry.metrics import StatsSlab


class ShardReads:
    """One per shard."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        worker: WorkerLink,
        disk: Disk,
        appends: Callable[[], int],
    ) -> None:
        """``appends`` rises with what is appended to the logs."""
        self.faults = ReadFaults(stats)
        self.cold = ColdReads(reactor, arena, stats, worker, self.faults)
        self.pages = PageReads(reactor, arena, stats, worker, disk, appends)
        self.timestamps = Timestamps(worker, self.faults)
        self.events = EventReads(reactor, arena, worker, self.faults)

    def stop(self) -> None:
        """Send nothing more: the worker is about to end."""
        self.cold.stop()
        self.pages.stop()
        self.timestamps.stop()
        self.events.stop()
