"""Cutting a damaged log of one replica alone back to its last sound batch: what can be kept, and what is lost.

`look` reads every batch of the segments, in slices, and stops at the first that is damaged or does not follow. What the
write-ahead log had of the partition and the names of producer snapshots tell how far the log went.
`cut_back` makes the log end there. The bytes that are cut off, and what was put aside of the write-ahead log, stay in
the directory under names with ``.damaged``, for a person.

**Promises.** Nothing changes before `cut_back`; the records before the end that `look` found are kept, every one of
them checked. **Crash.** The files are put aside before the mark of the fault goes, so that a log that was half cut is
still refused; the repair is called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.format.names import (
    DAMAGED_SUFFIX,
    PRODUCERS_SUFFIX,
    QUARANTINE_FILE,
    QUARANTINED_SUFFIX,
    parse_offset,
)
from millstream.format.quarantine import chunks
from millstream.format.segment import WalkEnd
from millstream.format.wal import Kind
from millstream.model.quantities import FilePosition, Offset
from millstream.storage.disk import exists, read_at, read_file, write_all
from millstream.storage.log.opening import live_segments, unfence
from millstream.storage.segments.files import names_in
from millstream.storage.segments.index import SegmentIndex, batches_from, index_path, sound_bytes

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.storage.disk import Disk

_SLICE: Final = 16
"""Batches that one slice of the look checks."""


class Kept(NamedTuple):
    """What a cut would keep."""

    end_offset: Offset
    """Of the sound part, exclusive."""
    known_end: Offset
    """As far as indexes, batches and the write-ahead log say, the log went to here."""
    segment: str
    """The name of the segment in which the sound part ends; empty without one."""
    position: FilePosition
    """Where in it."""
    is_whole: bool = True
    """Every batch of the segments is sound."""
    replayed_end: Offset = Offset(0)
    """Where the log ends once what was put aside of the write-ahead log is replayed, if that follows."""

    @property
    def needs_cut(self) -> bool:
        """Something after the sound part is damaged, and no replay writes it again."""
        return not self.is_whole and self.replayed_end == self.end_offset

    @property
    def lost(self) -> int:
        """Offsets that the cut gives up."""
        return max(0, self.known_end - self.end_offset)


def look(disk: Disk, directory: str, found: list[Kept]) -> Generator[None, None, None]:
    """Find the end of the sound part; ``found`` gets it. Raises OSError and Corruption if the names tell nothing."""
    names = names_in(disk, directory)
    files = live_segments(disk, directory, names)
    batches = _set_aside(disk, directory, names)
    first, known = _known_ends(names, batches)
    kept = Kept(Offset(min(files, default=first)), known, "", FilePosition(0))
    sound = True
    for count, (base, name) in enumerate(sorted(files.items())):
        path = f"{directory}/{name}"
        summary = SegmentIndex.load(disk, path, Offset(base)).summary
        known = max(known, Offset(0 if summary is None else summary.end_offset), Offset(base))
        if not sound or (count and base != kept.end_offset):
            sound = False
            continue
        kept = Kept(Offset(base), known, name, FilePosition(0))
        file = disk.open(path)
        try:
            for number, batch in enumerate(batches_from(file, 0, file.size())):
                known = max(known, Offset(batch.last_offset + 1))
                if sound_bytes(file, batch) is None or batch.base_offset < kept.end_offset:
                    sound = False
                    break
                end = Offset(batch.last_offset + 1)
                kept = Kept(end, known, name, FilePosition(batch.position + batch.size))
                if number % _SLICE == _SLICE - 1:
                    yield
        except (WalkEnd, OSError):
            sound = False
        finally:
            file.close()
        if summary is not None and sound and summary.end_offset > kept.end_offset:
            kept = kept._replace(end_offset=summary.end_offset) if summary.generation else kept
            sound = bool(summary.generation)
        yield
    replayed = kept.end_offset
    for base, end in batches:
        replayed = max(replayed, end) if base <= replayed else replayed
    found.append(kept._replace(known_end=max(known, kept.end_offset), is_whole=sound, replayed_end=replayed))


def _set_aside(disk: Disk, directory: str, names: list[str]) -> list[tuple[Offset, Offset]]:
    """Base offset and end of the batches that were put aside of the write-ahead log, in order."""
    data = read_file(disk, f"{directory}/{QUARANTINE_FILE}") if QUARANTINE_FILE in names else b""
    records = [record for chunk in chunks(data) for record, _ in chunk.records if record.kind == Kind.BATCH]
    return [(record.base, Offset(record.last + 1)) for record in records]


def _known_ends(names: list[str], batches: list[tuple[Offset, Offset]]) -> tuple[Offset, Offset]:
    """Where a log without segments starts, and how far the log went, as far as other files tell."""
    snapshots = [Offset(offset) for name in names if (offset := parse_offset(name, PRODUCERS_SUFFIX)) is not None]
    newest = max(snapshots, default=Offset(0))
    return min((base for base, _ in batches), default=newest), max([newest, *(end for _, end in batches)])


def cut_back(disk: Disk, directory: str, kept: Kept, *, keeps_set_aside: bool = False) -> None:
    """Let the log end where `look` says. With ``keeps_set_aside`` what was put aside of the write-ahead log stays for a
    replay, and so does a fence. Raises OSError.
    """
    names = names_in(disk, directory)
    for base, name in sorted(live_segments(disk, directory, names).items()):
        if name == kept.segment:
            _keep_front(disk, f"{directory}/{name}", kept.position)
        elif base >= kept.end_offset:
            _put_aside(disk, f"{directory}/{name}")
            if exists(disk, index_path(f"{directory}/{name}")):
                disk.unlink(index_path(f"{directory}/{name}"))
    for name in names:
        if (name == QUARANTINE_FILE and not keeps_set_aside) or name.endswith(QUARANTINED_SUFFIX):
            _put_aside(disk, f"{directory}/{name}")
    disk.sync_directory(directory)
    if not keeps_set_aside:
        unfence(disk, directory)


def _keep_front(disk: Disk, path: str, position: FilePosition) -> None:
    file = disk.open(path)
    try:
        size = file.size()
        if size > position:
            aside = disk.open(path + DAMAGED_SUFFIX, create=True)
            try:
                aside.truncate(0)
                write_all(aside, [read_at(file, position, size - position)], 0)
                aside.sync()
            finally:
                aside.close()
        file.truncate(position)
        file.sync()
    finally:
        file.close()
    if exists(disk, index_path(path)):
        disk.unlink(index_path(path))  # derived again from what is left


def _put_aside(disk: Disk, path: str) -> None:
    disk.rename(path, path + DAMAGED_SUFFIX)
