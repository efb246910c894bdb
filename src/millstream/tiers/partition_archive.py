"""The archive of one partition on its home shard: what its group has committed, and lookups in it.

::

    propose ──► group ──commit──► apply ──► Archive        the same on every replica
    log start moves ──────────────► trim ──► Freed         what is no longer needed

An entry that was taken up already, because the state that the group folded includes it, changes nothing. A crash at any
point leaves what is committed; an object that no entry names is no part of the archive.

Reads of what is archived go to the archive process. An answer that the store does not give is a storage error, which
clients repeat. What an answer leads to is behind the partition's boundary.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from millstream.core.raft.messages import Configuration
from millstream.errors import MillstreamError, Rejected
from millstream.format.archive import ARCHIVE_ENTRY, Replaced, Spilled, decode_entry, encode_entry
from millstream.format.epochs import LogState, RaftBase
from millstream.format.manifest import ArchivedSegment, ManifestPart, decode_manifest, encode_manifest
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import NO_TERM, EntryKind, RaftPosition
from millstream.raft.stored import Folded, encode_folded
from millstream.tiers.manifest import Archive, PartObject
from millstream.tiers.orphans import Orphans
from millstream.tiers.shared_objects import stretch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.format.archive import AbortedSpan, Entry
    from millstream.format.manifest import ArchiveId
    from millstream.iobuf import IoBuf
    from millstream.model.replication import Term
    from millstream.raft.group import Group
    from millstream.shard.reactor import Timer
    from millstream.storage.log.log import Log
    from millstream.storage.log.segment_list import Segment
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.manifest import Freed
    from millstream.tiers.messages import Found

    OnFound = Callable[[Found | MillstreamError | None], None]
    OnReplaced = Callable[[int | MillstreamError], None]
    """Gets the version of the manifest after the replacement."""

_REMEMBERED_US: Final = 3_600_000_000
"""Later, the objects of deleted records are left to the look of the next leader (`orphans`)."""


class PendingUpload:
    """A segment on its way: uploaded, then proposed, then committed. Its partition's archiver writes it."""

    __slots__ = ("end_offset", "is_proposed", "result", "term")

    def __init__(self, end_offset: Offset, term: Term) -> None:
        self.end_offset = end_offset
        self.term = term
        self.result: ArchivedSegment | MillstreamError | None = None
        """None until the archive process has answered."""
        self.is_proposed = False


class PendingReplacement:
    """A replacement on its way: checked, then proposed, then committed. `replacing.Replacing` writes it."""

    __slots__ = ("callbacks", "id", "is_applied", "term")

    def __init__(self, replacement_id: bytes, term: Term, done: OnReplaced) -> None:
        self.id = replacement_id
        self.term = term
        self.callbacks = [done]
        """Of every request for it."""
        self.is_applied = False
        """Its entry is committed; the archive says whether it was taken up."""


class StoredStart:
    """Where the log of a partition starts, as far as the store has it."""

    __slots__ = ("moved", "on_safe", "safe", "saved")

    def __init__(self, log: Log) -> None:
        self.saved = Offset(0)
        """The log start in the manifest object, as far as this process has written it. It only rises."""
        self.safe: Callable[[], Offset] = lambda: log.start_offset
        """The log start that outlives what acknowledged records outlive. `shared_wal` sets it."""
        self.moved: Callable[[], None] = _nothing
        """Called when the start of the log may have moved. `shared_wal` sets it."""
        self.on_safe: Callable[[], None] = _nothing
        """Called when `safe` may have risen without a move. The partition sets it."""


class Uploads:
    """The uploads of one partition that are not committed yet. Its archiver writes it."""

    __slots__ = ("pending", "polls", "purges", "trouble")

    def __init__(self) -> None:
        self.pending: list[PendingUpload] = []
        """In the order of their offsets, without gaps."""
        self.trouble: tuple[str, Exception] | Literal["lost"] | None = None
        """Why they are given up: nothing more is started or proposed until each of them is answered."""
        self.polls = False
        """A timer looks whether the first of them is committed."""
        self.purges = False
        """The topic is deleted: its objects go when the last upload is answered."""

    def end_after(self, archived_end: Offset) -> Offset:
        """Everything below it is archived or on its way. Exclusive."""
        return max(archived_end, self.pending[-1].end_offset) if self.pending else archived_end


