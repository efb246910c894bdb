"""What raises in a helper process, in a command about one log, ends that log."""

import errno
import os
import random

import pytest
from storage_support import append, new_shard, settle

from millstream.errors import MillstreamError
from millstream.format.names import QUARANTINE_FILE, quarantine_elsewhere
from millstream.format.quarantine import chunks
from millstream.model.quantities import Offset, TimestampMs
from millstream.storage.compaction.cleaner import Cleaner
from millstream.storage.disk import OF_NAMES, exists, read_file
from millstream.storage.messages.commands import EndPass, PutRewritten
from millstream.storage.recovery.set_aside import keep_batches, vote_set_aside
from millstream.storage.segments.files import SegmentFiles
from millstream.storage.segments.read_faults import HelperFault
from millstream.storage.segments.reads import Reader
from sim.engine.local_storage import LocalShard, Stopped, recover_locally


def planted(*_):
    raise ZeroDivisionError("planted")


@pytest.fixture
def bench():
    shard = new_shard(settings={"wal_bytes": 1 << 20})
    log, other = shard.open(1), shard.open(2)
    failures = []
    log.owner.on_failed = lambda verb, error: failures.append((verb, error))
    for one in (log, other):
        for _ in range(5):
            append(one, size=500)
    settle(shard)
    return shard, log, other, failures


def test_a_write_that_raises_ends_that_log(bench, monkeypatch):
    shard, log, other, failures = bench
    original = SegmentFiles.write
    monkeypatch.setattr(
        SegmentFiles,
        "write",
        lambda self, command: planted() if command.path.startswith(log.directory) else original(self, command),
    )
    log.behind.write(log.ends.durable_position)
    shard.run(lambda: bool(failures))
    (failure,) = failures
    assert failure[0] == "write behind" and isinstance(failure[1], HelperFault)
    assert "planted" in str(failure[1]) and "Traceback" in str(failure[1])
    other.behind.write(other.ends.durable_position)
    shard.run(lambda: other.ends.written_position == other.ends.durable_position)


CHANGES = [
    ("write", "write"),
    ("cut", "truncate"),
    ("remove", "unlink"),
    ("checkpoint", "create"),
    ("checkpoint", "rename"),
]
"""Commands about files of a log, and an operation of the disk that each needs."""


@pytest.mark.parametrize(
    ("verb", "kind", "code"),
    [
        (verb, kind, code)
        for verb, kind in CHANGES
        for code in sorted(OF_NAMES)
        if (kind, code) != ("unlink", errno.ENOENT)  # then it is removed
    ],
)
def test_a_file_that_another_program_has_taken_ends_its_log_and_no_shard(bench, verb, kind, code):
    shard, log, other, failures = bench
    if verb != "write":
        checkpointed(shard)
    log.owner.on_failed = lambda verb, error: (failures.append((verb, error)), shard.storage.cut_off(log))
    own = log.directory + "/"

    def taken(done, path):
        return code if done == kind and path.startswith(own) and not path.endswith(QUARANTINE_FILE) else 0

    shard.disk.fail = taken
    if verb == "write":
        log.behind.write(log.ends.durable_position)
    elif verb == "cut":
        log.truncate_suffix(Offset(3))
    elif verb == "remove":
        log.roll()
        append(log)
        settle(shard)
        log.trim_prefix(Offset(5))
    else:
        log.trim_prefix(Offset(1))  # its small file changes
        settle(shard)
        shard.storage.checkpoint(lambda: None)
    shard.run(lambda: bool(failures))
    assert os.strerror(code) in str(failures[0][1])
    append(other)
    settle(shard)
    checkpointed(shard)
    assert len(failures) == 1
    assert not shard.storage.checkpointer.failed_logs, "what the write-ahead log had of it is in its own file"
    shard.disk.fail = lambda kind, path: 0
    shard.storage.forget(log)
    again = shard.open(1)
    expected = {"cut": (0, 3), "remove": (5, 6), "checkpoint": (1, 5)}.get(verb, (0, 5))
    assert (again.start_offset, again.next_offset) == expected


def locked(shard, log, code, kinds=("create", "write", "sync", "rename", "mkdir", "truncate")):
    """No file of a log's directory can be changed."""
    shard.disk.fail = lambda kind, path: code if kind in kinds and path.startswith(log.directory) else 0


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EIO, errno.ENOTDIR])
def test_records_of_a_log_whose_directory_cannot_be_written_are_kept_elsewhere(bench, code):
    """Also over a start, in which the directory still cannot be written."""
    shard, log, other, failures = bench
    checkpointed(shard)
    log.owner.on_failed = lambda verb, error: (failures.append((verb, error)), shard.storage.cut_off(log))
    for one in (log, other):
        append(one)
    settle(shard)
    locked(shard, log, code)
    log.failed("a planted verb", ZeroDivisionError())
    checkpointed(shard)
    append(other)
    settle(shard)
    checkpointed(shard)
    assert not shard.storage.checkpointer.failed_logs and len(failures) == 1
    elsewhere = quarantine_elsewhere(log.directory)
    assert exists(shard.disk, elsewhere) and not exists(shard.disk, f"{log.directory}/{QUARANTINE_FILE}")
    shard.disk.crash(torn=False)
    recover_locally(shard.disk)
    shard = LocalShard(shard.disk, random.Random(1), clean=False)
    with pytest.raises(OSError, match=os.strerror(code)):
        shard.open(1)
    assert shard.open(2).next_offset == 7
    shard.disk.fail = lambda kind, path: 0
    assert shard.open(1).next_offset == 6
    assert not exists(shard.disk, elsewhere)


