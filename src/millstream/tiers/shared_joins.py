"""Joins of one shard's shared partitions: small ranges become larger objects, so that shared objects can be removed.

::

    archive ──look──► ranges that are due ──► archive process: read, checked, written as one object
                                                        │
         sweep ◄── manifest object ◄── archive ◄── commit ◄── checked once more, proposed as a replacement

What is joined, and when, says ``core.shared.joins``. One join of a shard is in flight at a time, in the archive process
and at a bounded rate, so that neither producers nor readers nor uploads wait. The leader of a partition joins. It
commits by the compare-and-set of `replacing`: if retention, another leader or anything else has changed the manifest,
the new object is removed and the archive stays as it is.

**When a shared object goes.** A sweep removes it when every range in it is below the log's start, or is small and
below `SmallRanges.joined_to`. The archiver moves that offset when the manifest object names the new objects, so
that a recovery from the store finds one or the other. Then the sweep waits for a whole period: readers that started
before it are done. A replica that has not taken up the entry by then gives its readers a retriable error until it has.

**Crashes.** Before the commit the archive names the ranges, and the new object has no owner: ``tier scrub`` removes it.
After the commit every replica names the new object. The next leader writes the manifest object again, and from then on
the ranges may go. A join that fails is repeated after a wait that doubles; a partition with a damaged range is joined
no more until the next start, which is logged, and its objects stay.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.shared import next_join
from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.manifest import REPLACEMENT_ID_BYTES, ArchivedSegment, ManifestPart
from millstream.model.quantities import TimestampMs
from millstream.raft.group import GroupRole
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.replacing import Replacement
from millstream.tiers.shared_objects import stretch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.core.shared import JoinLimits
    from millstream.model.shared import SharedPartition
    from millstream.shard.context import Shard
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Joined
    from millstream.tiers.partition_archive import PartitionArchive
    from millstream.tiers.replacing import Replacing

_SHARE: Final = 0.05
_PERIOD_MIN_US: Final = 100_000
_PERIOD_MAX_US: Final = 30_000_000
_WAIT_US: Final = 1_000_000
_WAIT_MAX_US: Final = 600_000_000
_LINES: Final = RateLimit(per_minute=10)


class _Meters:
    """What the metrics say of the joins of one shard."""

    __slots__ = ("bytes", "joins")

    def __init__(self, stats: StatsSlab) -> None:
        self.joins = stats.counter("shared_joins")
        self.bytes = stats.counter("shared_joined_bytes")


class SharedJoins:
    """The joins of one shard. Lifecycle: made with the shard, `start` once; ends with its link."""

    def __init__(
        self,
        shard: Shard,
        now_ms: Callable[[], int],
        archives: dict[SharedPartition, PartitionArchive],
        link: ArchiveLink,
        replacing: Replacing,
        limits: JoinLimits,
        is_allowed: Callable[[], bool],
    ) -> None:
        """``archives`` are those of `SharedUploads`. ``is_allowed`` says whether every broker knows replacements."""
        self._reactor = shard.reactor
        self._now_ms = now_ms
        self._archives = archives
        self._link = link
        self._replacing = replacing
        self._limits = limits
        self._is_allowed = is_allowed
        self._period_us = min(max(limits.age_ms * 1000 // 40, _PERIOD_MIN_US), _PERIOD_MAX_US)
        self._last: SharedPartition | None = None
        """The partition that was joined last: the next look starts after it."""
        self._failures: dict[SharedPartition, tuple[int, int]] = {}
        """Failures in a row, and not before which time in µs a partition is joined again."""
        self._given_up: set[SharedPartition] = set()
        self._meters = _Meters(shard.stats)

    def start(self) -> None:
        """Join from now on."""
        self._later()

    def _later(self) -> None:
        self._reactor.call_later(self._period_us, self._begin_look)

    def _begin_look(self) -> None:
        if not self._archives or not self._is_allowed():
            self._later()
            return
        found: list[SharedPartition] = []
        self._reactor.background("housekeeping", self._look(found), _SHARE, partial(self._looked_at, found))

    def _look(self, found: list[SharedPartition]) -> Generator[None, None, None]:
        """Find the next partition with something to join."""
        keys = sorted(self._archives)
        first = next((at for at, key in enumerate(keys) if self._last is not None and key > self._last), 0)
        for key in (*keys[first:], *keys[:first]):
            archive = self._archives.get(key)
            if archive is not None and self._guarded_target(key, archive) is not None:
                found.append(key)
                return
            yield

    def _may_join(self, key: SharedPartition, archive: PartitionArchive) -> bool:
        if key in self._given_up or self._failures.get(key, (0, 0))[1] > self._reactor.now_us():
            return False
        return _leads(archive) and archive.replacement is None and archive.spilling is None

    def _guarded_target(
        self, key: SharedPartition, archive: PartitionArchive
    ) -> tuple[ArchivedSegment, ...] | ManifestPart | None:
        """What is to be joined now of a partition, found behind its boundary."""
        try:
            return self._target(archive) if self._may_join(key, archive) else None
        except Exception as error:  # noqa: BLE001 - the boundary
            archive.log.failed("join", error)
            return None

    def _target(self, archive: PartitionArchive) -> tuple[ArchivedSegment, ...] | ManifestPart | None:
        """What is to be joined now: segments in memory, or what the archive process finds in a part."""
        part = archive.small_ranges.next_part()
        if part is not None:
            return part
        segments = archive.small_ranges.in_memory()
        found = next_join(list(map(stretch_of, segments)), self._limits, TimestampMs(self._now_ms()))
        return None if found is None else tuple(segments[found.first : found.end])

    def _looked_at(self, found: list[SharedPartition]) -> None:
        key = found[0] if found else None
        archive = None if key is None else self._archives.get(key)
        target = None if key is None or archive is None else self._guarded_target(key, archive)
        if key is None or archive is None or target is None:
            self._later()
            return
        self._last = key
        written = partial(self._written, key, archive, target)
        start_offset = archive.archive.start_offset
        self._link.join(archive.owner, archive.group.term, target, self._limits.target_bytes, start_offset, written)

    def _written(
        self,
        key: SharedPartition,
        archive: PartitionArchive,
        target: tuple[ArchivedSegment, ...] | ManifestPart,
        result: Joined | MillstreamError,
    ) -> None:
        if isinstance(result, MillstreamError):
            self._failed(key, archive, result)
        elif result.after is None:
            assert isinstance(target, ManifestPart), "segments are joined, of either kind"
            archive.small_ranges.parts.add(target)
            self._begin_look()
        else:
            wanted = Replacement(
                secrets.token_bytes(REPLACEMENT_ID_BYTES), archive.archive.version, result.before, (result.after,)
            )
            try:
                self._replacing.replace(archive, wanted, partial(self._replaced, key, archive, result.after))
            except Exception as error:  # noqa: BLE001 - the boundary
                archive.log.failed("join", error)
                self._later()

    def _replaced(
        self, key: SharedPartition, archive: PartitionArchive, after: ArchivedSegment, result: int | MillstreamError
    ) -> None:
        if isinstance(result, MillstreamError):
            if isinstance(result, Rejected):  # no entry names it, and none will
                self._link.remove(archive.owner, (after,), (), (), _ignore)
            self._failed(key, archive, result)
            return
        self._failures.pop(key, None)
        self._meters.joins.inc()
        self._meters.bytes.inc(after.size_bytes)
        self._begin_look()

    def _failed(self, key: SharedPartition, archive: PartitionArchive, error: MillstreamError) -> None:
        place = operator_log.at(archive.log.name)
        if isinstance(error, Corruption):
            self._given_up.add(key)
            place.error("ranges of shared objects are joined no more until the next start: %s", error.message)
        else:
            count = self._failures.get(key, (0, 0))[0] + 1
            wait_us = min(_WAIT_US << min(count, 10), _WAIT_MAX_US)
            self._failures[key] = count, self._reactor.now_us() + wait_us
            if count == 3 and _LINES.allows():  # one or two are a change of the leader, or retention
                place.warning("ranges of shared objects could not be joined, that is tried again: %s", error.message)
        self._later()


def _leads(archive: PartitionArchive) -> bool:
    is_open = not archive.closed and not archive.log.closed
    return is_open and archive.group.role is GroupRole.LEADING and archive.group.is_serving


def _ignore(_: MillstreamError | None) -> None:
    """What stays is superfluous, and ``tier scrub`` removes it."""
