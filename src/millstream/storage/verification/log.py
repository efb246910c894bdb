"""Checking a data directory without a broker: every byte of the segments and of the write-ahead log, nothing changed.

What was promised to be durable must be there, whole and in order; this is what ``verify_log`` looks at, and
``verify_wal`` in the module of that name:

- each batch's header and CRC-32C; offsets without a gap (compacted segments may have gaps), leader epochs as the
  ``epochs`` file has them; segments that meet each other; the log's start inside of them;
- each index: every entry points to the batch and the timestamp it names, the summary is what the segment holds;
- the small files: epochs, producer snapshots, the mark of a fenced log;
- the write-ahead log: its state, frames that were durable and cannot be read, records that do not match their checksum.

A finding is ``corrupt`` when something durable is damaged or missing, and ``mended`` when the next start repairs it by
itself: a torn last frame, an index that is missing or short, bytes of a segment that no checkpoint covers and that are
written again from the write-ahead log. The line between them is each index's summary, which is written only after the
segment was synced. After a power failure a segment without one may have a successor: what of it the write-ahead log
holds is ``mended``.

A file that the disk cannot read is a finding, too: ``mended`` if it is derived, an index or a producer snapshot, else
``corrupt``; of a segment, what comes before is checked. Only a directory that cannot be listed ends the check
(OSError). Files that vanish while they are checked, because a broker runs, are left out. Memory: one batch and a few
MiB.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.epochs import LogState, decode_log_state, epoch_at
from millstream.format.events.batch import decode_event_batch, is_event_batch
from millstream.format.events.chunk import SIZE_MAX, partition_of
from millstream.format.index import NO_SUM, scan_index
from millstream.format.names import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    FAULT_FILE,
    PRODUCERS_SUFFIX,
    TOPIC_FILE,
    TOPICS_DIRECTORY,
    controller_directory,
    live_and_replaced,
    parse_offset,
    parse_segment,
)
from millstream.format.producers import decode_producers
from millstream.format.segment import WalkEnd, may_follow
from millstream.model.quantities import FilePosition, Offset
from millstream.storage.chunks import holds_chunks, is_chunk_disk
from millstream.storage.disk import exists, read_file, read_text
from millstream.storage.segments.index import SegmentIndex, index_path, whole_batches_from
from millstream.wire.errors import BatchError
from millstream.wire.records import batch_crc_ok, iter_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.format.index import IndexScan, SegmentSummary
    from millstream.format.segment import Batch
    from millstream.storage.disk import Disk, File

_NO_EPOCH: Final = (-1, ("", -1, -1))

_ID_DIGITS: Final = 32
"""Of a topic's id, as its directory is named."""

CORRUPT: Final = "corrupt"
MENDED: Final = "mended"

NO_END: Final = 1 << 63
"""No offset is that large."""


class Finding(msgspec.Struct, frozen=True):
    """One finding."""

    severity: str
    """``CORRUPT`` or ``MENDED``."""

    log: str
    """Topic and partition, or which write-ahead log."""

    file: str
    position: int
    """Byte in the file; -1: the whole file."""

    offset: int
    """The first offset that is concerned; -1: unknown, or none."""

    what: str


class LogFiles(msgspec.Struct, frozen=True):
    """A log that was found on disk."""

    name: str
    topic: str
    partition: int
    directory: str
    size_bytes: int
    """Of its segments."""

    topic_id: str = ""
    """As the directory of the topic is named; empty for the controller's log."""


class Tally(msgspec.Struct):
    """What was checked, in numbers."""

    logs: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    frames: int = 0
    bytes: int = 0


class Progress:
    """What a check counts and finds. ``advance`` gets the number of bytes that were checked."""

    def __init__(self, advance: Callable[[int], None] | None = None) -> None:
        self.tally = Tally()
        self.findings: list[Finding] = []
        self._advance = advance

    def checked(self, size_bytes: int) -> None:
        """Count further checked bytes."""
        self.tally.bytes += size_bytes
        if self._advance is not None:
            self._advance(size_bytes)

    @property
    def corrupt(self) -> bool:
        """Whether anything durable is damaged."""
        return any(one.severity == CORRUPT for one in self.findings)


