"""What the files of one partition say: where its log starts and ends, which segments it has, what it knew of its
producers.

Called when a log is opened, after recovery has put everything that the write-ahead log still held into the segments.
So a segment ends exactly where its last batch does, and every segment starts where the previous one ended (what
compaction took out is missing inside of segments only); anything else is ``Corruption``, which fences the log
(``fence``) and is never cut away. What is only derived is mended, with one line in the log each: an index that is
missing, unreadable, damaged or short is completed from the segment's headers, an ``epochs`` file that is missing is
derived from the batches, a producer snapshot that does not verify or cannot be read gives way to the one before. What
else the disk cannot read is ``Corruption`` as well, but leaves no mark: the next start tries again.

The ``epochs`` file of a replicated log holds the replica's vote and the positions of its entries, that of an archived
topic what is archived, and no batch tells any of that (`StateMissing`). Without it the replica could vote twice in a
term, and what the object store has would be forgotten, so that a missing one is ``Corruption`` there.

A log whose indexes are whole costs a directory listing, one stat and one small read per segment; nothing is read of
the segments.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.errors import Corruption
from millstream.format.epochs import Epochs, LogState, decode_log_state, encode_log_state
from millstream.format.index import SegmentSummary
from millstream.format.names import (
    CLEANED_SUFFIX,
    EPOCHS_FILE,
    FAULT_FILE,
    INDEX_SUFFIX,
    LOST_FILE,
    PARTITION_LEVELS,
    PRODUCERS_SUFFIX,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    live_and_replaced,
    offset_name,
    parse_offset,
)
from millstream.format.producers import decode_producers
from millstream.format.segment import WalkEnd
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.chunks import holds_chunks, is_chunk_disk
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, read_text, remove_file, replace_file
from millstream.storage.segments.index import SegmentIndex, batches_from, grow_index, index_path
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.storage.disk import Disk
    from millstream.telemetry.metrics import StatsSlab

    Note = Callable[[str, str], None]


class StateMissing(Corruption):
    """The ``epochs`` file is missing or cannot be read, and batches do not tell what it held. The records of the
    partition are not damaged: what the write-ahead log has of them is set aside whole (`storage.recovery.set_aside`).
    """


class LoadedLog(NamedTuple):
    """A log as its files say."""

    state: LogState
    segments: tuple[SegmentSummary, ...]
    """Oldest first, each beginning where the one before ends; the last is active unless it is sealed."""

    producers: tuple[int, bytes] | None
    """(offset, state) of the newest producer snapshot."""

    snapshot_files: tuple[int, ...]
    """Offsets of the snapshot files."""

    lost: bool = False
    """Durable data was lost: the replica counts for nothing until its leader has filled the log (``lost``)."""

    @property
    def next_offset(self) -> Offset:
        """End of the log, exclusive."""
        return max(self.state.files_start, self.segments[-1].end_offset if self.segments else Offset(0))


@contextlib.contextmanager
def _reading(path: str) -> Generator[None]:
    """What of a log cannot be read cannot be served; the other logs can."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Corruption(f"{path} could not be read: {error.strerror}") from error


def repair_note(name: str, stats: StatsSlab) -> Note:
    """Count repairs of a log, and write a line for each."""
    place = operator_log.at(name)

    def note(kind: str, message: str) -> None:
        place.warning("repaired: %s", message)
        stats.counter("recovery_repairs", kind=kind).inc()

    return note


EMPTY_LOG = LoadedLog(LogState(), (), None, ())