class Attempts:
    """The requests of the archiver for one partition, and the wait after those that failed. The archiver writes it."""

    __slots__ = ("busy", "failures", "retry_at_us")

    def __init__(self) -> None:
        self.busy = False
        """A request that is no upload is in flight."""
        self.failures = 0
        """Requests that failed in a row, uploads included."""
        self.retry_at_us = 0
        """Not before this time is another request made."""


class Saved:
    """The derived objects of one partition, as this process has written them last. The archiver writes it."""

    __slots__ = ("compared_at_us", "manifest", "mark", "topic", "versions")

    def __init__(self) -> None:
        self.compared_at_us = 0
        """When the derived objects were last compared with what is here."""
        self.versions: dict[str, str] = {}
        """Versions of the objects in the store, by key, as far as they are known."""
        self.manifest = b""
        """Content of the manifest object."""
        self.mark: tuple[int, ...] = ()
        """Of a shared partition: start, joins and spills in the manifest object."""
        self.topic = b""
        """The description of the topic."""


class SmallRanges:
    """Which part of an archive may lie in small ranges of shared objects, which wait for a join."""

    __slots__ = ("_archive", "joined_to", "parts", "seen_end")

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.parts: set[ManifestPart] = set()
        """Parts that are known to have no small range."""
        self.joined_to = Offset(0)
        """No offset below it is in a small range, as the manifest object says. It only rises."""
        self.seen_end = Offset(0)
        """End of the archive when `joined_to` was last computed."""

    def next_part(self) -> ManifestPart | None:
        """The oldest part that may have a small range."""
        parts = self._archive.parts
        self.parts.intersection_update(parts)
        return next((part for part in parts if part not in self.parts), None)

    def in_memory(self) -> list[ArchivedSegment]:
        """The segments in memory that may have to do with a join: those from `joined_to` on, and what is before them
        as far as it is one run.
        """
        archive = self._archive
        start = max(self.joined_to - 1, archive.parts[-1].end_offset if archive.parts else archive.start_offset)
        return [one for one in archive.from_run(Offset(start)) if one.end_offset > archive.start_offset]

    def joined_end(self) -> Offset:
        """No offset of the log below it is in a small range."""
        archive = self._archive
        part = self.next_part()
        if part is not None:
            return max(part.base_offset, archive.start_offset)
        first = next((one.base_offset for one in self.in_memory() if _is_small_range(one)), None)
        return max(archive.end_offset if first is None else first, archive.start_offset)

    def spilled(self, part: ManifestPart, segments: list[ArchivedSegment | ManifestPart]) -> None:
        """Segments went from memory into a part."""
        if not any(isinstance(one, ArchivedSegment) and _is_small_range(one) for one in segments):
            self.parts.add(part)


class Unneeded:
    """What has left the archive of one partition, until its objects are removed."""

    __slots__ = ("freed", "orphans")

    def __init__(self) -> None:
        self.freed: deque[tuple[int, ArchivedSegment | ManifestPart | PartObject]] = deque()
        """With the monotonic time (µs) from which on the object may be removed."""
        self.orphans = Orphans()
        """When to look for objects that no manifest names. The archiver writes it."""

    def add(self, freed: Freed, due_us: int) -> None:
        """This may be removed from ``due_us`` on."""
        objects = map(PartObject, freed.part_objects)
        self.freed += [(due_us, one) for one in (*freed.segments, *freed.parts, *objects)]

    def forget(self, now_us: int) -> None:
        """Forget what the leader has had time enough to remove. Followers call it: they would remember it for ever."""
        while self.freed and self.freed[0][0] < now_us - _REMEMBERED_US:
            self.freed.popleft()


