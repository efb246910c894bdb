"""Restoring a partition whose disk is lost, from what the object store has of it.

::

    sealed logs of lives that are over (`wal_lives`) ─ entries ─┐
    shared objects, the manifest ─ ranges without a gap ────────┴► <directory>.restored.staged ──rename──► directory

What the archive has stays there: the restored log remembers it, and its files start where the archive ends, with the
batches of the entries after that. So a log of which only objects are left opens like any other, in a higher term. The
log starts where the manifest or an entry says, whichever is later: what was deleted does not come back.

**Nothing is taken from a log that may still be written.** Who restores has sealed the logs of the broker that had the
partition. **Bad input.** An entry that is damaged or missing where the archive does not have its offsets is
`Corruption`, and nothing is restored. **Crash.** The directory is there as a whole or not at all; what is staged is
removed by the next start. Restoring may be repeated. **Memory.** Heads of entries and indexes of objects are kept, and
one part of an entry at a time is read.

Any broker may remove entries that the archive has (`remove_covered`): the objects in the store decide it.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.raft.messages import Configuration
from millstream.errors import Corruption, Rejected
from millstream.format.archive import manifest_key, topic_key
from millstream.format.epochs import LogState, RaftBase, encode_log_state
from millstream.format.manifest import encode_manifest, unpack_run
from millstream.format.names import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    PARTITION_LEVELS,
    SEGMENT_SUFFIX,
    STAGED_SUFFIX,
    segment_name,
)
from millstream.format.segment import WalkEnd, whole_batches
from millstream.format.wal_entry import check_part, decode_head, head_bytes
from millstream.model.quantities import FilePosition, Offset
from millstream.model.replication import RaftPosition, Term
from millstream.model.shared import SharedPartition
from millstream.objects import NotFound, ObjectKey
from millstream.raft.stored import Folded, decode_folded, encode_folded
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, replace_file, write_all
from millstream.storage.segments.files import remove_deleted
from millstream.storage.segments.index import Growing, SegmentIndex
from millstream.tiers.inspection import manifest_of, segments_of
from millstream.tiers.manifest import Archive
from millstream.tiers.object_wal import entry_key, remove_entries, wal_folder
from millstream.tiers.packing import archive_id
from millstream.tiers.shared_objects import read_index
from millstream.tiers.sweeping import StoredRange, longest_chain, own_ranges, ranges_of, shared_ids
from millstream.tiers.wal_lives import Logs
from millstream.wire.records import batch_crc_ok

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.format.manifest import ArchiveId, Manifest
    from millstream.format.wal_entry import EntryPart, FoundPart
    from millstream.model.cluster import NodeId
    from millstream.model.replication import ReplicaId
    from millstream.model.shared import ObjectId
    from millstream.objects import ObjectStore
    from millstream.storage.disk import Disk

_SEGMENT_BYTES: Final = 128 << 20
"""A restored log starts a new segment after so many bytes."""

_HEAD_BYTES: Final = 16 * 1024
"""Read of an entry at first: enough for the parts of some hundred partitions."""

_ATTEMPTS: Final = 4


class _Log(NamedTuple):
    """One sealed log: the folder, and its place among all lives. Later lives have later batches."""

    broker_epoch: int
    folder: str


class _Entry(NamedTuple):
    """A part of an entry for one partition. They sort by age."""

    broker_epoch: int
    number: int
    folder: str
    found: FoundPart


class Restored(NamedTuple):
    """What a partition has again. Offsets that end something are exclusive."""

    start_offset: Offset
    archived_end: Offset
    end_offset: Offset

    @property
    def records(self) -> int:
        """Offsets that the log has."""
        return self.end_offset - self.start_offset


class StoreView:
    """What a store has of shared partitions, and what of it was read. `refresh` before each use. One caller."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._ranges: dict[ObjectId, list[tuple[SharedPartition, StoredRange]]] = {}
        self._entries: dict[ObjectKey, list[_Entry]] = {}
        self._logs: dict[_Log, list[int]] = {}
        self._partition_ranges: dict[SharedPartition, list[StoredRange]] = {}
        self.listed: set[ObjectId] = set()
        """Shared objects that are there, those that cannot be read included. Written by `refresh_objects`."""
        self._partition_entries: dict[SharedPartition, list[_Entry]] = {}
        self._found = Logs(store)
        self.refreshed_ns = 0
        """Monotonic clock at the beginning of the last `refresh` that succeeded."""

    def refresh(self) -> None:
        """Read what is new. The logs come first: what leaves them in between is in the objects, which come after.

        Raises:
            Corruption: an entry, or what says who lived, cannot be read.
            Unavailable: the store.
        """
        begun_ns = time.monotonic_ns()
        self._refresh_logs()
        self.refresh_objects()
        self.refreshed_ns = begun_ns

    def refresh_objects(self) -> None:
        """Read what is new of shared objects alone. Raises Unavailable."""
        known, self._ranges = self._ranges, {}
        self.listed = set()
        for object_id in shared_ids(self.store):
            self.listed.add(object_id)
            try:
                found = known.get(object_id)
                self._ranges[object_id] = ranges_of(read_index(self.store, object_id)) if found is None else found
            except (Corruption, Rejected, NotFound):
                continue
        self._partition_ranges = {}
        for partition, one in itertools.chain.from_iterable(self._ranges.values()):
            self._partition_ranges.setdefault(partition, []).append(one)

    def _refresh_logs(self) -> None:
        entries: dict[ObjectKey, list[_Entry]] = {}
        self._logs = {}
        for one in self._found.find():
            if not one.is_sealed:
                continue
            log = _Log(one.writer.broker_epoch, wal_folder(one.writer, one.shard))
            self._logs[log] = one.numbers
            for number in one.numbers:
                key = entry_key(log.folder, number)
                found = self._entries.get(key)
                entries[key] = self.read_head(log, number) if found is None else found
        self._entries = entries
        self._partition_entries = {}
        for one in itertools.chain.from_iterable(entries.values()):
            self._partition_entries.setdefault(one.found.part.partition, []).append(one)

    def read_head(self, log: _Log, number: int) -> list[_Entry]:
        """What an entry has; nothing if it has left its log. Raises Corruption, and what the store raises."""
        key = entry_key(log.folder, number)
        info = self.store.head(key)
        if info is None:
            return []  # it is in the archive by now
        start = self.store.get(key, FilePosition(0), FilePosition(min(info.size_bytes, _HEAD_BYTES)))
        end = head_bytes(start)
        if end > len(start):
            start = self.store.get(key, FilePosition(0), FilePosition(min(info.size_bytes, end)))
        return [_Entry(log.broker_epoch, number, log.folder, one) for one in decode_head(start)]

    def state(self, owner: ArchiveId) -> LogState | None:
        """The state of a log whose batches are all archived; None if nothing of it is. Raises as `refresh`."""
        return archived_state(self.store, owner, self.ranges(owner))

    def ranges(self, owner: ArchiveId) -> Sequence[StoredRange]:
        """What shared objects have of a partition."""
        return self._partition_ranges.get(SharedPartition(owner.topic_id.bytes, owner.partition_index), ())

    def entries(self, partition: SharedPartition) -> list[_Entry]:
        """The parts of sealed logs with batches of a partition, oldest first."""
        return sorted(
            self._partition_entries.get(partition, ()), key=lambda one: (one.broker_epoch, one.number, one.folder)
        )

    def read(self, entry: _Entry) -> memoryview:
        """The batches of a part. Raises NotFound if they were deleted since, Corruption, and what the store raises."""
        part, at = entry.found.part, entry.found.position
        end = FilePosition(at + part.size_bytes)
        data = self.store.get(entry_key(entry.folder, entry.number), at, end)
        check_part(part, data)
        return data

    def remove_covered(self) -> int:
        """Remove, from the oldest on, the entries of sealed logs that the archive has, or whose topic the store does
        no longer describe; their number. Raises as `refresh`.
        """
        self.refresh()
        ends: dict[SharedPartition, tuple[Offset, Offset] | None] = {}
        removed = 0
        for log, numbers in self._logs.items():
            covered: list[int] = []
            for number in numbers:
                parts = [one.found.part for one in self._entries[entry_key(log.folder, number)]]
                if not all(self._is_covered(one, ends) for one in parts):
                    break
                covered.append(number)
            remove_entries(self.store, log.folder, covered)
            removed += len(covered)
        return removed

    def _is_covered(self, part: EntryPart, known: dict[SharedPartition, tuple[Offset, Offset] | None]) -> bool:
        """Whether the archive has a part, and the start of its log; ``known`` are start and end of those in it."""
        partition = part.partition
        if partition not in known:
            owner = archive_id(partition)
            state = self.state(owner) or LogState()
            described = self.store.head(ObjectKey(topic_key(owner))) is not None
            known[partition] = (state.start_offset, state.files_start) if described else None
        found = known[partition]
        return found is None or (found[0] >= part.start_offset and found[1] >= part.end_offset)