def load_log(
    disk: Disk, directory: str, now_ms: int, note: Note, *, replicated: bool = False, archived: bool = False
) -> LoadedLog:
    """Read the files of a partition's directory; an empty log if it does not exist.

    ``note`` is called with each repair: (kind, what). ``now_ms`` is the creation time of segments that have none.
    ``replicated``: its group has several voters, or had. ``archived``: an object store has what its files lack.

    Raises:
        Corruption: the durable files contradict each other, or the log was fenced before.
    """
    try:
        names = disk.list(directory)
    except FileNotFoundError:
        return EMPTY_LOG
    if FAULT_FILE in names:
        with _reading(f"{directory}/{FAULT_FILE}"):
            reason = read_text(disk, f"{directory}/{FAULT_FILE}")
        raise Corruption(reason)
    for name in names:
        orphan = name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX not in names
        if orphan or name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
            disk.unlink(f"{directory}/{name}")
    files = _recovered_segments(disk, directory, names)
    bases = sorted(files)
    has_more = replicated or archived
    if has_more and EPOCHS_FILE not in names and (files or any(name.endswith(PRODUCERS_SUFFIX) for name in names)):
        raise StateMissing(missing_epochs(directory, replicated=replicated))
    state = _load_state(disk, directory, files, note)
    start = state.files_start
    while len(bases) > 1 and bases[1] <= start:
        remove_segment(disk, f"{directory}/{files[bases.pop(0)]}")  # a crash came between the note and the deletion
    segments: list[SegmentSummary] = []
    for place, base in enumerate(bases):
        following = bases[place + 1] if place + 1 < len(bases) else None
        if segments and segments[-1].end_offset != base:
            raise Corruption(f"{directory}: offsets {segments[-1].end_offset} to {base - 1} are in no segment")
        segments.append(_load_segment(disk, f"{directory}/{files[base]}", base, following, now_ms, note, state.epochs))
    if segments and segments[0].base_offset > start:
        raise Corruption(f"{directory}: offsets {start} to {segments[0].base_offset - 1} are in no segment")
    _drop_archived(disk, directory, files, segments, state)
    if segments and segments[-1].end_offset < start:
        raise Corruption(f"{directory}: the log starts at {start} and ends at {segments[-1].end_offset}")
    end = segments[-1].end_offset if segments else start
    if state.epochs and state.epochs[-1][1] > end:
        # Its first batches were lost in a crash.
        state = msgspec.structs.replace(state, epochs=tuple(one for one in state.epochs if one[1] <= end))
    if state.controls and state.controls[-1].offset > end:
        raise Corruption(f"{directory}: a control entry stands at offset {state.controls[-1].offset}, the end is {end}")
    producers, files = _load_producers(disk, directory, names, end, note, compacted=state.clean_offset > 0)
    if len(disk.list(directory)) < len(names):
        disk.sync_directory(directory)  # what was removed must not come back later, when it is not looked for
    return LoadedLog(state, tuple(segments), producers, files, LOST_FILE in names)


def _drop_archived(
    disk: Disk, directory: str, files: dict[int, str], segments: list[SegmentSummary], state: LogState
) -> None:
    """Remove what ends before a log of which all is archived: a crash came between the note of an unclean cut and the
    deletion (`storage.recovery.unclean.settle`).
    """
    is_archived = state.base.offset == state.local_start == state.files_start and not state.controls
    if is_archived and segments and segments[-1].end_offset < state.local_start:
        for one in segments:
            remove_segment(disk, f"{directory}/{files[one.base_offset]}")
        segments.clear()


def live_segments(disk: Disk, directory: str, names: list[str]) -> dict[int, str]:
    """The segment files that make up the log, by base offset.

    Compaction puts one file in the place of several and removes those a little later. Files that it took the place of
    are removed here: they lie inside of a file of a higher generation.
    """
    live, replaced = live_and_replaced(names, lambda name, base: _end_of_compacted(disk, f"{directory}/{name}", base))
    for name in replaced:
        remove_segment(disk, f"{directory}/{name}")
    return live


def _recovered_segments(disk: Disk, directory: str, names: list[str]) -> dict[int, str]:
    """The same of a log that recovery is through with, and of chunks also that no sidecar is damaged."""
    with _reading(directory):
        files = live_segments(disk, directory, names)
        if is_chunk_disk(disk) and holds_chunks(directory):
            disk.check_sidecars(directory)
    return files


def _end_of_compacted(disk: Disk, path: str, base: int) -> int:
    """Where a compacted segment ends: its index says it, or its last batch."""
    index = SegmentIndex.load(disk, path, Offset(base))
    if index.summary is not None:
        return index.summary.end_offset
    return grow_index(disk, path, index, disk.size(path), 0).end_offset


def _load_state(disk: Disk, directory: str, files: dict[int, str], note: Note) -> LogState:
    path = f"{directory}/{EPOCHS_FILE}"
    try:
        with _reading(path):
            data = read_file(disk, path)
    except FileNotFoundError:
        if not files:
            return LogState()
        with _reading(directory):
            state = derive_state(disk, directory, files, None)
        note("epochs_rebuilt", f"{path} was missing and is derived from {len(files)} segments again")
        replace_file(disk, path, encode_log_state(state))
        return state
    try:
        return decode_log_state(data)
    except Corruption as error:
        raise StateMissing(f"{path}: {error.message}") from error


def missing_epochs(directory: str, *, replicated: bool) -> str:
    """Why a replicated or archived log without its ``epochs`` file is not opened."""
    lost = "the vote of this replica and the positions of its entries" if replicated else "what of it is archived"
    return f"{directory}/{EPOCHS_FILE} is missing, and with it {lost}"


