"""Replaying one log's write-ahead records into its segments, when the broker did not stop in order.

The segments are trusted up to the first record that the write-ahead log still holds: it was freed only after they
were synced. From there on the records are written again, in place and along the segment boundaries that are there,
and what lies after the last of them is cut. Doing it twice does no harm, and a crash in the middle leaves everything
needed to do it again.

Damage inside the durable prefix of the write-ahead log (a record that does not verify, a gap) is first looked for in
the segment, which holds a copy of all that was durable and written behind: a batch that is there and matches its
checksum mends the gap, with one line. If it is not there, the log is faulty: nothing of it is cut or overwritten,
the batches that the write-ahead log still has of it go to a quarantined file, and the log is fenced until a person
decides. Only a torn last frame, which was never acknowledged, is cut in silence. A fenced replica keeps its term and
its vote.

A log whose ``epochs`` file is missing, where batches do not tell what it held, or cannot be read, has no damaged
records. `StateMissing` ends its replay before anything of it is changed, and its records are set aside (``set_aside``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Corruption
from millstream.format.epochs import LogState, decode_log_state, encode_log_state
from millstream.format.index import OFFSETS_PER_SEGMENT
from millstream.format.names import (
    EPOCHS_FILE,
    FAULT_FILE,
    PRODUCERS_SUFFIX,
    parse_offset,
)
from millstream.format.segment import WalkEnd, parse_batch, walk
from millstream.format.wal import Kind
from millstream.model.quantities import BytePosition, Offset
from millstream.storage.disk import exists, make_directories, read_at, read_file, write_aside
from millstream.storage.log.lost import check_beginning, has_log
from millstream.storage.log.opening import StateMissing, derive_state, fence, live_segments, missing_epochs
from millstream.storage.recovery.chunk_fill import ChunkFill
from millstream.storage.recovery.cuts import Cuts
from millstream.storage.recovery.quarantine import QuarantinedBatches
from millstream.storage.recovery.replayed_segments import SegmentFill, SegmentNames
from millstream.storage.recovery.replayed_state import ReplayedState
from millstream.storage.segments.files import label_topic, names_in
from millstream.storage.segments.index import (
    Growing,
    SegmentIndex,
    batches_from,
    index_path,
    sound_batches_from,
    sound_bytes,
)
from millstream.wire.records import batch_crc_ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.index import SegmentSummary
    from millstream.format.wal import WalRecord
    from millstream.storage.disk import Disk, File
    from millstream.storage.recovery.place import LogPlace
    from millstream.storage.recovery.replayed_state import Truncation

_WRITE_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 4 * 1024 * 1024


class LogReplay:
    """The replay of one group: ``apply`` each record in order, ``flush`` before their buffers go, ``finish`` once. No
    file is open in between: there may be more groups than a process may have descriptors.
    """

    def __init__(
        self,
        disk: Disk,
        place: LogPlace,
        trimmed_to: Offset,
        truncations: list[Truncation],
        now_ms: int,
        note: Callable[[str, str], None],
    ) -> None:
        self._disk = disk
        self.place = place
        self._now_ms = now_ms
        self._note = note
        self._begun = False
        self._fill = SegmentFill(disk, now_ms)
        self._chunk = ChunkFill(disk, place.chunk_limits, self.flush)
        self._quarantined = QuarantinedBatches(disk, place.directory)
        self._cuts = Cuts(truncations)
        # To be written once the segments are synced.
        self._indexes: list[tuple[str, SegmentIndex, SegmentSummary]] = []
        self.records = 0
        self.bytes = 0
        self.fault = ""
        """Why the log has to be fenced; empty while it is sound."""

        self.uncertain = ""
        """Unreadable frames may have held records of this log; void once a later record continues it."""

        self.damaged_at = ""
        """File and byte of the last record that does not verify."""

        self._fenced = exists(disk, f"{place.directory}/{FAULT_FILE}")
        files: dict[int, str] = {}
        saved: LogState | None = None
        try:
            names = names_in(disk, place.directory)
            self._bare = place.replicated and not has_log(names)
            files = live_segments(disk, place.directory, names)
            if EPOCHS_FILE in names:
                saved = self._read_state()
        except StateMissing:
            raise
        except Corruption as error:
            self._fail(f"{place.directory}: {error.message}")
        self._segments = SegmentNames(disk, place.directory, files)
        self._state = ReplayedState(saved, trimmed_to, truncations)

    def _read_state(self) -> LogState:
        path = f"{self.place.directory}/{EPOCHS_FILE}"
        try:
            return decode_log_state(read_file(self._disk, path))
        except Corruption as error:
            raise StateMissing(f"{path}: {error.message}") from error
        except OSError as error:
            raise StateMissing(f"{path} could not be read: {error.strerror}") from error

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(self, record: WalRecord, payload: memoryview | None) -> None:
        """One more record of the group; ``payload`` is None when it does not verify."""
        self.records += 1
        if self.fault:
            if record.kind == Kind.VOTE:
                self._state.voted(record)
            self._quarantine(record, payload)
            return
        try:
            if self._bare:
                check_beginning(self.place.directory, record)
                self._bare = False
            if not self._state.has_entries and record.kind in (Kind.BATCH, Kind.CONTROL, Kind.TRUNCATE):
                self._state.has_entries = True
                self._require_state(Offset(record.base if record.kind == Kind.BATCH else record.last))
            match record.kind:
                case Kind.BATCH:
                    self._batch(record, payload)
                case Kind.TRIM:
                    self._state.trimmed(record)
                case Kind.TRUNCATE:
                    self._state.truncated(record)
                    self._truncate(record.base)
                case Kind.CONTROL:
                    self._state.control(record, payload)
                case Kind.VOTE:
                    self._state.voted(record)
                case Kind.ADOPT:
                    self.uncertain = ""  # what was lost before is void
                case Kind.OPAQUE:
                    pass
                case _:
                    raise Corruption(f"a record of unknown kind {record.kind}")
        except StateMissing:
            raise
        except (Corruption, WalkEnd) as error:
            self._fail(str(error))
            self._quarantine(record, payload)
        self._fill.close()

    def _batch(self, record: WalRecord, payload: memoryview | None) -> None:
        if self._cuts.is_void(record.base):
            return
        if not self._begun:
            if record.last < self._state.start and not self._begin_trimmed(record.base):
                self._state.note_epoch(record.leader_epoch, record.base)
                return
            if not self._begun and (record.base > self._state.start or not self._begin_trimmed(record.base)):
                self._begin(record.base)
        next_offset = self._fill.growing.end_offset
        if record.base < next_offset:
            raise Corruption(f"the write-ahead log goes back to offset {record.base} from {next_offset}")
        if record.base > next_offset:
            self._mend(record.base, "are missing from the write-ahead log")
        if payload is None:
            self._mend(record.last + 1, "are damaged in the write-ahead log", self.damaged_at)
            return
        self.uncertain = ""
        fill = self._fill
        position = fill.growing.size_bytes
        if position and (
            position + record.size > self.place.segment_bytes
            or record.last - fill.base > OFFSETS_PER_SEGMENT
            or record.base in self._segments.bases
            or self._chunk.is_full(fill.path, BytePosition(position))
        ):
            self._next_segment(record.base)
            position = fill.growing.size_bytes
        batch = parse_batch(payload, 0, position, position + len(payload))
        self.bytes += record.size
        self._state.note_epoch(batch.leader_epoch, batch.base_offset)
        fill.add(batch, payload)
        self._chunk.add(record, payload)
        if fill.pending_bytes >= _WRITE_BYTES:
            self.flush()

    def _truncate(self, offset: Offset) -> None:
        """The log was cut here; no record before was at or after ``offset``, they are void."""
        lowest = self._cuts.passed()
        if not self._begun:
            self._begin(lowest)
        elif self._fill.growing.end_offset < lowest:
            raise Corruption(f"the log ends at {self._fill.growing.end_offset} and was cut at {lowest}")
        self._state.forget_epochs(offset)

    def _begin_trimmed(self, offset: Offset) -> bool:
        """Start at or before the log's start, if the segments reach so far.

        If they do not, they were to be removed and came back in the crash, some of them and perhaps torn: they go now.
        What is not trimmed follows in the write-ahead log.
        """
        while len(self._segments.bases) > 1 and self._segments.bases[1] <= self._state.start:
            self._unlink(self._segments.bases[0])
        if not self._segments.bases or self._segments.bases[0] > offset:
            return False
        try:
            self._begin(offset)
        except (Corruption, WalkEnd):
            self._begun = False
            for base in [one for one in self._segments.bases if one <= offset]:
                self._unlink(base)
            return False
        return True

    def _remove_trimmed(self) -> None:
        """No batch is to be replayed: trimmed segments that came back go again, but not one that the log went on in."""
        while len(self._segments.bases) > 1 and self._segments.bases[1] <= self._state.start:
            self._unlink(self._segments.bases[0])
        if (
            not self._segments.bases
            or self._segments.bases[0] >= self._state.start
            or self._state.reached > self._state.start
        ):
            return
        base = self._segments.bases[0]
        index = SegmentIndex.load(self._disk, self._segments.path(base), Offset(base))
        if index.summary is not None and index.summary.end_offset >= self._state.start:
            return
        growing = Growing(index, self._now_ms)
        file = self._disk.open(self._segments.path(base))
        try:
            for batch in batches_from(file, growing.size_bytes, file.size()):
                if not growing.goes_on_with(batch):
                    break
                growing.add(batch)
                if growing.end_offset >= self._state.start:
                    return
        except WalkEnd:
            pass  # torn before the start: nothing of it is the log's
        finally:
            file.close()
        self._unlink(base)

    def _unlink(self, base: Offset) -> None:
        if self._fill.base == base:
            self._fill.close()
        self._segments.unlink(base)

    # -- places --------------------------------------------------------------------------------------------------------

    def _begin(self, offset: Offset) -> None:
        """Stand where the batch at ``offset`` starts, everything before it trusted."""
        first = not self._begun
        self._begun = True
        if self._state.saved is None and self._segments.bases and first:
            self._derive_state(offset)
        below = [base for base in self._segments.bases if base <= offset]
        if self._cuts and len(below) > 1 and below[-1] == offset:
            below.pop()  # the segment before may still have what was cut off after its end
        if not below:
            if self._segments.bases or offset <= self._state.start or (not self._state.start and not offset):
                self._open(offset, SegmentIndex(offset), create=True)
                return
            raise Corruption(
                f"offsets {self._state.start} to {offset - 1} are neither in a segment nor in the write-ahead log"
            )
        base = below[-1]
        path = self._segments.path(base)
        index = SegmentIndex.load(self._disk, path, Offset(base))
        summary = index.summary
        if summary is not None and summary.generation and summary.end_offset == offset and not self._cuts:
            # What compaction wrote stays as it is; the log went on in another file.
            self._open(offset, SegmentIndex(offset), create=True)
            self._state.forget_epochs(offset)
            return
        if summary is not None and summary.end_offset > offset:
            index = SegmentIndex(Offset(base), index.generation)
        self._open(base, index, create=False)
        file, growing = self._fill.file(), self._fill.growing
        size = file.size()
        if growing.size_bytes > size:
            raise Corruption(f"{path} has {size} bytes, {growing.size_bytes} were synced")
        if growing.end_offset < offset:
            epochs = () if self._state.saved is None else self._state.saved.epochs
            for batch, data in sound_batches_from(file, growing, size, epochs):
                if not growing.goes_on_with(batch):
                    break
                growing.add(batch, data)
                if growing.end_offset >= offset:
                    break
        if growing.end_offset != offset:
            raise Corruption(f"{path}: offset {offset} does not follow offset {growing.end_offset - 1}")
        if first:
            self._look_at_tail(file, size)
        self._state.forget_epochs(offset)

    def _require_state(self, until: Offset | None) -> None:
        """Raise StateMissing if there is no ``epochs`` file, batches do not tell what it held, and the log had some
        before offset, or position, ``until`` of the first record; None: some at all.

        Without older batches the write-ahead log has the log from its start, and there was no checkpoint.
        """
        if self._state.saved is not None or self.fault:
            return
        place, files = self.place, self._segments.files
        has_more = place.replicated or place.archived
        older = [name for base, name in files.items() if until is None or base < until]
        if has_more and any(self._disk.size(f"{place.directory}/{name}") for name in older):
            is_missing = True
        else:
            is_missing = not older and (until or 0) > (0 if has_more else self._state.start)
        if is_missing:
            raise StateMissing(missing_epochs(place.directory, replicated=place.replicated))

    def _derive_state(self, until: int) -> None:
        below = {int(base): name for base, name in self._segments.files.items() if base < until}
        if below:
            self._note(
                "epochs_rebuilt",
                f"{self.place.name}: {self.place.directory}/{EPOCHS_FILE} was missing and is derived from segments",
            )
            state = derive_state(self._disk, self.place.directory, below, until)
            self._state.begin_from(state)

    def _look_at_tail(self, file: File, size: int) -> None:
        """Say so when what was written behind is torn; it is written again either way."""
        position = self._fill.growing.size_bytes
        wanted = _READ_BYTES
        reason = ""
        while position < size and not reason:
            data = memoryview(read_at(file, position, min(wanted, size - position)))
            end = 0
            for batch in walk(data):
                if not batch_crc_ok(data[batch.position : batch.position + batch.size]):
                    reason = "a batch does not match its checksum"
                    break
                end = batch.position + batch.size
            wanted = _READ_BYTES
            if not end and not reason:
                try:
                    wanted = parse_batch(data, 0, position, size).size
                except WalkEnd:
                    reason = "the last batch is not whole"
            position += end
        if reason:
            self._note(
                "torn_segment",
                f"{self.place.name}: {file.path} is torn at byte {position} ({reason});"
                " written again from the write-ahead log",
            )

    def _open(self, base: Offset, index: SegmentIndex, *, create: bool) -> None:
        if create:
            make_directories(self._disk, self.place.directory)
        if topic := self.place.name.rpartition("/")[0]:
            label_topic(self._disk, os.path.dirname(self.place.directory), topic)
        self._fill.open(self._segments.path(base), base, index, create=create)
        self._segments.visit(base)
        self._chunk.forget()

    def _next_segment(self, base: Offset) -> None:
        """The current segment ends here; continue in the one that starts at ``base``, which may be there already."""
        fill = self._fill
        file = fill.truncate()
        self._indexes.append((file.path, fill.index, fill.growing.summary(sealed=True)))
        self._open(base, SegmentIndex(Offset(base)), create=True)

    def flush(self) -> None:
        """Write what was gathered."""
        self._fill.flush()

    # -- damage --------------------------------------------------------------------------------------------------------

    def _mend(self, until: int, what: str, where: str = "") -> None:
        """Take the batches up to offset ``until`` from the segment, if write-behind has put them there."""
        begin = self._fill.growing.end_offset
        self._take_from_segment(until)
        if self._fill.growing.end_offset != until:
            reason = f"offsets {self._fill.growing.end_offset} to {until - 1} {what}, and no segment has them"
            raise Corruption(f"{reason} ({where})" if where else reason)
        mended = f"{self.place.name}: offsets {begin} to {until - 1} {what}; the segment has them"
        self._note("other", f"{mended} ({where})" if where else mended)

    def _take_from_segment(self, until: int | None) -> None:
        """Keep the sound batches that stand after the current place."""
        self.flush()
        while not self._cuts:
            file, growing = self._fill.file(), self._fill.growing
            size = file.size()
            if growing.size_bytes >= size:
                if growing.end_offset not in self._segments.bases or growing.end_offset == self._fill.base:
                    return
                self._next_segment(Offset(growing.end_offset))
                continue
            try:
                head = read_at(file, growing.size_bytes, min(64, size - growing.size_bytes))
                batch = parse_batch(head, 0, growing.size_bytes, size)
            except WalkEnd:
                return
            if (
                batch.base_offset != growing.end_offset
                or (until is not None and batch.last_offset >= until)
                or sound_bytes(file, batch) is None
            ):
                return
            self._state.note_epoch(batch.leader_epoch, batch.base_offset)
            growing.add(batch)
            self._chunk.forget()

    def _fail(self, reason: str) -> None:
        self.fault = f"{self.place.name}: {reason}"
        self.flush()

    def _quarantine(self, record: WalRecord, payload: memoryview | None) -> None:
        """Put aside what can no longer be put in its place."""
        if payload is not None and not self._fenced and record.kind == Kind.BATCH:
            self._quarantined.put(record.base, payload)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Cut what lies after the last record, or put up the fence; the caller syncs, then calls ``describe``."""
        if self.uncertain and not self.fault:
            if self._begun:
                self._take_from_segment(None)
            self._fail(self.uncertain)
        if not self._state.has_entries:
            self._require_state(None)
        if self._cuts.lowest is not None:
            self._forget_producers(self._cuts.lowest)
        if not self.fault and (self._begun or self._state.reached):
            if self._begun:
                self._cut()
            else:
                self._remove_trimmed()
            self._chunk.sweep(self.place.directory)
        self._fill.close()
        if self.fault and not self._fenced:
            fence(self._disk, self.place.directory, self.fault)

    def _forget_producers(self, offset: int) -> None:
        """Remove what was known of the producers after a cut: it may speak of what was cut off."""
        for name in () if self.fault else names_in(self._disk, self.place.directory):
            known = parse_offset(name, PRODUCERS_SUFFIX)
            if known is not None and known > offset:
                self._disk.unlink(f"{self.place.directory}/{name}")

    def describe(self) -> list[str]:
        """Write what goes with the segments, which are durable now, under temporary names; the names to be given."""
        if self.fault:
            return self._describe_vote()
        files: list[tuple[str, bytes]] = []
        for path, index, summary in self._indexes:
            if summary.base_offset not in self._segments.visited:
                continue
            if index.whole and index.file_bytes:
                index.append_block(self._disk, path, summary)
            else:
                files.append((index_path(path), index.encode(summary)))
        state = self._state.result()
        if state != self._state.saved:
            files.append((f"{self.place.directory}/{EPOCHS_FILE}", encode_log_state(state)))
        if files:
            make_directories(self._disk, self.place.directory)
        for path, data in files:
            write_aside(self._disk, path, data, sync=False)
        return [path for path, _ in files]

    def _describe_vote(self) -> list[str]:
        """The log is fenced: what the ``epochs`` file says stays, but the vote is the newest."""
        saved, vote = self._state.saved, self._state.vote
        if saved is None or saved.vote == vote:
            return []
        path = f"{self.place.directory}/{EPOCHS_FILE}"
        write_aside(self._disk, path, encode_log_state(msgspec.structs.replace(saved, vote=vote)), sync=False)
        return [path]

    def _cut(self) -> None:
        fill, segments = self._fill, self._segments
        file = fill.truncate()
        for base in [one for one in segments.bases if one > segments.visited[0] and one not in segments.visited]:
            self._unlink(base)
        if fill.growing.size_bytes:
            self._indexes.append((file.path, fill.index, fill.growing.summary(sealed=False)))
        else:
            self._unlink(fill.base)