def topics_in_use(view: StoreView) -> dict[bytes, NodeId]:
    """Topics with records in logs that may still be written, each with a broker that has such a log. Raises
    Corruption, Unavailable.
    """
    found: dict[bytes, NodeId] = {}
    for one in Logs(view.store).find():
        if not one.is_sealed:
            log = _Log(one.writer.broker_epoch, wal_folder(one.writer, one.shard))
            for number in one.numbers:
                for entry in view.read_head(log, number):
                    found.setdefault(entry.found.part.partition.topic_id, one.writer.node_id)
    return found


def restore(
    view: StoreView,
    disk: Disk,
    owner: ArchiveId,
    directory: str,
    now_ms: int,
    voters: tuple[ReplicaId, ...] = (),
    asked_ns: int | None = None,
) -> Restored | None:
    """Make the directory of a partition from what the store has; None if it has nothing of it and there are no voters.

    Args:
        view: of the store.
        disk: for the directory.
        owner: the partition.
        directory: of the log; it must not be there, but for what an earlier call has made.
        now_ms: wall clock, for new segments.
        voters: members of its Raft group from now on; without any, those with which the group is opened.
        asked_ns: on the monotonic clock; what ``view`` has read since then will do.

    Raises:
        Corruption: what the store has does not add up.
        Rejected: the directory has other files.
        Unavailable, OSError: the store or the disk; call again.
    """
    for attempt in range(_ATTEMPTS):
        if attempt or asked_ns is None or view.refreshed_ns <= asked_ns:
            view.refresh()
        try:
            return _restore(view, disk, owner, directory, now_ms, voters)
        except NotFound:  # an entry went into the archive since
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError("every attempt returns or raises")


