"""Deleting a partition beside a checkpoint, and beside another shard that deletes its own; syncing many files."""

import errno
import os
import random
import threading
from pathlib import Path

import pytest
from storage_support import FAULTS

from millstream.format.index import SegmentSummary
from millstream.storage.disk import SystemDisk, SystemFile, read_text
from millstream.storage.messages.commands import Checkpoint, Write
from millstream.storage.segments.broken_logs import BrokenLogs
from millstream.storage.segments.files import SegmentFiles, label_topic
from millstream.storage.throttle import Throttle
from sim.engine.disk import SimDisk

ARENA = memoryview(bytes(range(256)))


class HookedDisk(SystemDisk):
    """Calls a hook before it opens a file, lists a directory, or takes a name away."""

    def __init__(self) -> None:
        super().__init__()
        self.before_open = lambda path: None
        self.before_list = lambda path: None
        self.before_going = lambda path: None

    def open(self, path, *, create=False):
        self.before_open(path)
        return super().open(path, create=create)

    def list(self, path):
        self.before_list(path)
        return super().list(path)

    def unlink(self, path):
        self.before_going(path)
        super().unlink(path)

    def rename(self, source, target):
        self.before_going(source)
        super().rename(source, target)


@pytest.fixture
def disk():
    return HookedDisk()


def partition(tmp_path: Path, number: int) -> str:
    return f"{tmp_path}/topics/abc/{number}"


def segment(directory: str) -> str:
    return f"{directory}/00000000000000000000.log"


USED: list[SegmentFiles] = []
"""What a test has written with."""


@pytest.fixture(autouse=True)
def closed():
    """All of it is closed when the test ends."""
    yield
    while USED:
        USED.pop().files.close()


def written(files: SegmentFiles, directory: str) -> SegmentFiles:
    USED.append(files)
    assert files.write(Write(1, segment(directory), 0, [0, 100], [0, 0, 5], "orders")) == 100
    return files


def checkpoint(directory: str, *, sealed: bool = False) -> Checkpoint:
    summary = SegmentSummary(0, 10, 100, sealed=sealed)
    return Checkpoint(1, [(segment(directory), summary)], [(f"{directory}/epochs", b"0 0\n")], [])


@pytest.mark.parametrize("hurry_after", [None, 0, 5])
def test_many_files_are_synced_one_by_one_until_somebody_waits(tmp_path, disk, monkeypatch, hurry_after):
    files = SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS)
    throttle = files.throttle = Throttle(wait=lambda _: None)
    for number in range(40):
        written(files, partition(tmp_path, number))
    synced: list[str] = []
    sync, sync_all = SystemFile.sync, disk.sync_all

    def one(file: SystemFile) -> None:
        synced.append("one")
        if len(synced) == hurry_after:
            throttle.hurry(1)
        sync(file)

    def every(path: str) -> None:
        synced.append("all")
        sync_all(path)

    monkeypatch.setattr(SystemFile, "sync", one)
    disk.sync_all = every
    if hurry_after == 0:
        throttle.hurry(1)
    throttle.begin(1)
    files.sync()
    assert synced == ["one"] * (41 if hurry_after is None else hurry_after) + ["all"]
    synced.clear()
    files.sync()
    assert synced == []


@pytest.mark.parametrize("before", ["/abc", "/0", "/topic", ".log"])
def test_a_name_that_is_made_beside_a_checkpoint_is_durable_after_the_next(before):
    disk = SimDisk(random.Random(1))
    disk.make_directory("/data")
    disk.make_directory("/data/topics")
    disk.sync_all("/")
    directory = "/data/topics/abc/0"
    files = SegmentFiles(disk, "/data", ARENA, None, FAULTS)

    def sync_too(kind, path):
        if kind == "create" and path.endswith(before):
            files.sync_directories()

    disk.before = sync_too
    written(files, directory)
    disk.before = None
    files.sync()
    files.sync_directories()
    disk.crash(torn=False)
    assert dict(disk.files()) == {segment(directory): 100, "/data/topics/abc/topic": 7}


def test_a_label_that_found_the_disk_full_is_completed():
    disk = SimDisk(random.Random(1))
    disk.make_directory("/abc")
    disk.capacity_bytes = 3
    with pytest.raises(OSError, match="No space"):
        label_topic(disk, "/abc", "orders")
    disk.capacity_bytes = None
    assert label_topic(disk, "/abc", "orders")
    assert not label_topic(disk, "/abc", "orders")
    assert read_text(disk, "/abc/topic") == "orders"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_checkpoint_passes_over_a_partition_that_was_deleted_since_it_was_asked_for(tmp_path, disk, sealed):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)
    asked = checkpoint(directory, sealed=sealed)
    files.remove_directory(directory)
    files.sync()
    files.finish(asked, BrokenLogs())
    assert os.listdir(f"{tmp_path}/topics") == []