class PartitionArchive:
    """One partition's archive. Lifecycle: made when the partition is opened, or when its topic becomes tiered.

    Shard: the partition's home.
    """

    __slots__ = (
        "archive",
        "attempts",
        "closed",
        "config",
        "group",
        "is_full",
        "limit",
        "link",
        "log",
        "owner",
        "replacement",
        "saved",
        "small_ranges",
        "spilling",
        "start",
        "unneeded",
        "uploads",
    )

    def __init__(
        self,
        owner: ArchiveId,
        log: Log,
        group: Group,
        config: TopicConfig,
        limit: Callable[[], int],
        link: ArchiveLink,
    ) -> None:
        """``limit`` gives the offset below which everything is final.

        Raises:
            Corruption: an entry of the group cannot be read.
        """
        self.owner = owner
        self.log = log
        self.group = group
        self.config = config
        self.limit = limit
        self.link = link
        self.is_full: Callable[[], bool] = bool
        """Whether producers have to wait until what is not uploaded has become less: of shared topics only."""
        self.closed = False
        self.replacement: PendingReplacement | None = None
        """The replacement in progress. `replacing.Replacing` writes it; no part is spilled during it."""
        self.spilling: Term | None = None
        """The term in which a part is being written, or waits for its commit; no replacement starts until then."""
        self.uploads = Uploads()
        self.attempts = Attempts()
        self.saved = Saved()
        self.unneeded = Unneeded()
        self.start = StoredStart(log)
        history = group.owner_history()
        manifest = decode_manifest(history.state) if history.state else None
        self.archive = Archive(Offset(0)) if manifest is None else Archive.of(manifest)
        self.small_ranges = SmallRanges(self.archive)
        for one in (each for each in history.entries if each.kind == ARCHIVE_ENTRY):
            self._apply(decode_entry(one.payload))
        self.trimmed()
        group.events.on_owner_entry = self._committed
        group.fold_with(self._state)
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """The topic's configuration changed."""
        self.config = config
        self.log.files.retained_elsewhere = config.is_archived

    def _state(self) -> bytes:
        return encode_manifest(self.archive.manifest(self.owner))

    def as_state(self) -> LogState:
        """The state of a log with this archive."""
        payload = encode_folded(Folded(Configuration(()), self._state()))
        base = RaftBase(Offset(0), RaftPosition(0), NO_TERM, payload)
        return LogState(self.log.start_offset, tuple(self.log.leader_epochs), base=base)

    # -- changes -------------------------------------------------------------------------------------------------------

    def propose(self, entry: Entry) -> None:
        """Have an entry committed. Raises MillstreamError or ArenaFull if it cannot be proposed now."""
        self.group.propose_owner_entry(ARCHIVE_ENTRY, encode_entry(entry))

    def _committed(self, kind: EntryKind, payload: bytes) -> None:
        if kind == ARCHIVE_ENTRY:
            self._apply(decode_entry(payload))

    def _apply(self, entry: Entry) -> None:
        archive, version = self.archive, self.archive.version
        spilled: list[ArchivedSegment | ManifestPart] = []
        if isinstance(entry, Spilled) and entry.part not in archive.parts:
            spilled = archive.between(entry.part.base_offset, entry.part.end_offset)
        self._free(archive.take_up(entry))
        if isinstance(entry, Spilled):
            self.spilling = None
            if spilled and entry.part in archive.parts:
                self.small_ranges.spilled(entry.part, spilled)
        elif isinstance(entry, Replaced):
            if archive.version != version:
                self.link.forget(self.owner, entry.base_offset, entry.end_offset)
            if self.replacement is not None and self.replacement.id == entry.id:
                self.replacement.is_applied = True

    def manifest_written(self, data: bytes, start_offset: Offset) -> None:
        """The manifest object has this content, with this log start."""
        self.saved.manifest = data
        self.start.saved = max(self.start.saved, start_offset)

    def trimmed(self) -> None:
        """The start of the log may have moved."""
        self._free(self.archive.trim(self.log.start_offset))
        self.start.moved()

    def _free(self, freed: Freed) -> None:
        self.unneeded.add(freed, self.link.now_us() + self.config.file_delete_delay_ms * 1000)

    def next_upload(self) -> Segment | None:
        """The local segment to be archived next; None without one."""
        log, after = self.log, self.uploads_end
        segment = log.files.segments.find(after)
        if segment is None or not segment.sealed or segment.end_offset <= after:
            return None
        final = segment.end_offset <= self.limit() and log.ends.written_position >= segment.end
        return segment if final else None

    @property
    def uploads_end(self) -> Offset:
        """Everything below it is archived or on its way. Exclusive."""
        return self.uploads.end_after(self.archive.end_offset)

    @property
    def lag_bytes(self) -> int:
        """Bytes of closed segments that are not archived."""
        end = self.archive.end_offset
        return sum(one.size_bytes for one in self.log.files.segments if one.sealed and one.end_offset > end)

    # -- lookups -------------------------------------------------------------------------------------------------------

    def has(self, offset: Offset) -> bool:
        """Whether a read at this offset is the archive's: it is in no local segment."""
        return offset < self.log.first_local_offset

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        done: Callable[[IoBuf | MillstreamError | None], None],
        *,
        minimum_one: bool,
        aborted: list[AbortedSpan] | None = None,
        patience_us: int | None = None,
    ) -> None:
        """Batches from the one that has ``offset``, which is below the first local one; ``done`` comes later, and
        before that ``aborted`` gets the aborted transactions among them. If the store has not answered after
        ``patience_us``, ``done`` gets None; the same read joins the one that is on its way.
        """
        found = self.archive.find_offset(offset)
        if found is None:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            if offset < self.log.start_offset:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            done(Rejected(f"{self.log.name}: offset {offset} is not archived", code))
            return
        timer: Timer | None = None

        def answered(result: IoBuf | MillstreamError) -> None:
            if timer is not None:
                timer.cancel()
            if isinstance(result, MillstreamError) and offset < self.log.start_offset:
                result = Rejected(f"{self.log.name}: offset {offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
            done(result)

        end, then = self.archive.end_offset, partial(self.log.guard, "read", answered)
        leave = self.link.read(
            self.owner, found, offset, end, max_bytes, then, minimum_one=minimum_one, aborted=aborted
        )
        if patience_us is not None:

            def late() -> None:
                leave()
                self.log.guard("read", done, None)

            timer = self.link.after(patience_us, late)

    def find(self, timestamp: TimestampMs, start_offset: Offset, end_offset: Offset, done: OnFound) -> None:
        """The first archived record in [``start_offset``, ``end_offset``) with this time or a later one; None if there
        is none.
        """
        target = self.archive.find_time(timestamp, start_offset)
        if target is None or target.base_offset >= end_offset or self.closed:
            done(None)
            return

        def answered(result: Found | MillstreamError) -> None:
            if isinstance(result, MillstreamError) or result.offset >= 0:
                done(result)
            else:
                self.find(timestamp, result.searched_to, end_offset, done)

        start = max(start_offset, self.log.start_offset)
        then = partial(self.log.guard, "look-up", answered)
        self.link.find(self.owner, target, timestamp, start, end_offset, then)

    def find_largest(self, least: TimestampMs, end_offset: Offset, done: OnFound) -> None:
        """The archived record below ``end_offset`` with the largest time, the first of several; None without one
        with the time ``least`` or a later one.
        """
        self._find_largest(least, end_offset, None, None, done)

    def _find_largest(
        self,
        least: TimestampMs,
        end_offset: Offset,
        best: Found | None,
        before: tuple[TimestampMs, Offset] | None,
        done: OnFound,
    ) -> None:
        """Ask about segments and parts from the one with the largest time on. What a target is said to have may lie
        outside of the log's bounds, so the next one may have the answer.
        """
        start = self.log.start_offset
        target = None if self.closed else self.archive.find_latest(start, end_offset, before)
        if target is None or target.max_timestamp < least or (best is not None and not _may_be_larger(target, best)):
            done(best)
            return

        def answered(result: Found | MillstreamError) -> None:
            if isinstance(result, MillstreamError):
                done(result)
                return
            found = result if result.offset >= 0 and result.timestamp >= least else None
            if (
                found is not None
                and best is not None
                and (found.timestamp, -found.offset)
                < (
                    best.timestamp,
                    -best.offset,
                )
            ):
                found = best
            following = (target.max_timestamp, target.base_offset)
            self._find_largest(least, end_offset, found or best, following, done)

        then = partial(self.log.guard, "look-up", answered)
        self.link.find(self.owner, target, least, start, end_offset, then, largest=True)


def _may_be_larger(target: ArchivedSegment | ManifestPart, best: Found) -> bool:
    """Whether a record of the target may be a better answer."""
    return (target.max_timestamp, -target.base_offset) > (best.timestamp, -best.offset)


def _is_small_range(segment: ArchivedSegment) -> bool:
    return stretch_of(segment).is_small_range


def _nothing() -> None:
    """No caller waits for a log start."""