def derive_state(disk: Disk, directory: str, files: dict[int, str], until: int | None) -> LogState:
    """Start and leader epochs of a log from its batches, those below offset ``until`` if that is given.

    Raises:
        Corruption: there is something else than batches.
    """
    epochs: list[tuple[Term, Offset]] = []
    bases = [base for base in sorted(files) if until is None or base < until]
    for base in bases:
        file = disk.open(f"{directory}/{files[base]}")
        try:
            for batch in batches_from(file, 0, file.size()):
                if until is not None and batch.base_offset >= until:
                    return LogState(Offset(bases[0]), tuple(epochs))
                if not epochs or batch.leader_epoch > epochs[-1][0]:
                    epochs.append((batch.leader_epoch, batch.base_offset))
                if batch.last_offset + 1 == until:
                    break  # what is after it may be damaged
        except WalkEnd as end:
            raise Corruption(f"{file.path}: byte {end.position}: {end.reason}") from end
        finally:
            file.close()
    return LogState(start_offset=Offset(min(files, default=0)), epochs=tuple(epochs))


def _load_segment(
    disk: Disk, path: str, base: int, following: int | None, now_ms: int, note: Note, epochs: Epochs
) -> SegmentSummary:
    """The summary of one segment, with a complete index. ``following`` is the next segment's base."""
    size = disk.size(path)
    index = SegmentIndex.load(disk, path, Offset(base))
    known = index.summary
    if known is not None and known.size_bytes > size:
        raise Corruption(f"{path} has {size} bytes, {known.size_bytes} were synced")
    if index.whole and known is not None and known.size_bytes == size and (following is None or known.sealed):
        return known
    complete = index.whole and known is not None and known.size_bytes == size
    with _reading(path):
        growing = grow_index(disk, path, index, size, now_ms, epochs)
    summary = growing.summary(sealed=following is not None or (known is not None and known.sealed))
    if not complete:
        what = f"could not be read ({os.strerror(index.errno)})" if index.errno else "was missing, damaged or short"
        note("index_rebuilt", f"{index_path(path)} {what} and is completed from the segment")
    if index.whole:
        index.append_block(disk, path, summary)
    else:
        index.replace(disk, path, summary)
    return summary


def position_of(disk: Disk, path: str, base: int, offset: Offset) -> int:
    """Where the first batch at or after ``offset`` starts in a segment file; its end without one.

    Raises:
        Corruption: the offset is inside of a batch.
    """
    _, position = SegmentIndex.load(disk, path, Offset(base)).place_before(offset)
    file = disk.open(path)
    try:
        for batch in batches_from(file, position, file.size()):
            if batch.base_offset >= offset:
                return batch.position
            position = batch.position + batch.size
            if batch.last_offset >= offset:
                raise Corruption(f"{path}: no batch starts at offset {offset}")
    except WalkEnd as end:
        raise Corruption(f"{path}: byte {end.position}: {end.reason}") from end
    finally:
        file.close()
    return position


def remove_segment(disk: Disk, path: str) -> None:
    """Remove a segment file and its index."""
    if exists(disk, index_path(path)):
        disk.unlink(index_path(path))
    disk.unlink(path)


def _load_producers(
    disk: Disk, directory: str, names: list[str], end: int, note: Note, *, compacted: bool
) -> tuple[tuple[int, bytes] | None, tuple[int, ...]]:
    """The newest snapshot at or before ``end``. Later ones speak of batches that a crash took away: they are removed.

    In a compacted log an older one does not stand in for the newest: it may list aborted transactions whose markers
    compaction has removed since. The log itself says less, and never that.
    """
    offsets = sorted(offset for name in names if (offset := parse_offset(name, PRODUCERS_SUFFIX)) is not None)
    for offset in offsets:
        if offset > end:
            disk.unlink(f"{directory}/{offset_name(Offset(offset), PRODUCERS_SUFFIX)}")
    offsets = [offset for offset in offsets if offset <= end]
    for offset in reversed(offsets):
        path = f"{directory}/{offset_name(Offset(offset), PRODUCERS_SUFFIX)}"
        try:
            return (offset, decode_producers(Offset(offset), read_file(disk, path))), tuple(offsets)
        except Corruption as error:
            note("producers_rebuilt", f"{path} is ignored: {error.message}")
        except OSError as error:
            note("producers_rebuilt", f"{path} could not be read ({error.strerror}) and is ignored")
        if compacted:
            break
    return None, tuple(offsets)


def fence(disk: Disk, directory: str, reason: str) -> None:
    """Have this log refused until a person removes its ``fault`` file: its durable bytes are not what they
    should be.
    """
    make_directories_durably(disk, directory, PARTITION_LEVELS)
    replace_file(disk, f"{directory}/{FAULT_FILE}", reason.encode() + b"\n")


def unfence(disk: Disk, directory: str) -> None:
    """A log that was fenced was repaired."""
    remove_file(disk, f"{directory}/{FAULT_FILE}")
