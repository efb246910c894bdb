"""The archiver of one shard: uploads closed segments, has them committed, and lets local copies go.

::

    closed segment ──upload──► object ──propose──► entry ──commit──► archive ──► local copy may go
                                                                      └──► manifest object, derived

Only the leader of a partition archives. Up to `UPLOADS_AT_ONCE` segments of a partition are uploaded at once, and
proposed in the order of their offsets, so that the archive never has a gap. Uploads run at idle priority until a closed
segment waits longer than `segment.upload.max.ms`, a minute at most (`upload_link`). After a failed upload or proposal
those after it are given up, and uploaded again. One other request a partition is in flight beside them; the manifest
is written once for all segments of `_DERIVED_US`, or when there is nothing more to upload. A failed request is repeated
after a wait that doubles up to `_WAIT_MAX_US`; the first failure of a row is logged. A crash between upload and commit
leaves an object that no entry names, and the segment is uploaded again. Objects of a deleted topic go after the last
upload of the topic is answered (`tiers.purging`). Producers never wait: the work is in another process, at a bounded
rate.

**Derived objects** (the manifest, the description of the topic) are written on the condition that they have the version
that this leader has seen or written. So a write whose answer was lost takes no effect after a newer one, neither this
broker's nor the next leader's. A store without conditional writes is written without the condition.

**Retention.** A tiered partition keeps two limits. ``retention.local.target.ms/bytes`` bound what stays on this disk:
segments that are archived and committed leave it, after a checkpoint has noted where the files start.
``retention.ms/bytes`` bound the whole log, archived part included; objects of what has left it are removed after
``file.delete.delay.ms``. What a crash or a change of leaders made forget is looked for (`orphans`). A segment whose
records have no timestamps has the age of its last append, as a local one has; the archive remembers it. A segment that
an older release archived without that is kept until the size asks for it. A local copy is at most as young as its file,
independent of its records' times.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.retention import SegmentFacts, start_after_retention, start_of_retained
from millstream.errors import Corruption, MillstreamError, Unavailable
from millstream.format.archive import (
    Archived,
    Spilled,
    encode_topic,
    manifest_key,
    part_key,
    topic_key,
)
from millstream.format.manifest import (
    ArchivedSegment,
    ManifestPart,
    appended_ms_of,
    decode_manifest,
    encode_manifest,
    encode_part,
)
from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset, TimestampMs
from millstream.raft.group import GroupRole
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.manifest import Archive, PartObject
from millstream.tiers.partition_archive import PartitionArchive, PendingUpload
from millstream.tiers.purging import Purges
from millstream.tiers.replacing import Replacing
from millstream.tiers.shared_manifest import shared_manifest
from millstream.tiers.shared_objects import written_ms
from millstream.tiers.upload_link import WAITS_US

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from millstream.config.topic_properties import TopicConfig
    from millstream.format.archive import TopicDescription
    from millstream.format.manifest import ArchiveId
    from millstream.model.replication import Term
    from millstream.raft.group import Group
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.log import Log
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.shard_storage import ShardStorage
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.manifest import Spill
    from millstream.tiers.messages import Examined
    from millstream.tiers.shared_uploads import SharedUploads

PERIOD_US: Final = 500_000
"""Between two looks at all tiered partitions."""

UPLOADS_AT_ONCE: Final = 3
"""Of one partition; one while the store fails."""

_DERIVED_US: Final = 10_000_000
_COMMIT_POLL_US: Final = 2_000
_SHARE: Final = 0.05
_DROP_US: Final = 30_000_000
"""Between two looks at which local copies of shared partitions may go."""

_WAIT_US: Final = 1_000_000
_WAIT_MAX_US: Final = 60_000_000
_REMOVED_AT_ONCE: Final = 100
_LINES: Final = RateLimit(per_minute=10)


class _Meters:
    """What the archiver of one shard counts."""

    __slots__ = ("dropped_bytes", "lag_bytes", "segments", "size_bytes", "upload_failures", "uploaded_bytes", "uploads")

    def __init__(self, stats: StatsSlab) -> None:
        self.uploads = stats.counter("archive_uploads")
        self.uploaded_bytes = stats.counter("archive_uploaded_bytes")
        self.upload_failures = stats.counter("archive_upload_failures")
        self.lag_bytes = stats.gauge("archive_lag_bytes")
        self.segments = stats.gauge("archive_segments")
        self.size_bytes = stats.gauge("archive_size_bytes")
        self.dropped_bytes = stats.counter("local_dropped_bytes")


class _Rounds:
    """The looks at all partitions: one at a time, and which of them also look for what may be deleted."""

    __slots__ = ("_next_drop_us", "_next_retention_us", "_retention_us", "is_armed", "is_running")

    def __init__(self, retention_interval_ms: int) -> None:
        self._retention_us = retention_interval_ms * 1000
        self._next_retention_us = 0
        self._next_drop_us = 0
        self.is_armed = False
        """A timer starts the next look."""
        self.is_running = False

    def retains(self, now_us: int) -> bool:
        """Whether this look applies the retention; then the next one that does is an interval away."""
        if now_us < self._next_retention_us:
            return False
        self._next_retention_us = now_us + self._retention_us
        return True

    def drops(self, now_us: int) -> bool:
        """Whether this look drops local copies of shared partitions."""
        if now_us < self._next_drop_us:
            return False
        self._next_drop_us = now_us + min(self._retention_us, _DROP_US)
        return True


class Archiver:
    """The tiered partitions of one shard. Lifecycle: made with the shard, `stop` before its storage."""

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        link: ArchiveLink,
        stats: StatsSlab,
        retention_interval_ms: int,
        describe: Callable[[bytes], TopicDescription | None],
        shared: SharedUploads | None = None,
    ) -> None:
        """``describe`` gives what is to be known of the topic with that id. ``shared`` uploads shared topics."""
        self.shared = shared
        self._reactor = reactor
        self._storage = storage
        self.link = link
        self.purges = Purges(reactor, storage.disk, storage.data_dir, link)
        self._describe = describe
        self._archives: dict[int, PartitionArchive] = {}  # by Raft group
        self._rounds = _Rounds(retention_interval_ms)
        self._stopped = False
        self._meters = _Meters(stats)
        self.replacing = Replacing(reactor, storage.now_ms, link, stats)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def open(
        self, owner: ArchiveId, log: Log, group: Group, config: TopicConfig, limit: Callable[[], int]
    ) -> PartitionArchive | None:
        """The archive of a partition that is being opened, or whose configuration has changed; None if it is not
        tiered and never was. Raises Corruption if what its group committed cannot be read.
        """
        history = group.owner_history()
        if not config.is_archived and not history.state and not history.entries:
            return None
        made = PartitionArchive(owner, log, group, config, limit, self.link)
        self._archives[log.group] = made
        if config.is_shared and self.shared is not None:
            made.is_full = self.shared.is_full
            self.shared.open(made)
        self._start()
        return made

    def close(self, archive: PartitionArchive, *, purge: bool) -> None:
        """The partition goes from this shard; with ``purge`` its topic was deleted, and so are its objects."""
        archive.closed = True
        self._archives.pop(archive.log.group, None)
        if self.shared is not None:
            self.shared.close(archive)
        archive.uploads.purges = purge and archive.group.role is GroupRole.LEADING
        if archive.uploads.purges:
            self.purges.mark(archive.owner)
        elif purge:
            self.purges.follow(archive.owner)
        self._settle_uploads(archive)

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True
        self.purges.stop()
        if self.shared is not None:
            self.shared.stop()
        self.link.stop()

    # -- the look ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._rounds.is_armed and not self._stopped:
            self._rounds.is_armed = True
            self._reactor.call_later(PERIOD_US, self._tick)

    def _tick(self) -> None:
        self._rounds.is_armed = False
        if self._stopped or not self._archives:
            return
        if not self._rounds.is_running:
            self._rounds.is_running = True
            self._reactor.background("housekeeping", self.look_at_all(), _SHARE, self._inspected)
        self._start()

    def _inspected(self) -> None:
        self._rounds.is_running = False

    def look_at_all(self) -> Generator[None, None, None]:
        """Do what is to be done for each partition; start what takes time."""
        now_us = self._reactor.now_us()
        retains, drops = self._rounds.retains(now_us), self._rounds.drops(now_us)
        lag = segments = size = waited_us = 0
        allowed_us = WAITS_US
        dropping: list[Callable[[], None]] = []
        for archive in list(self._archives.values()):
            if archive.closed or archive.log.closed:
                continue
            try:
                lag += archive.lag_bytes
                if (waits_us := self._waits_us(archive)) is not None:
                    waited_us = max(waited_us, waits_us)
                    allowed_us = min(allowed_us, 1000 * archive.config.segment_upload_max_ms)
                segments += archive.archive.segment_count
                size += archive.archive.size_bytes
                if retains and archive.config.is_archived:
                    self._retain(archive)
                if retains if archive.config.is_tiered else drops and archive.config.is_shared:
                    dropping += [partial(archive.log.guard, "local trim", drop) for drop in self._drop_local(archive)]
                self._advance(archive)
            except Exception as error:  # noqa: BLE001 - the boundary
                archive.log.failed("archive", error)
            yield
        self._meters.lag_bytes.set(lag)
        self.link.heed_uploads(waited_us, allowed_us)
        self._meters.segments.set(segments)
        self._meters.size_bytes.set(size)
        if dropping:
            self._storage.checkpoint(lambda: _call(dropping))

    def _waits_us(self, archive: PartitionArchive) -> int | None:
        """How long ago the oldest segment that this leader has to upload was closed; None without one."""
        if not archive.config.is_tiered or archive.group.role is not GroupRole.LEADING:
            return None
        segment = archive.log.files.segments.find(archive.archive.end_offset)
        if segment is None or not segment.sealed or segment.end_offset <= archive.archive.end_offset:
            return None
        return max(0, 1000 * (self._storage.now_ms() - self._appended_ms(archive, segment)))

    def _advance(self, archive: PartitionArchive) -> None:
        """Start the next request for a partition, if there is anything to do."""
        now_us = self._reactor.now_us()
        if archive.closed or self._stopped or archive.attempts.retry_at_us > now_us:
            return
        if archive.group.role is not GroupRole.LEADING or not archive.group.is_serving:
            archive.unneeded.forget(now_us)
            return
        if archive.config.is_tiered and archive.uploads.trouble is None:
            self._upload(archive)
        if archive.attempts.busy:
            return
        if archive.replacement is None and (spill := archive.archive.next_spill()) is not None:
            self._spill(archive, spill)
        elif not archive.uploads.pending or now_us >= archive.saved.compared_at_us + _DERIVED_US:
            self._save_derived(archive)

    # -- uploads -------------------------------------------------------------------------------------------------------

    def _upload(self, archive: PartitionArchive) -> None:
        """Start uploads, as many as may be in flight."""
        limit = 1 if archive.attempts.failures else UPLOADS_AT_ONCE
        while len(archive.uploads.pending) < limit and (segment := archive.next_upload()) is not None:
            from_offset = max(archive.uploads_end, segment.base_offset)
            pending = PendingUpload(segment.end_offset, archive.group.term)
            archive.uploads.pending.append(pending)
            known = archive.log.owner.producers
            self.link.upload(
                archive.owner,
                segment.path,
                segment.base_offset,
                from_offset,
                segment.end_offset,
                segment.size_bytes,
                archive.group.term,
                [] if known is None else known.transactions.aborted_between(from_offset, segment.end_offset),
                TimestampMs(self._appended_ms(archive, segment)),
                _guarded(archive, partial(self._uploaded, archive, pending)),
            )

    def _appended_ms(self, archive: PartitionArchive, segment: Segment) -> int:
        """When the last batch of a closed segment was appended, at the latest: the next one was started then."""
        following = archive.log.files.segments.after(segment)
        return self._storage.now_ms() if following is None else following.created_ms

    def _uploaded(
        self, archive: PartitionArchive, pending: PendingUpload, result: ArchivedSegment | MillstreamError
    ) -> None:
        pending.result = result
        if isinstance(result, MillstreamError):
            self._meters.upload_failures.inc()
        self._settle_uploads(archive)

    def _settle_uploads(self, archive: PartitionArchive) -> None:
        """Propose what is uploaded, count what is committed, and continue; something may have gone wrong in between."""
        uploads = archive.uploads.pending
        gone = archive.closed or archive.log.closed or archive.group.role is not GroupRole.LEADING
        if uploads and (gone or any(one.term != archive.group.term for one in uploads)):
            archive.uploads.trouble = (
                "lost"  # another leadership: these keys name the wrong term, or the objects have no owner
            )
        self._propose_uploads(archive)
        while uploads and uploads[0].is_proposed:
            if archive.archive.end_offset < uploads[0].end_offset and archive.uploads.trouble != "lost":
                self._poll(archive)
                return
            self._committed(archive, uploads.pop(0))
        trouble = archive.uploads.trouble
        if trouble is not None:
            if any(one.result is None for one in uploads):
                return
            uploads.clear()
            archive.uploads.trouble = None
            if not isinstance(trouble, str):
                self._failed(archive, *trouble)
        if archive.closed and archive.uploads.purges:
            archive.uploads.purges = False
            self.purges.begin(archive.owner)
        self._advance(archive)

    def _propose_uploads(self, archive: PartitionArchive) -> None:
        """Propose the uploaded segments in front, each after the one before it."""
        for one in archive.uploads.pending:
            if archive.uploads.trouble is not None or one.result is None:
                return
            if isinstance(one.result, MillstreamError):
                archive.uploads.trouble = ("a segment could not be archived", one.result)
            elif not one.is_proposed:
                try:
                    archive.propose(Archived(one.result, archive.log.start_offset))
                except (ArenaFull, MillstreamError) as error:
                    archive.uploads.trouble = ("an archived segment could not be committed", error)
                else:
                    one.is_proposed = True

    def _committed(self, archive: PartitionArchive, upload: PendingUpload) -> None:
        """The entry is committed, or lost with the leadership."""
        if archive.archive.end_offset >= upload.end_offset and isinstance(upload.result, ArchivedSegment):
            self._meters.uploads.inc()
            self._meters.uploaded_bytes.inc(upload.result.size_bytes)
            self._answers_again(archive)

    def _poll(self, archive: PartitionArchive) -> None:
        """Look again in a while, unless that is on its way."""
        if archive.uploads.polls or self._stopped:
            return
        archive.uploads.polls = True

        def look() -> None:
            archive.uploads.polls = False
            self._settle_uploads(archive)

        self._reactor.call_later(_COMMIT_POLL_US, _guarded(archive, look))

    # -- other objects -------------------------------------------------------------------------------------------------

    def _spill(self, archive: PartitionArchive, spill: Spill) -> None:
        archive.attempts.busy = True
        term = archive.spilling = archive.group.term

        def written(error: MillstreamError | None) -> None:
            archive.attempts.busy = False
            if archive.group.term != term:
                error = error or Unavailable("the term ended before the part was written")
            if error is not None:
                archive.spilling = None
                self._failed(archive, "a part of the manifest could not be written", error)
                return
            try:
                if not archive.closed and not archive.log.closed:
                    archive.propose(Spilled(spill.part, archive.archive.version))
            except (ArenaFull, MillstreamError) as refusal:
                archive.spilling = None
                self._failed(archive, "a part of the manifest could not be committed", refusal)
                return
            archive.attempts.retry_at_us = self._reactor.now_us() + _WAIT_US  # until it is committed

        key, data = part_key(archive.owner, spill.part), encode_part(archive.owner, spill.runs)
        self.link.put(key, data, _guarded(archive, written))

    def _save_derived(self, archive: PartitionArchive) -> None:
        """The description of the topic, the manifest, and then the removal of what is unused."""
        topic = self._describe(archive.owner.topic_id.bytes) if not archive.owner.partition_index else None
        if topic is not None and (data := encode_topic(topic)) != archive.saved.topic and archive.config.is_archived:
            self._put(archive, topic_key(archive.owner), data, partial(setattr, archive.saved, "topic", data))
            return
        now_us = self._reactor.now_us()
        due = [one for due_us, one in itertools.islice(archive.unneeded.freed, _REMOVED_AT_ONCE) if due_us <= now_us]
        manifest = shared_manifest(archive, due) if archive.config.is_shared else _manifest(archive)
        if manifest is not None:
            self._put(archive, manifest_key(archive.owner), *manifest)
            return
        archive.saved.compared_at_us = self._reactor.now_us()
        if due:
            self._remove(archive, due)
            return
        grace_us = archive.config.file_delete_delay_ms * 1000
        first = archive.archive.first_offset
        if (below := archive.unneeded.orphans.due(archive.group.term, first, now_us, grace_us)) is not None:
            self._remove_below(archive, below)

    def _put(self, archive: PartitionArchive, key: str, data: bytes, saved: Callable[[], None]) -> None:
        """Write a derived object, if it still has the version that is known of it. A write whose answer was lost may
        take effect late; it finds another version then. After any failure the version is not known: the object is
        read first, and what is to be written is decided again.
        """
        archive.attempts.busy = True
        expected = archive.saved.versions.pop(key, None)

        def written(result: str | MillstreamError) -> None:
            archive.attempts.busy = False
            if isinstance(result, MillstreamError):
                self._failed(archive, f"{key} could not be written", result)
                return
            archive.saved.versions[key] = result
            saved()
            self._succeeded(archive)

        def examined(result: Examined | MillstreamError) -> None:
            archive.attempts.busy = False
            if isinstance(result, MillstreamError):
                self._failed(archive, f"{key} could not be read", result)
            elif key == manifest_key(archive.owner) and is_ahead(result.data, archive.archive, archive.group.term):
                archive.attempts.retry_at_us = (
                    self._reactor.now_us() + _WAIT_US
                )  # another leader's: this one will learn of it
            else:
                archive.saved.versions[key] = result.version
                self._advance(archive)

        if expected is None:
            self.link.examine(key, _guarded(archive, examined))
        else:
            self.link.replace(key, data, expected, _guarded(archive, written))

    def _remove(self, archive: PartitionArchive, due: list[ArchivedSegment | ManifestPart | PartObject]) -> None:
        archive.attempts.busy = True

        def removed(error: MillstreamError | None) -> None:
            archive.attempts.busy = False
            if error is not None:
                self._failed(archive, "objects of deleted records could not be removed", error)
                return
            for one in due:  # a follower may have forgotten some since
                if archive.unneeded.freed and archive.unneeded.freed[0][1] is one:
                    archive.unneeded.freed.popleft()
            self._succeeded(archive)

        segments = tuple(one for one in due if isinstance(one, ArchivedSegment))
        parts = tuple(one for one in due if isinstance(one, ManifestPart))
        part_objects = tuple(one.part for one in due if isinstance(one, PartObject))
        self.link.remove(archive.owner, segments, parts, part_objects, _guarded(archive, removed))

    def _remove_below(self, archive: PartitionArchive, below_offset: Offset) -> None:
        """Remove objects that this leader and those before it did not remember (`orphans`)."""
        archive.attempts.busy = True

        def removed(error: MillstreamError | None) -> None:
            archive.attempts.busy = False
            if error is not None:
                self._failed(archive, "objects of deleted records could not be looked for", error)
                return
            archive.unneeded.orphans.removed(below_offset, self._reactor.now_us())
            self._succeeded(archive)

        self.link.remove_below(archive.owner, below_offset, _guarded(archive, removed))

    def _succeeded(self, archive: PartitionArchive) -> None:
        self._answers_again(archive)
        self._advance(archive)

    def _answers_again(self, archive: PartitionArchive) -> None:
        if archive.attempts.failures:
            operator_log.at(archive.log.name).info("the object store answers again")
        archive.attempts.failures = 0

    def _failed(self, archive: PartitionArchive, what: str, error: Exception) -> None:
        archive.attempts.retry_at_us = self._reactor.now_us() + min(
            _WAIT_US << min(archive.attempts.failures, 6), _WAIT_MAX_US
        )
        archive.attempts.failures += 1
        if (archive.attempts.failures == 1 or isinstance(error, Corruption)) and not self._stopped and _LINES.allows():
            reason = error.message if isinstance(error, MillstreamError) else str(error)
            place = operator_log.at(archive.log.name)
            place.warning("%s, that is tried again: %s%s", what, reason, _LINES.left_out())

    # -- retention -----------------------------------------------------------------------------------------------------

    def _drop_local(self, archive: PartitionArchive) -> Iterator[Callable[[], None]]:
        """What is to be called after a checkpoint, so that local copies go that the targets leave no room for."""
        log, config = archive.log, archive.config
        log.refresh()
        if config.is_shared and log.files.segments.active.size_bytes and archive.archive.end_offset >= log.next_offset:
            log.roll()
        now_ms = self._storage.now_ms()
        # A copy is no younger than its file, even if a record says that it is of next year.
        facts = [
            SegmentFacts(
                one.base_offset,
                one.end_offset,
                one.size_bytes,
                changed_ms if one.max_timestamp < 0 else min(one.max_timestamp, changed_ms),
                changed_ms,
            )
            for one, changed_ms in zip(log.files.segments, log.files.segments.changed_ms(now_ms), strict=True)
        ]
        limit = min(archive.archive.end_offset, log.files.segments.active.base_offset, archive.limit())
        if config.is_shared:
            start = max((one.end_offset for one in facts if one.end_offset <= limit), default=None)
        else:
            start = start_after_retention(
                facts, now_ms, config.retention_local_target_ms, config.retention_local_target_bytes, limit
            )
        # A crash may have kept files that were to go: of a quiet shared partition nothing else removes them.
        before = log.first_local_offset if config.is_shared else log.files.local_wanted
        if start is None or start <= max(before, log.start_offset):
            return
        dropped = sum(one.size_bytes for one in facts if one.end_offset <= start)
        after = log.trim_local(Offset(start))

        def drop() -> None:
            after()
            self._meters.dropped_bytes.inc(dropped)

        yield drop

    def _retain(self, archive: PartitionArchive) -> None:
        """Retention of the whole log, by its leader."""
        log, config = archive.log, archive.config
        if "delete" not in config.cleanup_policy or archive.group.role is not GroupRole.LEADING:
            return
        log.refresh()
        now_ms = self._storage.now_ms()
        total = archive.archive.size_bytes + sum(one.size_bytes for one in _unarchived(archive, now_ms))
        start = start_of_retained(
            _all_facts(archive, now_ms), total, now_ms, config.retention_ms, config.retention_bytes, archive.limit()
        )
        if start is None or start <= log.start_offset:
            return
        try:
            archive.group.propose_log_start(Offset(start))
        except (ArenaFull, MillstreamError):
            return  # the next round asks again
        operator_log.at(log.name).info("retention: offsets %d to %d are deleted", log.start_offset, start - 1)


def _manifest(archive: PartitionArchive) -> tuple[bytes, Callable[[], None]] | None:
    """The manifest object if it is to be written, and what to do when it is. One of an empty archive says where the log
    starts, if that is not where it was created.
    """
    inner = archive.archive
    data = encode_manifest(inner.manifest(archive.owner, archive.log.leader_epochs))
    says_nothing = inner.is_empty and not inner.start_offset and not archive.saved.manifest
    if data == archive.saved.manifest or says_nothing:
        return None
    return data, partial(archive.manifest_written, data, inner.start_offset)


def _guarded(archive: PartitionArchive, step: Callable[..., None]) -> Callable[..., None]:
    """A step for one partition, behind the partition's boundary."""
    return partial(archive.log.guard, "archive", step)