def find_logs(disk: Disk, data_dir: str) -> list[LogFiles]:
    """Every log under a data directory, the controller's first; topics that are being deleted are left out."""
    logs: list[LogFiles] = []
    controller = controller_directory(data_dir)
    if exists(disk, controller):
        logs.append(LogFiles("controller", "", 0, controller, _segment_bytes(disk, controller)))
    root = f"{data_dir}/{TOPICS_DIRECTORY}"
    for topic_id in _list(disk, root):
        if topic_id.endswith(DELETED_SUFFIX):
            continue
        try:
            topic = read_text(disk, f"{root}/{topic_id}/{TOPIC_FILE}")
        except OSError:
            topic = ""
        if not topic.isprintable() or not topic:
            topic = topic_id  # a power failure came before the file was durable
        for name in _list(disk, f"{root}/{topic_id}"):
            directory = f"{root}/{topic_id}/{name}"
            events = holds_chunks(directory) and len(topic_id) == _ID_DIGITS
            partition = (
                partition_of(name, bytes.fromhex(topic_id)) if events else int(name) if name.isdecimal() else None
            )
            if partition is None:
                continue
            size_bytes = _segment_bytes(disk, directory)
            logs.append(LogFiles(f"{topic}/{partition}", topic, partition, directory, size_bytes, topic_id))
    return sorted(logs, key=lambda one: (one.topic, one.partition))


def segment_paths(disk: Disk, log: LogFiles) -> list[str]:
    """The segment files that make up a log, in order; what compaction replaced is left out."""

    def end_of(name: str, base: int) -> int | None:
        summary = SegmentIndex.load(disk, f"{log.directory}/{name}", Offset(base)).summary
        return None if summary is None else summary.end_offset

    live, _ = live_and_replaced(_list(disk, log.directory), end_of)
    return [f"{log.directory}/{name}" for name in live.values()]