def _restore(
    view: StoreView,
    disk: Disk,
    owner: ArchiveId,
    directory: str,
    now_ms: int,
    voters: tuple[ReplicaId, ...],
) -> Restored | None:
    partition = SharedPartition(owner.topic_id.bytes, owner.partition_index)
    state = view.state(owner)
    entries = view.entries(partition)
    if state is None and not entries and not voters:
        return None
    if state is None:
        begin = _beginning(entries)
        state = LogState(start_offset=begin, local_start=begin)
    start = max([state.start_offset, *(one.found.part.start_offset for one in entries)])
    begin = _files_begin(start, state.local_start, entries)
    make_directories_durably(disk, os.path.dirname(directory), PARTITION_LEVELS - 1)
    staged = f"{directory}.restored{STAGED_SUFFIX}"
    if exists(disk, staged):
        remove_deleted(disk, staged)
    disk.make_directory(staged)
    files = _Files(disk, staged, begin, now_ms)
    try:
        for data in _tail(view, entries, begin):
            files.add(data)
    finally:
        files.close()
    whole = LogState(
        start_offset=min(start, files.end_offset),
        epochs=(*state.epochs, *(one for one in files.epochs if not state.epochs or one[0] > state.epochs[-1][0])),
        base=_with_voters(state.base, begin, voters) if voters else state.base,
        local_start=begin,
    )
    replace_file(disk, f"{staged}/{EPOCHS_FILE}", encode_log_state(whole))
    _put_in_place(disk, staged, directory)
    return Restored(whole.start_offset, begin, files.end_offset)


def _with_voters(base: RaftBase, begin: Offset, voters: tuple[ReplicaId, ...]) -> RaftBase:
    """The base of a log whose group continues with other members. They stand at the position of a control entry."""
    owner_state = decode_folded(base.payload).owner_state if base.payload else b""
    payload = encode_folded(Folded(Configuration(voters), owner_state))
    return RaftBase(begin, RaftPosition(begin + 1), Term(0), payload)


