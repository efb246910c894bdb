"""Bugs planted in the archiver, the archive process and the cache, each found within a number of histories.

A bug replaces a function while it is planted; production code knows nothing of it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.format.archive import Archived, Replaced, Spilled
from millstream.format.manifest import ArchivedSegment, ManifestPart
from millstream.model.quantities import Offset
from millstream.raft.replicated import ReplicatedGroup
from millstream.tiers import process, reading, replacing, uploading
from millstream.tiers.archiver import Archiver
from millstream.tiers.hot_tier import guard
from millstream.tiers.manifest import Archive, Freed
from millstream.tiers.partition_archive import PartitionArchive
from sim.archive.history import play, setting_of
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.model.replication import EntryKind
    from millstream.tiers.manifest import Spill
    from millstream.tiers.partition_archive import PendingUpload
    from millstream.tiers.replacing import Replacement
    from sim.brokers.settings import Setting


def hunt(bug: PlantedBug, first_seed: int = 0) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    return histories.hunt(bug, play, first_seed, draw=setting_of)


# The bugs

_uploaded = Archiver._uploaded
_upload = uploading.upload
_trim = Archive.trim
_committed = PartitionArchive._committed
_replaced = Archive.replaced
_propose_start = ReplicatedGroup.propose_log_start


def _taken_up_before_its_commit(
    self: Archiver, archive: PartitionArchive, pending: PendingUpload, result: ArchivedSegment | MillstreamError
) -> None:
    """The leader takes the entry up when it proposes it."""
    _uploaded(self, archive, pending, result)
    if isinstance(result, ArchivedSegment) and result.base_offset == archive.archive.end_offset:
        archive._apply(Archived(result, archive.log.start_offset))


def _proposed_as_they_come(self: Archiver, archive: PartitionArchive) -> None:
    """An uploaded segment is proposed although one before it is not."""
    _ = self
    for one in archive.uploads.pending:
        if archive.uploads.trouble is None and isinstance(one.result, ArchivedSegment) and not one.is_proposed:
            with suppress(MillstreamError):
                archive.propose(Archived(one.result, archive.log.start_offset))
                one.is_proposed = True


class _Trusting:
    """A store of which a write without an answer counts as done, and which is not asked again."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.url = store.url
        self._size_bytes = 0

    def put_stream(self, key: Any, parts: Any) -> None:
        parts = list(parts)
        self._size_bytes = sum(map(len, parts))
        with suppress(OutcomeUnknown):
            self._store.put_stream(key, parts)

    def head(self, key: Any) -> Any:
        _ = key
        return SimpleNamespace(size_bytes=self._size_bytes)


def _counted_unseen(store: Any, disk: Any, command: Any, pace: Any, on_block: Any = None) -> ArchivedSegment:
    trusting: Any = _Trusting(store)
    return _upload(trusting, disk, command, pace, on_block)


def _written_or_not(self: Archiver, archive: PartitionArchive, spill: Spill) -> None:
    """A part counts as spilled whether its object was written or not."""
    archive.attempts.busy = True

    def written(error: MillstreamError | None) -> None:
        _ = error
        if not archive.closed and not archive.log.closed:
            with suppress(MillstreamError):
                archive.propose(Spilled(spill.part))
        archive.attempts.busy = False
        archive.attempts.retry_at_us = self._reactor.now_us() + 1_000_000

    self.link.put("nowhere", b"", written)


def _freed_early(self: Archive, start_offset: Offset) -> Freed:
    """The first segment that still has something of the log leaves with those before it."""
    found = self.find_offset(start_offset) if start_offset > self.start_offset else None
    freed = _trim(self, start_offset)
    if isinstance(found, ArchivedSegment) and found.base_offset < start_offset:
        return Freed(freed.parts, (*freed.segments, found))
    return freed


def _behind_its_start(self: Archive) -> Offset:
    """Orphans are looked for up to the end of the first segment that the log still needs."""
    first = next(self.entries(), None)
    return self.start_offset if first is None else first.end_offset


def _deleted_at_once(self: ReplicatedGroup, offset: Offset) -> None:
    """Objects go when the leader asks for another log start, before that is committed."""
    _propose_start(self, offset)
    on_asked = getattr(self.events.on_owner_entry, "__self__", None)
    if isinstance(on_asked, PartitionArchive):
        gone = [one for one in on_asked.archive.entries() if one.end_offset <= offset]
        on_asked.unneeded.freed += [(0, one) for one in gone if isinstance(one, ArchivedSegment)]


