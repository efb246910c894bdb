"""Bugs planted in the storage, one at a time: a model that cannot find those proves nothing.

Each is a function of a `MonkeyPatch`; its docstring says what is broken.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec
import pytest

from millstream.format import wal as wal_format
from millstream.format import wal_scan
from millstream.format.events.chunk import DATA_SUFFIX, SUFFIXES
from millstream.format.index import SegmentSummary
from millstream.format.names import STATE_COPY_FILE, STATE_FILE, parse_segment
from millstream.iobuf.room import release_all
from millstream.partition import lifecycle
from millstream.partition.append.internal import _InternalAppend
from millstream.storage.chunks.chunk_disk import ChunkDisk
from millstream.storage.chunks.chunk_segment import CUT_ORDER, ChunkSegment
from millstream.storage.disk import exists, replace_file
from millstream.storage.log import cutting
from millstream.storage.log.log import Log
from millstream.storage.log.snapshots import Snapshots
from millstream.storage.log.write_behind import WriteBehind
from millstream.storage.processes.worker import Worker
from millstream.storage.recovery import recovery
from millstream.storage.recovery.replay import LogReplay
from millstream.storage.segments import files as segment_files
from millstream.storage.segments import reads as segment_reads
from millstream.storage.segments.files import SegmentFiles
from millstream.storage.wal import opening
from millstream.storage.wal.state import write_wal_state
from millstream.storage.wal.wal import Wal
from sim.engine.disk import SimFile


def no_wal_sync(patch: pytest.MonkeyPatch) -> None:
    """Acknowledged before it is durable."""
    sync = SimFile.sync
    patch.setattr(SimFile, "sync", lambda file: None if file.path.endswith(".wal") else sync(file))


def wal_freed_too_early(patch: pytest.MonkeyPatch) -> None:
    """WAL files are used again before a checkpoint says that nobody needs them."""
    landed = Wal.landed

    def early(self: Any) -> None:
        landed(self)
        self.release(self.durable_sequence + 1)

    patch.setattr(Wal, "landed", early)


def torn_frames_taken_as_valid(patch: pytest.MonkeyPatch) -> None:
    """The payload of a frame is not checked."""
    patch.setattr(wal_scan, "_bad_payloads", lambda *_: frozenset())


def checkpoint_without_sync(patch: pytest.MonkeyPatch) -> None:
    """The WAL is freed though the segments are only in the page cache."""
    patch.setattr(SegmentFiles, "sync", lambda self: None)


def checkpoint_without_directories(patch: pytest.MonkeyPatch) -> None:
    """Segments are synced, their names are not."""
    patch.setattr(SegmentFiles, "sync_directories", lambda self: None)


def state_before_segments(patch: pytest.MonkeyPatch) -> None:
    """The WAL's frames are declared void before what they hold is durable elsewhere."""
    checkpoint = Worker._checkpoint

    def backwards(self: Any, command: Any) -> Any:
        if command.state is not None:
            write_wal_state(self._disk, *command.state)
        return checkpoint(self, command)

    patch.setattr(Worker, "_checkpoint", backwards)


def index_ahead_of_segment(patch: pytest.MonkeyPatch) -> None:
    """An index speaks of bytes that are not durable, and is believed after the crash."""
    write = SegmentFiles.write

    def eager(self: Any, command: Any) -> int:
        count = write(self, command)
        base = int(os.path.basename(command.path)[:20])
        size = command.position + count
        index = self.index(command.path, base)
        known = index.offsets[-1] + 1 if index.offsets else base
        self.write_index(command.path, SegmentSummary(base, known, size, sealed=True))
        return count

    patch.setattr(SegmentFiles, "write", eager)


