"""Periodic work on logs: retention, and sealing of old segments.

Retention examines every log each ``log.retention.check.interval.ms``, in slices of the reactor's background work.
``core.retention`` decides and ``Log.trim_prefix`` deletes, so a crash leaves the log before or after the change. A
topic that is only compacted keeps everything here. A segment is sealed ``segment.ms`` after its first batch, by a timer
for the log that is due next; logs are checked when their earliest open segment would have been due, so however many
segments come and go in between, there is one entry a log.

The age of an open segment is on the monotonic clock: one that is set back or ahead neither keeps segments open nor
seals all of them. After a start the wall clock says how old a segment is already. Retention compares the times of
records with the wall clock, because both are wall clocks; so does Kafka.

A trim that finds no room in the write-ahead log is left to the next round. How much there is of everything is added up
for the metrics every few seconds in which something was written or deleted.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

from millstream.core.retention import SegmentFacts, start_after_retention
from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.shard.reactor import Reactor
    from millstream.shard.timers import Timer
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.wal.wal import Wal
    from millstream.telemetry.metrics import StatsSlab

_SHARE: Final = 0.05
_FIRST_ROUND_US: Final = 30_000_000
"""The first check is half a minute after the start, as in Kafka."""

_MEASURE_US: Final = 5_000_000


class HousekeepingHost(Protocol):
    """What housekeeping needs of its shard's storage."""

    reactor: Reactor
    stats: StatsSlab
    wal: Wal

    @property
    def logs(self) -> dict[int, Log]:
        """The open logs."""
        ...

    def now_ms(self) -> int:
        """Wall clock."""
        ...


class Housekeeping:
    """Retention, sealing and sizes of one shard's logs, on its reactor."""

    def __init__(self, storage: HousekeepingHost, interval_ms: int) -> None:
        self._storage = storage
        self._interval_us = interval_ms * 1000
        self._running = False
        self._due: list[tuple[int, int]] = []  # (when to look in µs, group)
        self._looks: dict[int, int] = {}  # the entry of a group that counts
        self._timer: Timer | None = None
        self._timer_due_us = 0
        stats = storage.stats
        self._deleted = stats.counter("retention_deleted_bytes")
        self._sizes = stats.gauge("log_size_bytes")
        self._segments = stats.gauge("log_segments")
        self._measured = (-1, 0)
        storage.reactor.call_later(min(self._interval_us, _FIRST_ROUND_US), self._round)
        storage.reactor.call_later(_MEASURE_US, self._measure)

    # -- age of segments -----------------------------------------------------------------------------------------------

    def segment_began(self, log: OpenLog, segment: Segment) -> None:
        """A segment got its first batch, or its log another ``segment.ms``: schedule its sealing."""
        if segment.began_us < 0:
            age_ms = max(0, self._storage.now_ms() - segment.created_ms)
            segment.began_us = self._storage.reactor.now_us() - age_ms * 1000
        due_us = segment.began_us + log.sizes.segment_ms * 1000
        if self._looks.get(log.group, due_us + 1) <= due_us:
            return
        self._looks[log.group] = due_us
        heapq.heappush(self._due, (due_us, log.group))
        if self._timer is None or due_us < self._timer_due_us:
            self._arm()

    def forget(self, log: OpenLog) -> None:
        """Remove the schedule of a closed log."""
        self._looks.pop(log.group, None)
        if len(self._due) > 2 * len(self._looks) + 64:
            self._due = [(due_us, group) for due_us, group in self._due if self._looks.get(group) == due_us]
            heapq.heapify(self._due)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer_due_us = self._due[0][0]
            self._timer = self._storage.reactor.call_at(self._timer_due_us, self._seal_due)

    def _seal_due(self) -> None:
        self._timer = None
        now_us = self._storage.reactor.now_us()
        while self._due and self._due[0][0] <= now_us:
            due_us, group = heapq.heappop(self._due)
            if self._looks.get(group) != due_us:
                continue  # an earlier look took its place
            del self._looks[group]
            log = self._storage.logs.get(group)
            if log is None:
                continue  # deleted in the meantime
            log.guard("roll", self._seal, log, now_us)
        self._arm()

    def _seal(self, log: Log, now_us: int) -> None:
        """Seal the active segment of a log if it is due."""
        segment = log.files.segments.active
        if log.next_offset == segment.base_offset:
            return  # its first batch will say so
        if segment.began_us + log.sizes.segment_ms * 1000 <= now_us:
            log.roll()
        else:
            self.segment_began(log, segment)

    # -- retention -----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        if not self._running:
            self._running = True
            self._storage.reactor.background("housekeeping", self.look_at_all(), _SHARE, self._round_over)
        self._storage.reactor.call_later(self._interval_us, self._round)

    def _round_over(self) -> None:
        self._running = False

    def look_at_all(self) -> Generator[None, None, None]:
        """Apply retention to every log, one at a time."""
        for log in list(self._storage.logs.values()):
            if not log.closed:
                log.guard("retention", self.retain, log)
            yield

    def retain(self, log: Log) -> None:
        """Apply retention to one log."""
        config = log.config
        if log.group == 0 or log.files.retained_elsewhere or "delete" not in config.cleanup_policy:
            return
        log.refresh()
        now_ms = self._storage.now_ms()
        facts = [
            SegmentFacts(one.base_offset, one.end_offset, one.size_bytes, one.max_timestamp, changed_ms)
            for one, changed_ms in zip(log.files.segments, log.files.segments.changed_ms(now_ms), strict=True)
        ]
        start = start_after_retention(facts, now_ms, config.retention_ms, config.retention_bytes, log.stable_offset)
        if start is None or start <= log.start_offset:
            return
        if log.owner.move_start is not None:
            log.owner.move_start(Offset(start))
            return
        gone = sum(one.size_bytes for one in facts if one.end_offset <= start)
        before = log.start_offset

        def durable() -> None:
            self._deleted.inc(gone)
            operator_log.at(log.name).info(
                "retention: offsets %d to %d, %d bytes, are deleted", before, start - 1, gone
            )

        try:
            log.trim_prefix(Offset(start), durable)
        except ArenaFull:
            return

    # -- how much there is ---------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        storage = self._storage
        now = (storage.wal.written_bytes, len(storage.logs))
        if now != self._measured:
            self._measured = now
            storage.reactor.background("housekeeping", self.measure_all(), _SHARE)
        storage.reactor.call_later(_MEASURE_US, self._measure)

    def measure_all(self) -> Generator[None, None, None]:
        """Add up the logs for the metrics."""
        size = segments = 0
        for log in list(self._storage.logs.values()):
            if not log.closed:
                try:
                    size += log.size_bytes
                    segments += len(log.files.segments)
                except Exception as error:  # noqa: BLE001 - the boundary
                    log.failed("measuring", error)
            yield
        self._sizes.set(size)
        self._segments.set(segments)
