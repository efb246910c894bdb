"""Replacing archived segments: a job has written other objects with the same batches, and their leader commits them.

::

    job ──objects──► store
    job ──request──► leader ──check──► archive process ──propose──► group ──commit──► every replica's archive
                                                                                   └─► old objects go after the grace

**The request** names the segments and those that are to have their place: the same range of offsets exactly, all of it
archived and committed, below the end of the archive. It expects a version of the manifest; a manifest of another one
has moved on, and the request is refused. A request with an id that was carried out is answered as it was the first
time, independent of the versions.

**What is refused**, each with a code of its own: NOT_LEADER_OR_FOLLOWER, this replica does not lead, or no longer;
INVALID_UPDATE_VERSION, the manifest has moved on; OFFSET_OUT_OF_RANGE, retention has deleted a segment;
RESOURCE_NOT_FOUND, INVALID_RECORD, a new object is missing, too old, or not what the request says; INVALID_REQUEST, the
ranges are wrong; KAFKA_STORAGE_ERROR, the store does not answer; THROTTLING_QUOTA_EXCEEDED, another replacement or a
spill of the partition is in progress. Nothing has happened then, with one exception: NOT_LEADER_OR_FOLLOWER may come
after the entry was proposed. Every request may be repeated.

**Crashes.** Before the entry is committed the archive is as it was, and the new objects have no owner: ``tier scrub``
removes them. After it every replica has the new segments, and the old objects go by the deletion of the archiver: the
leader writes the manifest without them first, and ``file.delete.delay.ms`` must have passed. A leader that dies before
that leaves them to the next one, which has the same list, or to ``tier scrub``. A job that dies repeats its request.

**Why nothing is mixed up.** One leader has one replacement or one spill of a partition in progress at a time, and
serves only when all entries of earlier terms are taken up. So what it has compared is what the entry finds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import MillstreamError, Rejected, Retriable
from millstream.format.archive import Replaced
from millstream.format.manifest import REPLACEMENT_ID_BYTES, REVISION_MAX, ArchivedSegment, ManifestPart
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ManifestVersion
from millstream.raft.group import GroupRole
from millstream.tiers.messages import Checked
from millstream.tiers.partition_archive import PendingReplacement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.manifest import Archive
    from millstream.tiers.partition_archive import OnReplaced, PartitionArchive

BEFORE_MAX: Final = 128
AFTER_MAX: Final = 64
"""Segments of one replacement: its entry has some 20 KiB then, a third of what an entry may have."""

WRITTEN_MAX_MS: Final = 30 * 60_000
"""Age of a new object, half of that from which on ``tier scrub`` removes what no manifest names."""

_COMMIT_POLL_US: Final = 2_000


class Replacement(msgspec.Struct, frozen=True, array_like=True):
    """What a job asks for."""

    id: bytes
    expected_version: int
    before: tuple[ArchivedSegment, ...]
    after: tuple[ArchivedSegment, ...]


class Replacing:
    """The replacements of one shard. Lifecycle: that of its archiver."""

    def __init__(self, reactor: Reactor, now_ms: Callable[[], int], link: ArchiveLink, stats: StatsSlab) -> None:
        self._reactor = reactor
        self._now_ms = now_ms
        self._link = link
        self._replaced = stats.counter("archive_replaced_segments")
        self._refused = stats.counter("archive_refused_replacements")

    def replace(self, archive: PartitionArchive, wanted: Replacement, done: OnReplaced) -> None:
        """Carry out a replacement; ``done`` gets the manifest's version after it, or why not."""
        try:
            version = self._begin(archive, wanted, done)
        except MillstreamError as error:
            self._refused.inc()
            done(error)
        else:
            if version is not None:
                done(version)

    def _begin(self, archive: PartitionArchive, wanted: Replacement, done: OnReplaced) -> int | None:
        """The version if there is nothing to do; None if ``done`` is called later."""
        _require_leader(archive)
        if (version := archive.archive.replacements.get(wanted.id)) is not None:
            return version
        pending = archive.replacement
        if pending is not None and pending.id == wanted.id and pending.term == archive.group.term:
            pending.callbacks.append(done)
            return None
        if pending is not None or archive.spilling == archive.group.term:
            raise Retriable("another change of the manifest is in progress", ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        check_form(wanted)
        part = find_replaced(archive.archive, wanted)
        pending = archive.replacement = PendingReplacement(wanted.id, archive.group.term, done)
        self._link.check(
            archive.owner,
            wanted.before,
            wanted.after,
            ManifestVersion(wanted.expected_version + 1),
            self._now_ms() - WRITTEN_MAX_MS,
            part,
            partial(self._checked, archive, wanted, pending, part),
        )
        return None

    def _checked(
        self,
        archive: PartitionArchive,
        wanted: Replacement,
        pending: PendingReplacement,
        part: ManifestPart | None,
        result: Checked | MillstreamError,
    ) -> None:
        try:
            if isinstance(result, MillstreamError):
                raise result
            _require_leader(archive, pending)
            if find_replaced(archive.archive, wanted) != part:
                raise Retriable("the manifest has changed since", ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            entry = Replaced(wanted.id, wanted.expected_version, wanted.before, wanted.after, part, result.part)
            archive.propose(entry)
        except ArenaFull:
            busy = Retriable("the broker has no memory for the entry now", ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            self._settle(archive, pending, busy)
        except MillstreamError as error:
            self._settle(archive, pending, error)
        except Exception as error:  # noqa: BLE001 - the boundary
            archive.log.failed("replacement", error)
            failed = Retriable(f"{archive.log.name} has failed", ErrorCode.KAFKA_STORAGE_ERROR)
            self._settle(archive, pending, failed)
        else:
            self._await_commit(archive, wanted, pending)

    def _await_commit(self, archive: PartitionArchive, wanted: Replacement, pending: PendingReplacement) -> None:
        """Look whether the entry is committed, and again in a while."""
        version = archive.archive.replacements.get(pending.id)
        if version is not None:
            self._replaced.inc(len(wanted.before))
            self._settle(archive, pending, version)
            return
        if pending.is_applied:
            self._settle(archive, pending, _moved_on(archive.archive, wanted))
            return
        try:
            _require_leader(archive, pending)
        except MillstreamError as error:
            self._settle(archive, pending, error)
        else:
            self._reactor.call_later(_COMMIT_POLL_US, lambda: self._await_commit(archive, wanted, pending))

    def _settle(self, archive: PartitionArchive, pending: PendingReplacement, result: int | MillstreamError) -> None:
        if archive.replacement is pending:
            archive.replacement = None
        if isinstance(result, MillstreamError):
            self._refused.inc()
        for done in pending.callbacks:
            done(result)


def _require_leader(archive: PartitionArchive, pending: PendingReplacement | None = None) -> None:
    """Raises Retriable unless this replica leads and knows all that is committed, in the term of the replacement."""
    group = archive.group
    gone = archive.closed or archive.log.closed or group.role is not GroupRole.LEADING or not group.is_serving
    if gone or (pending is not None and pending.term != group.term):
        raise Retriable(f"this replica does not lead {archive.log.name}", ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _moved_on(archive: Archive, wanted: Replacement) -> Rejected:
    return Rejected(
        f"the manifest has version {archive.version}, the request expects {wanted.expected_version}",
        ErrorCode.INVALID_UPDATE_VERSION,
    )


def check_form(wanted: Replacement) -> None:
    """Raises Rejected if the request can't be right for any archive."""
    before, after = wanted.before, wanted.after
    if len(wanted.id) != REPLACEMENT_ID_BYTES or not any(wanted.id):
        raise Rejected("a replacement without an id")
    if not 0 < len(before) <= BEFORE_MAX or not 0 < len(after) <= AFTER_MAX:
        raise Rejected(f"a replacement has at most {BEFORE_MAX} segments, and {AFTER_MAX} in their place")
    for segments in (before, after):
        if not _are_continuous(segments):
            raise Rejected("the segments of a replacement follow each other without gaps")
    if (before[0].base_offset, before[-1].end_offset) != (after[0].base_offset, after[-1].end_offset):
        raise Rejected("the new segments have exactly the offsets of the old ones")
    if not all(0 < one.revision <= REVISION_MAX and one.size_bytes > 0 and one.index_bytes > 0 for one in after):
        raise Rejected("a new segment has bytes, an index, and a revision of its own")
    if {one.revision for one in after} & {one.revision for one in before}:
        raise Rejected("a revision is used once")
    if not all(0 <= one.checksum < 1 << 32 for one in after):
        raise Rejected("a checksum is a CRC-32C")


def _are_continuous(segments: Sequence[ArchivedSegment]) -> bool:
    end = segments[0].base_offset
    for one in segments:
        if one.base_offset != end or one.end_offset <= end:
            return False
        end = one.end_offset
    return True


def find_replaced(archive: Archive, wanted: Replacement) -> ManifestPart | None:
    """The part that has the old segments; None if they are in memory, where they are exactly those that are named.

    Raises:
        Rejected: the manifest has moved on, retention has deleted the first segment, or the range is not archived.
    """
    if wanted.expected_version != archive.version:
        raise _moved_on(archive, wanted)
    before = wanted.before
    if before[0].end_offset <= archive.start_offset:
        raise Rejected(
            f"the segment at offset {before[0].base_offset} was deleted: the log starts at {archive.start_offset}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    if before[-1].end_offset > archive.end_offset:
        raise Rejected(f"the archive ends at offset {archive.end_offset}, before the end of the replacement")
    found = archive.between(before[0].base_offset, before[-1].end_offset)
    part = found[0] if found and isinstance(found[0], ManifestPart) else None
    if part is not None:
        inside = part.base_offset <= before[0].base_offset and before[-1].end_offset <= part.end_offset
        if len(found) != 1 or not inside:
            raise Rejected("a replacement is inside of one part of the manifest, or outside of all")
        return part
    if found != list(before):
        raise Rejected(f"the manifest has other segments from offset {before[0].base_offset} on")
    return None