def segments_removed_before_the_trim_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Files go first, the note that says so comes later."""
    trim = cutting.trim_prefix

    def hasty(log: Any, offset: int, done: Any) -> None:
        if log.start_offset < offset <= log.next_offset:
            log.ends.durable_start = offset
            cutting.drop_segments(log)
        trim(log, offset, done)

    patch.setattr(cutting, "trim_prefix", hasty)


def clean_marker_believed_twice(patch: pytest.MonkeyPatch) -> None:
    """What an orderly stop left is still taken for true after the next crash."""

    def lazy(disk: Any, data_dir: str, states: Any, shards: int) -> None:
        summaries: list[Any] = []
        for state in states.values():
            summaries += recovery.decode_summaries(state.logs)
        recovery.write_opened(disk, data_dir, summaries)

    patch.setattr(recovery, "_open_clean", lazy)


def segments_written_before_the_wal(patch: pytest.MonkeyPatch) -> None:
    """Bytes reach a segment that the WAL does not hold yet."""
    advance = WriteBehind.advance

    def eager(self: Any) -> None:
        log = self._log
        durable = log.ends.durable_position
        log.ends.durable_position = log.next_position
        self.target = max(self.target, log.next_position)
        try:
            advance(self)
        finally:
            log.ends.durable_position = durable

    patch.setattr(WriteBehind, "advance", eager)
    patch.setattr(Wal, "arm", _advance_all(Wal.arm))


def _advance_all(arm: Any) -> Any:
    def armed(self: Any) -> None:
        arm(self)
        for log in self.tick.logs:
            if not log.behind.under_way:
                log.behind.advance()

    return armed


def vote_forgotten_by_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A vote is in the WAL and nowhere else when the WAL is freed."""
    save = cutting.save_vote

    def careless(log: Any, vote: Any, done: Any) -> None:
        def durable() -> None:
            done()
            log.files.state_dirty = False

        save(log, vote, durable)

    patch.setattr(cutting, "save_vote", careless)


def cut_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A suffix is cut off the files while a crash may still bring it back."""

    def hasty(log: Any, end: int, done: Any) -> None:
        offset = log.raft.controls.offset_at(end)
        if end < log.next_raft_position:
            cutting._cut(log, offset, end)
        log.host.wal.add_note(log, wal_format.Kind.TRUNCATE, offset, end, (0, 0, 0), done)

    patch.setattr(cutting, "truncate_to", hasty)


def truncation_forgets_the_producers(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of the producers survives a cut before it, and is believed when the log has grown past it again."""
    patch.setattr(Snapshots, "drop", lambda snapshots, offset: [])


def producers_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """After a crash the producers are what the last snapshot says, and the batches behind it are forgotten."""
    patch.setattr(Log, "replay_headers", lambda log, offset, each: None)


def commit_acked_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is told that its batch is committed when it is appended."""

    def start(self: Any, outcome: Any) -> None:
        self.base_offset = outcome[0] if isinstance(outcome, tuple) else -1
        self.done(outcome if self.base_offset < 0 else self.base_offset)

    patch.setattr(_InternalAppend, "start", start)


def log_start_goes_back(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint makes the note of a trim void and does not keep where the log starts."""
    durable_state = Log.durable_state

    def state(log: Any) -> Any:
        return msgspec.structs.replace(durable_state(log), start_offset=log.files.segments.first.base_offset)

    patch.setattr(Log, "durable_state", state)