@pytest.mark.parametrize("kind", ["write", "create", "rename"])
def test_a_start_sets_records_aside_elsewhere_too(bench, kind):
    shard, log, other, _ = bench
    checkpointed(shard)
    for one in (log, other):
        append(one)
    settle(shard)
    shard.disk.crash(torn=False)
    locked(shard, log, errno.EACCES, (kind,))
    report = recover_locally(shard.disk)
    assert [one.partition(":")[0] for one in report.aside] == ["topic1/0"]
    shard = LocalShard(shard.disk, random.Random(1), clean=False)
    assert shard.open(2).next_offset == 6
    shard.disk.fail = lambda kind, path: 0
    assert shard.open(1).next_offset == 6


def test_what_was_set_aside_elsewhere_of_a_partition_that_is_deleted_is_removed(bench):
    shard, log, _, _ = bench
    checkpointed(shard)
    append(log)
    settle(shard)
    log.owner.on_failed = lambda verb, error: shard.storage.cut_off(log)
    locked(shard, log, errno.EACCES)
    log.failed("a planted verb", ZeroDivisionError())
    checkpointed(shard)
    shard.disk.fail = lambda kind, path: 0
    shard.storage.forget(log)
    shard.storage.delete_faulty(log.group, log.directory)
    shard.run(lambda: not shard.storage.removals.pending)
    assert not exists(shard.disk, quarantine_elsewhere(log.directory))


@pytest.mark.parametrize("taken_up", [keep_batches, vote_set_aside])
def test_what_was_set_aside_elsewhere_is_brought_home_before_any_use_of_it(bench, taken_up):
    shard, log, _, _ = bench
    checkpointed(shard)
    append(log)
    settle(shard)
    log.owner.on_failed = lambda verb, error: shard.storage.cut_off(log)
    locked(shard, log, errno.EACCES)
    log.failed("a planted verb", ZeroDivisionError())
    checkpointed(shard)
    shard.disk.fail = lambda kind, path: 0
    taken_up(shard.disk, log.directory)
    assert not exists(shard.disk, quarantine_elsewhere(log.directory))
    assert [one.records for one in chunks(bytes(read_file(shard.disk, f"{log.directory}/{QUARANTINE_FILE}")))]


@pytest.mark.parametrize("what", ["the segment", "the directory"])
def test_files_that_another_program_has_removed_end_their_log_and_no_shard(bench, what):
    shard, log, other, failures = bench
    checkpointed(shard)
    log.owner.on_failed = lambda verb, error: (failures.append((verb, error)), shard.storage.cut_off(log))
    for name in shard.disk.list(log.directory):
        if what == "the directory" or name.endswith(".log"):
            shard.disk.unlink(f"{log.directory}/{name}")
    if what == "the directory":
        shard.disk.remove_directory(log.directory)
    for one in (log, other):
        append(one)
    settle(shard)
    checkpointed(shard)
    assert len(failures) == 1
    append(other)
    settle(shard)
    checkpointed(shard)
    assert not shard.storage.checkpointer.failed_logs
    assert exists(shard.disk, f"{log.directory}/{QUARANTINE_FILE}"), "what came since the checkpoint before is kept"


@pytest.mark.parametrize("verb", ["read", "find"])
def test_a_read_that_raises_is_answered_and_ends_that_log(bench, monkeypatch, verb):
    shard, log, _, failures = bench
    shard.call(shard.storage.checkpoint)
    monkeypatch.setattr(Reader, verb, planted)
    if verb == "read":
        answer = shard.call(log.read_cold, Offset(0), log.durable_offset, 1 << 16, True)
    else:
        answer = shard.call(log.offset_for_timestamp, TimestampMs(1), log.durable_offset)
    assert isinstance(answer, MillstreamError)
    assert len(failures) == 1


@pytest.mark.parametrize("verb", ["_gather", "_rewrite"])
def test_a_pass_that_raises_leaves_a_log_that_is_served(monkeypatch, verb):
    shard = new_shard(settings={"wal_bytes": 1 << 20})
    log = shard.open(1, cleanup_policy=("compact",), segment_bytes=2000, min_cleanable_dirty_ratio=0.0)
    for _ in range(12):
        append(log, size=500)
        settle(shard)
    monkeypatch.setattr(Cleaner, verb, planted)
    compaction = shard.storage.compaction
    shard.run(lambda: log.group in compaction._uncleanable)
    assert not compaction.is_busy and not log.closed
    append(log)
    settle(shard)
    assert log.durable_offset == 13


