"""Storage under random histories and power failures: what recovery finds is explained by what was asked and promised.

Then the same with a bug planted in the storage, one at a time: a model that cannot find those proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from storage_history import History

from millstream.errors import MillstreamError
from millstream.format import wal as wal_format
from millstream.format import wal_scan
from millstream.format.index import SegmentSummary
from millstream.storage import cutting, recovery
from millstream.storage.disk import replace_file
from millstream.storage.segment_files import SegmentFiles
from millstream.storage.wal import Wal
from millstream.storage.worker import Worker
from millstream.storage.write_behind import WriteBehind
from millstream.telemetry.log import log as operator_log
from millstream.testing.sim_disk import SimFile

OPERATIONS = 120
SEEDS = range(60)
PLANTED_SEEDS = 120
"""Every planted bug shows within so many histories; most within ten."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Thousands of repairs are not worth a line each."""
    sink = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(operator_log._process, "fd", sink)
    yield
    os.close(sink)


@pytest.mark.parametrize("decade", range(0, len(SEEDS), 10))
def test_recovery_keeps_what_was_promised(decade: int) -> None:
    crashes = 0
    for seed in SEEDS[decade : decade + 10]:
        history = History(seed)
        history.play(OPERATIONS)
        crashes += history.crashes
    assert crashes >= 30


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
            replace_file(self._disk, *command.state)
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
            log.durable_start = offset
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
        durable = log.durable_position
        log.durable_position = log.next_position
        self.target = max(self.target, log.next_position)
        try:
            advance(self)
        finally:
            log.durable_position = durable

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

    def careless(log: Any, vote: bytes, done: Any) -> None:
        def durable() -> None:
            done()
            log.state_dirty = False

        save(log, vote, durable)

    patch.setattr(cutting, "save_vote", careless)


def cut_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A suffix is cut off the files while a crash may still bring it back."""

    def hasty(log: Any, offset: int, done: Any) -> None:
        if offset < log.next_offset:
            cutting._cut(log, offset)
        log.storage.wal.add_note(log, wal_format.Kind.TRUNCATE, offset, 0, (0, 0, 0), done)

    patch.setattr(cutting, "truncate_suffix", hasty)


PLANTED = [
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
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_model_finds_a_planted_bug(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            History(seed).play(OPERATIONS)
        except (AssertionError, MillstreamError):
            return
    pytest.fail(f"{plant.__doc__} Nobody noticed in {PLANTED_SEEDS} histories.")