def is_ahead(data: bytes, archive: Archive, term: Term) -> bool:
    """Whether a manifest object has more than the archive of a leader in ``term`` knows, and is of that term or a later
    one. One that is damaged, or of earlier terms only, may be replaced.
    """
    try:
        found = decode_manifest(data) if data else None
    except Corruption:
        return False
    if found is None or not found.epochs or found.epochs[-1][0] < term:
        return False
    other = Archive.of(found)
    theirs = other.end_offset, other.version, other.start_offset
    mine = archive.end_offset, archive.version, archive.start_offset
    return any(one > own for one, own in zip(theirs, mine, strict=True))


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _all_facts(archive: PartitionArchive, now_ms: int) -> Iterator[SegmentFacts]:
    """Archived parts and segments, then local segments that are not archived, oldest first."""
    for one in archive.archive.entries():
        appended_ms = one.max_timestamp
        if appended_ms < 0:
            made_ms = written_ms(one) if isinstance(one, ArchivedSegment) else None
            appended_ms = appended_ms_of(one.min_timestamp) or made_ms or now_ms
        yield SegmentFacts(one.base_offset, one.end_offset, one.size_bytes, one.max_timestamp, appended_ms)
    yield from _unarchived(archive, now_ms)


def _unarchived(archive: PartitionArchive, now_ms: int) -> Iterator[SegmentFacts]:
    segments = archive.log.files.segments
    for one, changed_ms in zip(segments, segments.changed_ms(now_ms), strict=True):
        if one.end_offset > archive.archive.end_offset:
            yield SegmentFacts(one.base_offset, one.end_offset, one.size_bytes, one.max_timestamp, changed_ms)