def test_a_rename_of_the_cleaner_that_raises_is_a_reply_and_what_it_leaves_over_stays():
    class Disk:
        rename = unlink = staticmethod(planted)

    cleaner = Cleaner(Disk(), None)
    reply = cleaner.carry_out(PutRewritten(7, "/0/0.log"))
    assert (reply.id, reply.errno, reply.named) == (7, 0, False)
    assert "planted" in reply.fault
    assert cleaner.carry_out(EndPass("/0/0.log")) is None


def checkpointed(shard):
    done = []
    shard.storage.checkpoint(lambda: done.append(1))
    shard.run(lambda: bool(done))


def opened_again(shard, log, monkeypatch):
    """Start and end of a log that failed, as a repair opens it."""
    monkeypatch.undo()
    shard.storage.forget(log)
    again = shard.open(1)
    return again.start_offset, again.next_offset


@pytest.mark.parametrize("step", ["write_index", "_write_aside", "_put_in_place"])
def test_a_file_that_raises_in_a_checkpoint_ends_its_log_and_the_others_are_durable(bench, monkeypatch, step):
    shard, log, other, failures = bench
    for one in (log, other):
        one.trim_prefix(Offset(1))  # its small file changes
    settle(shard)
    original = getattr(SegmentFiles, step)
    monkeypatch.setattr(
        SegmentFiles,
        step,
        lambda self, path, *rest: planted() if path.startswith(log.directory + "/") else original(self, path, *rest),
    )
    log.owner.on_failed = lambda verb, error: (failures.append((verb, error)), shard.storage.cut_off(log))
    state = shard.storage.checkpointer._covered
    checkpointed(shard)
    (failure,) = failures
    assert failure[0] == "checkpoint" and "planted" in str(failure[1])
    assert shard.storage.checkpointer._covered > state, "the next one makes the frames void"
    assert not shard.storage.checkpointer.failed_logs, "what the write-ahead log had of it is in its own file"
    append(other)
    settle(shard)
    checkpointed(shard)
    assert len(failures) == 1
    assert opened_again(shard, log, monkeypatch) == (1, 5)


def test_a_log_that_failed_is_set_aside_by_one_checkpoint_although_a_frame_is_on_its_way(bench, monkeypatch):
    shard, log, other, _ = bench
    begun, done = [], []
    request = shard.storage.checkpointer.request
    monkeypatch.setattr(shard.storage.checkpointer, "request", lambda call: (begun.append(1), request(call)))
    append(log)
    append(other)
    shard.storage.cut_off(log)
    assert shard.storage.wal.last_sequence >= shard.storage.wal.durable_sequence
    shard.storage.when_set_aside(log.group, lambda: done.append(1))
    shard.run(lambda: bool(done))
    assert not shard.storage.checkpointer.failed_logs
    assert len(begun) == 1
    shard.storage.when_set_aside(log.group, lambda: done.append(1))
    assert len(done) == 2, "at once"


def test_a_state_of_the_write_ahead_log_that_cannot_be_read_ends_the_shard_with_the_reason(bench):
    shard, log, _, _ = bench
    shard.storage.cut_off(log)
    shard.disk.fail = lambda kind, path: errno.EIO if kind == "read" and "/wal/0/state" in path else 0
    with pytest.raises(Stopped, match="nothing says which frames"):
        checkpointed(shard)


@pytest.mark.parametrize("verb", ["cut", "remove"])
def test_a_change_of_files_that_raises_ends_that_log_and_pins_nothing(bench, monkeypatch, verb):
    shard, log, other, failures = bench
    checkpointed(shard)
    log.owner.on_failed = lambda verb, error: (failures.append((verb, error)), shard.storage.cut_off(log))
    monkeypatch.setattr(SegmentFiles, verb, planted)
    if verb == "cut":
        log.truncate_suffix(Offset(3))
    else:
        log.roll()
        append(log)
        settle(shard)
        log.trim_prefix(Offset(5))
    shard.run(lambda: bool(failures))
    assert "planted" in str(failures[0][1])
    assert not shard.storage.checkpointer.changes
    append(other)
    settle(shard)
    checkpointed(shard)
    assert not shard.storage.checkpointer.failed_logs
    assert opened_again(shard, log, monkeypatch) == ((0, 3) if verb == "cut" else (5, 6))


def test_a_directory_that_cannot_be_removed_is_tried_again(bench, monkeypatch):
    shard, log, other, failures = bench
    original = SegmentFiles.remove_directory
    tries = []

    def once(self, directory):
        tries.append(directory)
        return planted() if len(tries) == 1 else original(self, directory)

    monkeypatch.setattr(SegmentFiles, "remove_directory", once)
    done = []
    shard.storage.delete_log(log, lambda: done.append(1))
    shard.run(lambda: bool(done))
    assert len(tries) == 2 and not failures
    append(other)
    settle(shard)