def _list(disk: Disk, path: str) -> list[str]:
    try:
        return sorted(disk.list(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _segment_bytes(disk: Disk, directory: str) -> int:
    """Bytes of the segments; 0 where damaged sidecars do not tell which there are, which is found later."""
    total = 0
    try:
        names = _list(disk, directory)
    except Corruption:
        return 0
    for name in names:
        if parse_segment(name) is not None:
            try:
                total += disk.size(f"{directory}/{name}")
            except FileNotFoundError:
                continue
    return total


# -- logs --------------------------------------------------------------------------------------------------------------


def verify_log(
    disk: Disk,
    log: LogFiles,
    progress: Progress,
    *,
    deep: bool = False,
    running: bool = False,
    settled: bool = False,
    waiting: Sequence[tuple[int, int]] = (),
) -> None:
    """Check every file of one log.

    Args:
        disk: where it is.
        log: from ``find_logs``.
        progress: counts, and takes the findings.
        deep: decompress every batch and read its records, too.
        running: a broker writes to it: judge only what a checkpoint made durable.
        settled: the last stop was an orderly one, so that nothing is only in the write-ahead log.
        waiting: the offsets that the next start does not need in the segments (``wal.wal_offsets``).
    """
    _LogCheck(disk, log, progress, deep=deep, running=running, settled=settled, waiting=waiting).run()
    progress.tally.logs += 1


class _LogCheck:
    def __init__(
        self,
        disk: Disk,
        log: LogFiles,
        progress: Progress,
        *,
        deep: bool,
        running: bool,
        settled: bool,
        waiting: Sequence[tuple[int, int]],
    ) -> None:
        self._disk = disk
        self._log = log
        self._progress = progress
        self._deep = deep
        self._running = running
        self._settled = settled
        self._waiting = () if settled else waiting
        self._cut_at = self._waiting[-1][0] if self._waiting and self._waiting[-1][1] == NO_END else NO_END
        """The next start cuts the log at this offset: what files say of what is after it does not count."""
        self._newer = _NO_EPOCH  # the newest epoch that the file does not know, and where its first batch is
        self._state = LogState()

    def _found(self, severity: str, file: str, position: int, offset: int, what: str) -> None:
        self._progress.findings.append(Finding(severity, self._log.name, file, position, offset, what))

    def run(self) -> None:
        disk, directory = self._disk, self._log.directory
        try:
            names = _list(disk, directory)
            if self._settled and is_chunk_disk(disk) and holds_chunks(directory):
                disk.check_sidecars(directory)
        except Corruption as error:  # what else is in its chunks is not known
            file, _, what = error.message.partition(": ")
            self._found(CORRUPT, file, -1, -1, what)
            return
        if FAULT_FILE in names:
            try:
                reason = read_text(disk, f"{directory}/{FAULT_FILE}")
            except OSError as error:
                reason = unreadable(error)
            self._found(CORRUPT, f"{directory}/{FAULT_FILE}", -1, -1, f"the log is fenced: {reason}")
        self._small_files(names)
        indexes = {name: self._index(name, base) for name in names if (base := _base_of(name)) is not None}
        live, _ = live_and_replaced(indexes, lambda name, _: _end_of(indexes[name]))
        expected = self._state.start_offset
        if expected >= 0:
            expected = max(expected, self._state.local_start)  # what is before it is in the object store
        bases = [*live, None]
        for place, (base, name) in enumerate(live.items()):
            if not self._running and expected >= 0 and (base > expected or (place and base < expected)):
                gap = f"offsets {expected} to {base - 1} are in no segment"
                what = gap if base > expected else f"starts at offset {base}, but the previous one ends at {expected}"
                is_cut = min(base, expected) >= self._cut_at
                severity = MENDED if is_cut or self._is_written_again(expected, base) else CORRUPT
                self._found(severity, f"{directory}/{name}", 0, min(base, expected), what)
            expected = self._segment(name, base, indexes[name], bases[place + 1])

    def _is_written_again(self, first: int, end: int | None) -> bool:
        """Whether the next start writes these offsets from the write-ahead log, or drops them. ``end`` is exclusive."""
        return end is not None and any(begins <= first < end <= ends for begins, ends in self._waiting)

    def _small_files(self, names: list[str]) -> None:
        disk, directory = self._disk, self._log.directory
        for name in names:
            path = f"{directory}/{name}"
            offset = parse_offset(name, PRODUCERS_SUFFIX)
            try:
                if name == EPOCHS_FILE:
                    self._state = decode_log_state(read_file(disk, path))
                elif offset is not None:
                    decode_producers(Offset(offset), read_file(disk, path))
            except FileNotFoundError:
                continue
            except (Corruption, OSError) as error:
                # A log start that is lost could show deleted records again; producers are rebuilt from the log.
                severity = CORRUPT if name == EPOCHS_FILE else MENDED
                what = unreadable(error) if isinstance(error, OSError) else error.message
                self._found(severity, path, -1, -1, what)
        if EPOCHS_FILE not in names and any(parse_segment(name) for name in names) and not self._running:
            self._found(MENDED, f"{directory}/{EPOCHS_FILE}", -1, -1, "missing; the next start derives it")

    def _index(self, name: str, base: int) -> IndexScan | None:
        path = index_path(f"{self._log.directory}/{name}")
        try:
            found = scan_index(read_file(self._disk, path), Offset(base))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._found(MENDED, path, -1, -1, f"{unreadable(error)}; it is rebuilt from the segment")
            return scan_index(b"", Offset(base))
        if not found.whole and not self._running:
            what = "does not verify; the next start completes it from the segment"
            self._found(MENDED, path, found.valid_bytes, -1, what)
        return found

    def _segment(self, name: str, base: int, index: IndexScan | None, following: int | None) -> int:
        """Check one segment and its index; returns where it ends, -1 if that is unknown. ``following`` is where the
        next segment starts, if there is one.
        """
        path = f"{self._log.directory}/{name}"
        summary = None if index is None else index.summary
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return -1
        try:
            size = file.size()
            durable = 0 if summary is None else summary.size_bytes
            end_offset = -1 if summary is None else summary.end_offset
            is_short = size < durable
            if is_short and end_offset <= self._cut_at:
                self._found(CORRUPT, path, size, end_offset, f"{size} bytes, {durable} were durable")
            # Without an index, all of a segment that has a successor was durable.
            limit = min(durable, size) if self._running else size
            whole = durable if following is None or summary is not None else size
            self._progress.tally.segments += 1
            walk = _Walk(file, limit, base, gaps=(parse_segment(name) or (0, 0))[1] > 0)
            while True:
                try:
                    for batch, view in walk:
                        sound = self._batch(path, batch, view, whole)
                        if index is not None:
                            walk.compare(index, view, sound=sound)
                    break
                except WalkEnd as stop:
                    if self._is_written_again(walk.end_offset, following):
                        whole = durable
                    self._stopped(path, stop, walk, index, whole)
                    if not walk.skip_damage(index, stop.position):
                        walk.end_offset = -1
                        break
                except OSError as error:
                    what = f"{unreadable(error)} from here on; what follows in this segment was not checked"
                    self._found(CORRUPT, path, walk.position, walk.end_offset, what)
                    walk.damaged = True
                    walk.end_offset = -1
                    break
            self._progress.checked(size)
            if is_short and self._cut_at < end_offset and 0 <= walk.end_offset < self._cut_at:
                self._found(CORRUPT, path, size, walk.end_offset, f"ends here, {self._cut_at} was durable")
            if index is not None:
                self._indexed(path, self._before_cut(index), walk)
            elif not self._running:
                self._found(MENDED, index_path(path), -1, -1, "missing; the next start builds it from the segment")
            return walk.end_offset
        finally:
            file.close()

    def _before_cut(self, index: IndexScan) -> IndexScan:
        """What an index says of batches in front of the cut of the next start."""
        if index.summary is None or index.summary.end_offset <= self._cut_at:
            return index
        count = bisect_left(index.offsets, self._cut_at)
        return index._replace(summary=None, offsets=index.offsets[:count], positions=index.positions[:count])

    def _stopped(self, path: str, stop: WalkEnd, walk: _Walk, index: IndexScan | None, durable: int) -> None:
        if stop.position < durable and walk.end_offset < self._cut_at:
            following = walk.next_entry(index, stop.position)
            until = "" if following is None else f"; what follows is readable from offset {following[0]} on"
            self._found(CORRUPT, path, stop.position, walk.end_offset, f"{stop.reason}{until}")
        else:
            what = f"{stop.reason}; no checkpoint covers it, the next start writes it again or cuts it"
            self._found(MENDED, path, stop.position, walk.end_offset, what)

    def _batch(self, path: str, batch: Batch, view: memoryview, durable: int) -> bool:
        """Check one batch. Whether its bytes are those that were written."""
        tally = self._progress.tally
        tally.batches += 1
        tally.records += batch.records
        is_durable = batch.position < durable and not self._is_written_again(batch.base_offset, batch.last_offset + 1)
        is_durable = is_durable and batch.base_offset < self._cut_at
        severity = CORRUPT if is_durable else MENDED
        if not batch_crc_ok(view):
            what = "a batch does not match its CRC-32C"
            if severity == MENDED:
                what += "; no checkpoint covers it, the next start writes it again or cuts it"
            self._found(severity, path, batch.position, batch.base_offset, what)
            return False
        self._leader_epoch(path, batch, severity)
        if self._deep and batch.records:
            try:
                if is_event_batch(view):
                    decode_event_batch(view, event_bytes_max=2 * SIZE_MAX, verify=False)
                    return True
                for _ in iter_records(view):
                    pass
            except BatchError as error:
                self._found(CORRUPT, path, batch.position, batch.base_offset, f"its records cannot be read: {error}")
        return True

    def _leader_epoch(self, path: str, batch: Batch, severity: str) -> None:
        """It stands outside the checksum; the ``epochs`` file knows it, unless it started after the last checkpoint."""
        epoch, known = batch.leader_epoch, epoch_at(self._state.epochs, batch.base_offset)
        place = (path, batch.position, batch.base_offset)
        if epoch < self._newer[0]:
            self._found(severity, *self._newer[1], f"leader epoch {self._newer[0]} before {epoch}")
            self._newer = _NO_EPOCH
        if known < 0 or (epoch > self._state.epochs[-1][0] and not self._settled):
            if epoch > self._newer[0]:
                self._newer = (epoch, place)
        elif epoch != known:
            self._found(severity, *place, f"leader epoch {epoch} where {known} was written")

    def _indexed(self, path: str, index: IndexScan, walk: _Walk) -> None:
        """Compare what the index says with what was found."""
        for position in sorted(set(index.positions) - walk.matched):
            if position < walk.limit and not walk.damaged:
                place = index.positions.index(position)
                what = "an entry of the index names no such batch"
                self._found(CORRUPT, index_path(path), position, index.offsets[place], what)
        for position in walk.runs.wrong:
            what = "the checksum before an entry of the index is not that of the segment's bytes"
            self._found(CORRUPT, index_path(path), position, index.offsets[index.positions.index(position)], what)
        if index.summary is not None and walk.at_summary is not None and not _agrees(index.summary, *walk.at_summary):
            what = "the index's summary is not what the segment holds"
            self._found(CORRUPT, index_path(path), -1, index.summary.base_offset, what)


def unreadable(error: OSError) -> str:
    """The finding for a file that the disk cannot read."""
    return f"could not be read: {error.strerror}"


def _base_of(name: str) -> int | None:
    found = parse_segment(name)
    return None if found is None else found[0]


def _end_of(index: IndexScan | None) -> int | None:
    """Where a segment ends, as its index says."""
    return None if index is None or index.summary is None else index.summary.end_offset


def _agrees(summary: SegmentSummary, end_offset: int, max_timestamp: int) -> bool:
    """Whether a summary is right. Largest times are upper bounds: that of a tail that was cut stays."""
    return summary.end_offset == end_offset and summary.max_timestamp >= max_timestamp


class _RunCheck:
    """The runs of a segment, as they are read."""

    def __init__(self) -> None:
        self.crc: int | None = None
        """CRC-32C of the bytes since the last index entry; None if not all of them were read, or one was damaged."""

        self.wrong: list[int] = []
        """Positions of index entries whose run has another checksum."""

    def ends(self, position: FilePosition, expected: int) -> None:
        """A run ends at an index entry, which has this checksum for it."""
        if self.crc is not None and expected not in {NO_SUM, self.crc}:
            self.wrong.append(position)
        self.crc = 0

    def add(self, view: memoryview, *, sound: bool) -> None:
        """A batch of the open run."""
        if self.crc is not None:
            self.crc = crc32c(view, self.crc) if sound else None


class _Walk:
    """The batches of a segment file, read in large pieces, and what an index has to agree with."""

    def __init__(self, file: File, limit: int, base_offset: int, *, gaps: bool) -> None:
        self._file = file
        self.limit = limit
        self._gaps = gaps
        self.end_offset = base_offset
        self.max_timestamp = -1
        self.matched: set[int] = set()
        """Positions of index entries that are right."""

        self.at_summary: tuple[int, int] | None = None
        """What the index's summary should say."""

        self.runs = _RunCheck()
        self._batch: Batch | None = None
        self._before = -1
        self.position = 0
        """Where the next batch should be."""

        self.damaged = False

    @staticmethod
    def next_entry(index: IndexScan | None, position: int) -> tuple[int, int, int] | None:
        """(offset, position, timestamp) of the first index entry after ``position``, None without one."""
        if index is None:
            return None
        place = bisect_right(index.positions, position)
        if place == len(index.positions):
            return None
        return index.offsets[place], index.positions[place], index.timestamps[place]

    def skip_damage(self, index: IndexScan | None, position: int) -> bool:
        """Continue after damage at ``position``, where the index says that a batch starts; False if it does not say."""
        entry = self.next_entry(index, position)
        if entry is None or entry[1] >= self.limit:
            return False
        self.end_offset, self.position, self.max_timestamp = entry
        self.runs.crc = None
        self.damaged = True
        return True

    def __iter__(self) -> Iterator[tuple[Batch, memoryview]]:
        """Each batch with its bytes.

        Raises:
            WalkEnd: what follows is no batch, or not the next one.
        """
        for batch, view in whole_batches_from(self._file, self.position, self.limit):
            if not may_follow(batch, Offset(self.end_offset), gaps=self._gaps):
                raise WalkEnd(batch.position, f"offset {batch.base_offset} where {self.end_offset} should come")
            self._batch, self._before = batch, self.max_timestamp
            self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)
            self.end_offset = batch.last_offset + 1
            self.position = batch.position + batch.size
            yield batch, view

    def compare(self, index: IndexScan, view: memoryview, *, sound: bool) -> None:
        """Compare the batch that was read last, whose bytes are ``view``, with the index. One that is not ``sound`` is
        reported by itself, and its run is not.
        """
        batch = self._batch
        assert batch is not None
        place = _find(index, batch.position)
        if place is not None:
            self.runs.ends(batch.position, index.sums[place])
        self.runs.add(view, sound=sound)
        if place is not None and index.offsets[place] == batch.base_offset and index.timestamps[place] >= self._before:
            self.matched.add(batch.position)  # a larger time is that of a tail that was cut: an upper bound, too
        if index.summary is not None and batch.position + batch.size == index.summary.size_bytes:
            self.at_summary = (self.end_offset, self.max_timestamp)


def _find(index: IndexScan, position: int) -> int | None:
    place = bisect_left(index.positions, position)
    return place if place < len(index.positions) and index.positions[place] == position else None