def _files_begin(start: Offset, archived: Offset, entries: Sequence[_Entry]) -> Offset:
    """Where the files of a log start: where its archive ends. Between that and a later ``start`` of the log offsets may
    be missing, because they were not needed: then with the run of batches that has the start, or at the start without
    one.
    """
    if start <= archived:
        return archived
    reached = max((one.found.part.end_offset for one in entries), default=Offset(0))
    return start if reached <= start else min(start, max(archived, _beginning(entries)))


def _beginning(entries: Sequence[_Entry]) -> Offset:
    """Where the run of batches starts that reaches the largest end."""
    parts = [one.found.part for one in entries]
    at = max((one.end_offset for one in parts), default=Offset(0))
    while (base := min((one.base_offset for one in parts if one.base_offset < at <= one.end_offset), default=at)) < at:
        at = base
    return at


def _tail(view: StoreView, entries: Sequence[_Entry], begin: Offset) -> Iterator[memoryview]:
    """The batches from an offset on, without a gap; where several entries have an offset, those of the newest."""
    at = begin
    while True:
        having = (one for one in reversed(entries) if one.found.part.base_offset <= at < one.found.part.end_offset)
        found = next(having, None)
        if found is None:
            break
        data = view.read(found)
        yield _from_offset(data, at, found.found.part.end_offset)
        at = found.found.part.end_offset
    last = max((one.found.part.end_offset for one in entries), default=at)
    if last > at:
        raise Corruption(f"{view.store.url}: offsets {at} to {last - 1} of a partition are in no object")


def _from_offset(data: memoryview, offset: Offset, end_offset: Offset) -> memoryview:
    """The batches of a part from an offset on, each checked."""
    begin, expected = -1, offset
    try:
        for batch in whole_batches(data):
            if batch.last_offset < offset:
                continue
            if batch.base_offset != expected or not batch_crc_ok(data[batch.position : batch.position + batch.size]):
                raise Corruption(f"the batch at offset {batch.base_offset} of an entry is damaged or out of place")
            begin = batch.position if begin < 0 else begin
            expected = Offset(batch.last_offset + 1)
    except WalkEnd as end:
        raise Corruption(f"an entry has no batch at byte {end.position} of a part: {end.reason}") from end
    if expected != end_offset:
        raise Corruption(f"the batches of an entry end at {expected}, and not at {end_offset}")
    return data[begin:]