def _dropped_before_commit(self: Archiver, archive: PartitionArchive) -> Iterator[Callable[[], None]]:
    """Closed segments go when they are old, archived or not."""
    _ = self
    log = archive.log
    log.refresh()
    start = log.files.segments.active.base_offset
    if start > max(log.files.local_wanted, log.start_offset):
        yield log.trim_local(Offset(start))


def _leader_only(self: PartitionArchive, kind: EntryKind, payload: bytes) -> None:
    """A follower does not listen."""
    if self.group.is_serving:
        _committed(self, kind, payload)


def _forgotten(self: PartitionArchive) -> bytes:
    """What is folded away is lost."""
    _ = self
    return b""


def _any_version(self: Archive, entry: Replaced) -> Freed | None:
    """A replica takes up every committed entry."""
    present = [one for one in self.between(entry.base_offset, entry.end_offset) if isinstance(one, ArchivedSegment)]
    if present and entry.part_before is None:
        entry = replace(entry, before=tuple(present))
    return _replaced(self, replace(entry, expected_version=self.version))


def _located_only(archive: Archive, wanted: Replacement) -> ManifestPart | None:
    """The leader compares offsets, neither versions nor segments."""
    found = archive.between(wanted.before[0].base_offset, wanted.before[-1].end_offset)
    return found[0] if found and isinstance(found[0], ManifestPart) else None


def _unread(store: Any, owner: Any, segment: Any, written_after_ms: Any, pace: Any) -> list[tuple[Any, Any]]:
    """The object of a replacement is not read."""
    _ = store, owner, segment, written_after_ms, pace
    return []


def _freed_with_its_segments(self: Archive, entry: Replaced) -> Freed | None:
    """A part that was replaced goes with all of its segments."""
    freed = _replaced(self, entry)
    return freed and Freed((*freed.parts, *freed.part_objects), freed.segments)


def _always_right(_data: object, _value: int = 0) -> int:
    """A checksum that nothing fails."""
    return _Any()


class _Any(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _trimming(setting: Setting) -> Setting:
    return replace(setting, trims=True)


def _cut_off(setting: Setting) -> Setting:
    """Leaders are cut off with batches, and with requests to the store, that no other broker has."""
    return replace(setting, nodes=3, cuts=True, transfers=True, crashes=False, loss=0.02)


def _cut_off_and_trimming(setting: Setting) -> Setting:
    return replace(_cut_off(setting), trims=True)


PLANTED = (
    PlantedBug(
        "an archived segment counts before its commit",
        ((Archiver, "_uploaded", _taken_up_before_its_commit),),
        100,
        _cut_off,
    ),
    PlantedBug(
        "segments are committed as their uploads end", ((Archiver, "_propose_uploads", _proposed_as_they_come),), 40
    ),
    PlantedBug("an upload without an answer counts as done", ((process, "upload", _counted_unseen),), 60),
    PlantedBug("local segments go before they are archived", ((Archiver, "_drop_local", _dropped_before_commit),), 10),
    PlantedBug("a part counts as spilled unwritten", ((Archiver, "_spill", _written_or_not),), 60),
    PlantedBug("a segment that is needed in part is removed", ((Archive, "trim", _freed_early),), 40, _trimming),
    PlantedBug(
        "orphans are looked for behind the start",
        ((Archive, "first_offset", property(_behind_its_start)),),
        40,
        _trimming,
    ),
    PlantedBug(
        "objects are removed before the log start is committed",
        ((ReplicatedGroup, "propose_log_start", _deleted_at_once),),
        60,
        _cut_off_and_trimming,
    ),
    PlantedBug("a follower takes no entry up", ((PartitionArchive, "_committed", _leader_only),), 40, _cut_off),
    PlantedBug("a folded archive is forgotten", ((PartitionArchive, "_state", _forgotten),), 60),
    PlantedBug(
        "segments are replaced without compare-and-set",
        ((replacing, "find_replaced", _located_only), (Archive, "replaced", _any_version)),
        60,
    ),
    PlantedBug("the object of a replacement is not read", ((process, "check_object", _unread),), 60),
    PlantedBug("a replaced part goes with its segments", ((Archive, "replaced", _freed_with_its_segments),), 200),
    PlantedBug("nobody checks a block of the warm cache", ((guard, "crc32c", _always_right),), 60),
    PlantedBug("nobody checks a block of the store", ((reading, "crc32c", _always_right),), 60),
)