@pytest.mark.parametrize("sealed", [False, True])
def test_a_partition_that_comes_back_behind_a_checkpoint_after_its_deletion_has_all_its_files(tmp_path, disk, sealed):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)
    files.sync()
    files.finish(checkpoint(directory, sealed=sealed), BrokenLogs())
    files.remove_directory(directory)
    assert os.listdir(f"{tmp_path}/topics") == []
    files.forget_removed(files.removed_directories())
    written(files, directory)
    files.sync()
    files.finish(checkpoint(directory, sealed=sealed), BrokenLogs())
    assert "epochs" in os.listdir(directory)


@pytest.mark.parametrize("name", [".index", "epochs"])
def test_a_partition_is_not_deleted_while_a_checkpoint_makes_a_file_in_it(tmp_path, disk, name):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)
    deletion = threading.Thread(target=files.remove_directory, args=(directory,))

    def delete_now(path: str) -> None:
        if name in path and deletion.ident is None:
            deletion.start()
            deletion.join(0.05)  # it must wait for this file; were it not to, it would be done long before

    disk.before_open = delete_now
    files.sync()
    files.finish(checkpoint(directory, sealed=True), BrokenLogs())
    deletion.join(120)
    assert not deletion.is_alive()
    assert os.listdir(f"{tmp_path}/topics") == []


def test_two_shards_may_delete_their_partitions_of_a_topic_at_the_same_time(tmp_path, disk):
    ours, theirs = partition(tmp_path, 0), partition(tmp_path, 1)
    mine = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), ours)
    other = written(SegmentFiles(SystemDisk(), str(tmp_path), ARENA, None, FAULTS), theirs)
    topic = os.path.dirname(ours)

    def other_is_quicker(path: str) -> None:
        if path == topic and os.path.exists(theirs):
            other.remove_directory(theirs)

    disk.before_list = other_is_quicker
    mine.remove_directory(ours)
    assert os.listdir(f"{tmp_path}/topics") == []
    mine.sync()
    mine.finish(checkpoint(ours), BrokenLogs())
    assert os.listdir(f"{tmp_path}/topics") == []


@pytest.mark.parametrize("what", ["segment", "partition"])
def test_a_segment_that_is_read_until_it_goes_is_not_left_open(tmp_path, disk, what):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)

    def read_now(path: str) -> None:
        if os.path.exists(segment(directory)):
            files.files.release(files.files.acquire(segment(directory)))

    disk.before_going = read_now
    if what == "segment":
        files.remove(segment(directory))
    else:
        files.remove_directory(directory)
    assert len(files.files) == 0


def test_a_segment_that_goes_while_a_checkpoint_ends_is_gone_durably_with_the_next(tmp_path, disk):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)
    disk.before_going = lambda path: files.sync_directories()
    files.remove(segment(directory))
    synced: list[str] = []
    disk.sync_directory = synced.append
    files.sync_directories()
    assert synced == [directory]


def test_a_partition_may_be_made_while_another_shard_deletes_its_topic(tmp_path, disk):
    ours, theirs = partition(tmp_path, 0), partition(tmp_path, 1)
    written(SegmentFiles(SystemDisk(), str(tmp_path), ARENA, None, FAULTS), theirs)
    label = f"{os.path.dirname(ours)}/topic"
    size, asked = disk.size, []

    def and_gone(path: str) -> int:
        found = size(path)
        asked.append(path)
        if path == label and asked.count(label) == 1:
            os.unlink(label)
        return found

    disk.size = and_gone
    written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), ours)


@pytest.mark.parametrize(
    ("refused", "at"), [("rename", 1), ("sync_directory", 1), ("unlink", 1), ("remove_directory", 1), ("unlink", 2)]
)
def test_a_deletion_that_the_disk_broke_off_goes_on_when_it_is_asked_for_again(
    tmp_path, disk, monkeypatch, refused, at
):
    directory = partition(tmp_path, 0)
    files = written(SegmentFiles(disk, str(tmp_path), ARENA, None, FAULTS), directory)
    do, calls = getattr(disk, refused), []

    def refuse_one(*paths: str) -> None:
        calls.append(paths)
        if len(calls) == at:
            raise OSError(errno.EIO, "Input/output error", *paths)
        do(*paths)

    monkeypatch.setattr(disk, refused, refuse_one)
    with pytest.raises(OSError, match="Input/output error"):
        files.remove_directory(directory)
    files.remove_directory(directory)
    assert os.listdir(f"{tmp_path}/topics") == []