class _Files:
    """Segment files that are being written. Lifecycle: `add`, then `close`."""

    def __init__(self, disk: Disk, directory: str, begin: Offset, now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms
        self.end_offset = begin
        self.epochs: list[tuple[Term, Offset]] = []
        self._path = ""
        self._begin(begin)

    def _begin(self, base: Offset) -> None:
        self._index = SegmentIndex(base)
        self._growing = Growing(self._index, self._now_ms)

    def add(self, data: memoryview) -> None:
        """Append whole batches."""
        if not self._path or self._growing.size_bytes >= _SEGMENT_BYTES:
            self._finish(sealed=True)
            self._begin(self.end_offset)
            self._path = f"{self._directory}/{segment_name(self.end_offset)}"
        file = self._disk.open(self._path, create=True)
        try:
            write_all(file, [data], self._growing.size_bytes)
            file.sync()
        finally:
            file.close()
        for batch in whole_batches(data):
            self._growing.add(batch, (data[batch.position : batch.position + batch.size],))
            if not self.epochs or batch.leader_epoch > self.epochs[-1][0]:
                self.epochs.append((Term(batch.leader_epoch), Offset(batch.base_offset)))
            self.end_offset = Offset(batch.last_offset + 1)

    def close(self) -> None:
        """Complete the index of the last segment."""
        self._finish(sealed=False)
        self._path = ""

    def _finish(self, *, sealed: bool) -> None:
        if self._path:
            self._index.replace(self._disk, self._path, self._growing.summary(sealed=sealed))


def _put_in_place(disk: Disk, staged: str, directory: str) -> None:
    """Give the staged files their name. What an earlier call has put there is replaced, or is the same."""
    disk.sync_directory(staged)
    above = os.path.dirname(directory)
    if exists(disk, directory):
        names = set(disk.list(directory))
        if names - {EPOCHS_FILE} and not _is_same(disk, staged, directory):
            raise Rejected(
                f"{directory} has files of a topic that is not known here, such as {min(names - {EPOCHS_FILE})}: "
                "move it away"
            )
        deleted = directory + DELETED_SUFFIX
        if exists(disk, deleted):
            remove_deleted(disk, deleted)
        disk.rename(directory, deleted)
        disk.rename(staged, directory)
        disk.sync_directory(above)
        remove_deleted(disk, deleted)
    else:
        disk.rename(staged, directory)
    disk.sync_directory(above)


def _is_same(disk: Disk, one: str, other: str) -> bool:
    """Whether two directories have the same state and segments."""
    segments = [name for name in sorted(disk.list(one)) if name.endswith(SEGMENT_SUFFIX)]
    if segments != [name for name in sorted(disk.list(other)) if name.endswith(SEGMENT_SUFFIX)]:
        return False
    state = f"/{EPOCHS_FILE}"
    if not exists(disk, other + state) or read_file(disk, one + state) != read_file(disk, other + state):
        return False
    return all(disk.size(f"{one}/{name}") == disk.size(f"{other}/{name}") for name in segments)


# -- what is archived --------------------------------------------------------------------------------------------------


def archived_state(store: ObjectStore, owner: ArchiveId, ranges: Sequence[StoredRange]) -> LogState | None:
    """The state of a log of which everything is archived; None if nothing of it is in the store. ``ranges`` are those
    of shared objects. The log may start after the end of the archive, which is the local start.

    Raises:
        Corruption: the manifest is not that of the partition, or cannot be read.
        Unavailable: the store.
    """
    manifest = stored_manifest(store, owner)
    if not ranges:
        if manifest is None:
            return None
        if not any(one.object_id for run in manifest.runs for one in unpack_run(run)):
            return state_of(owner, Archive.of(manifest), manifest.epochs, manifest.start_offset)
    return _shared_state(store, owner, ranges, manifest)


def stored_manifest(store: ObjectStore, owner: ArchiveId) -> Manifest | None:
    """The manifest object of a partition; None without one. Raises as `archived_state`."""
    if store.head(ObjectKey(manifest_key(owner))) is None:
        return None
    manifest = manifest_of(store, owner)
    if manifest.owner != owner:
        raise Corruption(f"{store.url}: the object {manifest_key(owner)} is the manifest of another partition")
    return manifest


def _shared_state(
    store: ObjectStore, owner: ArchiveId, ranges: Sequence[StoredRange], manifest: Manifest | None
) -> LogState | None:
    """The same of a shared partition. Shared objects say themselves what they have; its manifest is only as new as the
    last join, and says what was joined.
    """
    own = () if manifest is None else own_ranges(segments_of(store, manifest), manifest.epochs)
    chain = longest_chain([*ranges, *own])
    if not chain:
        return None if manifest is None else state_of(owner, Archive(manifest.start_offset), (), manifest.start_offset)
    archive, epochs = archive_of(chain)
    start = archive.start_offset
    if manifest is not None:
        start = max(start, manifest.start_offset)
        archive.version = manifest.version
    return state_of(owner, archive, epochs, start)


def archive_of(chain: Sequence[StoredRange]) -> tuple[Archive, list[tuple[Term, Offset]]]:
    """The archive of ranges that follow each other, and the leader epochs of what they have."""
    archive = Archive(chain[0].segment.base_offset)
    epochs: list[tuple[Term, Offset]] = []
    for one in chain:
        archive.append(one.segment)
        for epoch, offset in one.epochs:
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, offset))
    return archive, epochs


def state_of(owner: ArchiveId, archive: Archive, epochs: Sequence[tuple[Term, Offset]], start: Offset) -> LogState:
    """The state of a log that starts at an offset, and of which everything is archived. The archive is trimmed."""
    end = archive.end_offset
    archive.trim(min(start, end))
    payload = encode_folded(Folded(Configuration(()), encode_manifest(archive.manifest(owner))))
    return LogState(
        start_offset=start,
        epochs=tuple(one for one in epochs if one[1] < end),
        base=RaftBase(end, RaftPosition(end), Term(0), payload),
        local_start=end,
    )