def checkpoint_does_not_wait_for_a_stuck_write(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint syncs and frees while bytes that it covers are still on their way into the segment."""

    def at_once(self: Any, position: int, callback: Any) -> None:
        self.write(position)
        callback()

    patch.setattr(WriteBehind, "when_written", at_once)


def failed_sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A sync that failed is tried once more, and believed."""
    sync = SimFile.sync

    def stubborn(file: Any) -> None:
        try:
            sync(file)
        except OSError:
            sync(file)

    patch.setattr(SimFile, "sync", stubborn)


def full_disk_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    """A segment write that found the disk full counts as done."""
    write = SegmentFiles.write

    def careless(self: Any, command: Any) -> int:
        try:
            return write(self, command)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            ends = iter(command.spans)
            return sum(end - start for start, end in zip(ends, ends, strict=True))

    patch.setattr(SegmentFiles, "write", careless)


def reads_do_not_check(patch: pytest.MonkeyPatch) -> None:
    """A cold read hands out batches that do not match their checksums."""
    patch.setattr(segment_reads, "checksum", lambda views, start=0: _Anything())


class _Anything(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def a_damaged_header_ends_the_start(patch: pytest.MonkeyPatch) -> None:
    """One partition that cannot be walked keeps the broker from starting."""
    patch.setattr(lifecycle, "Corruption", _Nothing)
    patch.setattr(lifecycle, "is_of_the_shard", lambda error: True)


class _Nothing(Exception):
    pass


def the_second_copy_is_never_written_again(patch: pytest.MonkeyPatch) -> None:
    """Of the two files that say which frames are void, one stays as it was when the directory was made."""

    def write(disk: Any, directory: str, state: Any) -> None:
        if exists(disk, f"{directory}/{STATE_COPY_FILE}"):
            data = state if isinstance(state, bytes) else wal_format.encode_wal_state(state)
            replace_file(disk, f"{directory}/{STATE_FILE}", data)
        else:
            write_wal_state(disk, directory, state)

    for module in (recovery, segment_files, opening):
        patch.setattr(module, "write_wal_state", write)


def a_chunk_is_synced_without_its_data(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint syncs every file of a chunk but ``.data``."""

    def incomplete(self: Any) -> None:
        for suffix in SUFFIXES:
            if suffix != DATA_SUFFIX:
                file = self._files.acquire(self.chunk.path + suffix, create=True)
                file.sync()
                self._files.release(file)

    patch.setattr(ChunkSegment, "sync", incomplete)


def a_removed_chunk_is_forgotten_before_its_names_are_gone(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint opens a file of a chunk that is being removed, and the next chunk is written into it."""
    unlink = ChunkDisk.unlink

    def early(disk: Any, path: str) -> None:
        if parse_segment(os.path.basename(path)) is None:
            unlink(disk, path)
            return
        stem = disk.segment(path).chunk.path
        disk._segments.pop(path)
        disk._numbers.pop(os.path.dirname(path), None)
        for suffix in CUT_ORDER:
            disk._files.forget(stem + suffix)
            disk._disk.unlink(stem + suffix)

    patch.setattr(ChunkDisk, "unlink", early)


CRASH = [
    no_wal_sync,
    wal_freed_too_early,
    torn_frames_taken_as_valid,
    checkpoint_without_sync,
    checkpoint_without_directories,
    state_before_segments,
    index_ahead_of_segment,
    segments_removed_before_the_trim_is_durable,
    clean_marker_believed_twice,
    segments_written_before_the_wal,
    vote_forgotten_by_checkpoint,
    cut_before_it_is_durable,
    truncation_forgets_the_producers,
    producers_not_replayed,
    commit_acked_before_it_is_durable,
    log_start_goes_back,
    checkpoint_does_not_wait_for_a_stuck_write,
]
"""A power failure shows them."""


def control_entries_forgotten_by_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint makes control entries in the WAL void and does not keep them."""
    durable_state = Log.durable_state
    patch.setattr(Log, "durable_state", lambda log: msgspec.structs.replace(durable_state(log), controls=()))


def control_entries_survive_their_truncation(patch: pytest.MonkeyPatch) -> None:
    """A replay cuts batches, and not the control entries between and behind them."""
    truncate = LogReplay.apply

    def apply(self: Any, record: Any, payload: Any) -> None:
        if record.kind == wal_format.Kind.TRUNCATE:
            record = record._replace(last=1 << 40)
        truncate(self, record, payload)

    patch.setattr(LogReplay, "apply", apply)


def control_entry_counted_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    """A log says that its end is durable when a control entry is appended."""
    append_control = cutting.append_control

    def hasty(log: Any, term: Any, payload: bytes) -> Any:
        entry = append_control(log, term, payload)
        log.ends.durable = log.ends.durable._replace(raft_position=log.next_raft_position)
        return entry

    patch.setattr(cutting, "append_control", hasty)


def a_running_write_does_not_hold_its_memory(patch: pytest.MonkeyPatch) -> None:
    """What a cut takes out of the cache is free while the worker still writes from it."""
    advance = WriteBehind.advance

    def careless(behind: WriteBehind) -> None:
        advance(behind)
        release_all(behind._lent)
        behind._lent = []

    patch.setattr(WriteBehind, "advance", careless)


RAFT = [
    a_running_write_does_not_hold_its_memory,
    control_entries_forgotten_by_checkpoint,
    control_entries_survive_their_truncation,
    control_entry_counted_before_its_sync,
]
"""A power failure of a replica shows them."""

EVENTS = [
    a_chunk_is_synced_without_its_data,
    no_wal_sync,
]
"""A power failure of event topics shows them."""

FAULT = [failed_sync_tried_again, full_disk_taken_for_success]
"""A disk that fails shows them."""

EVENT_FAULT = [a_removed_chunk_is_forgotten_before_its_names_are_gone]
"""A disk that fails shows them in event topics."""

ROT = [reads_do_not_check, a_damaged_header_ends_the_start, the_second_copy_is_never_written_again]
"""Damage shows them."""
