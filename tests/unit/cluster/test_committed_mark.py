"""What a broker of a cluster removes from its disk, its next start knows of."""

import random
from types import SimpleNamespace

import pytest

from millstream.app.stale_topics import remove_stale_topics
from millstream.cluster.deletions import Deletions
from millstream.cluster.messages import Commit
from millstream.cluster.revision_marks import COMMITTED_PATH, read_mark, write_mark
from millstream.cluster.state_files import groups_in_log, load_committed
from millstream.core.controller.commands import (
    ClusterCreated,
    PartitionState,
    TopicCreated,
    TopicDeleted,
    encode_command,
)
from millstream.storage.disk import make_directories, read_file, write_all
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk

ONE, TWO = (bytes([number]) * 16 for number in (1, 2))
COMMANDS = (
    ClusterCreated("c", 1),
    TopicCreated("one", ONE, (PartitionState(1, (1, 2, 3), 1),), {}),
    TopicCreated("two", TWO, (PartitionState(2, (1, 2, 3), 1),), {}),
    TopicDeleted(ONE, "one"),
    TopicDeleted(TWO, "two"),
)


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(0))
    make_directories(disk, "/data/controller/log")
    records = [(None, encode_command(command), (), 0) for command in COMMANDS]
    write_all(disk.open(f"/data/controller/log/{0:020d}.log", create=True), [build_batch(records)], 0)
    for topic_id in (ONE, TWO):
        make_directories(disk, f"/data/topics/{topic_id.hex()}/0")
    return disk


@pytest.mark.parametrize(("mark", "known"), [(0, set()), (3, {"one", "two"}), (4, {"two"}), (5, set())])
def test_a_start_knows_what_is_noted_as_committed_and_no_more(disk, mark, known):
    if mark:
        write_mark(disk, "/data", mark)
    assert load_committed(disk, "/data").topics.keys() == known


def test_records_of_a_topic_whose_deletion_is_noted_are_not_replayed(disk):
    write_mark(disk, "/data", 4)
    assert groups_in_log(disk, "/data").keys() == {2}


def test_only_files_of_a_noted_deletion_are_removed(disk, capfd):
    write_mark(disk, "/data", 4)
    remove_stale_topics(disk, "/data", in_cluster=True)
    assert disk.list("/data/topics") == [TWO.hex()]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("mark", [5, 6])
def test_files_of_a_topic_that_was_created_again_under_its_id_are_kept(disk, mark, capfd):
    """As by a recovery from the object store, noted as committed or not yet."""
    again = build_batch([(None, encode_command(COMMANDS[2]), (), 0)], base_offset=len(COMMANDS))
    assert isinstance(COMMANDS[2], TopicCreated)
    assert COMMANDS[2].topic_id == TWO
    path = f"/data/controller/log/{0:020d}.log"
    file = disk.open(path)
    write_all(file, [again], file.size())
    write_mark(disk, "/data", mark)
    remove_stale_topics(disk, "/data", in_cluster=True)
    assert disk.list("/data/topics") == [TWO.hex()]


def test_a_damaged_mark_counts_for_nothing(disk, capfd):
    write_mark(disk, "/data", 4)
    assert read_mark(disk, "/data") == 4
    disk.flip(f"/data/{COMMITTED_PATH}", 20)
    assert read_mark(disk, "/data") == 0
    assert "controller/committed" in capfd.readouterr().err


def test_the_bytes_of_the_mark_do_not_change(disk):
    write_mark(disk, "/data", 4)
    golden = "4d53434d01000000080000006dc5004f0400000000000000"
    assert bytes(read_file(disk, f"/data/{COMMITTED_PATH}")).hex() == golden


class Rig:
    def __init__(self):
        self.timers = []
        self.marks = []
        self.followed = []
        self.settled = 0
        self.error = None
        reactor = SimpleNamespace(call_later=lambda _, callback: self.timers.append(callback))
        self.deletions = Deletions(reactor, self.mark, lambda: self.settled, lambda one: self.followed.append(one.end))

    def mark(self, revision):
        if self.error is not None:
            raise self.error
        self.marks.append(revision)


def test_a_deletion_waits_until_what_came_before_it_is_durable_and_is_noted_before_it_is_carried_out():
    rig = Rig()
    rig.deletions.pass_on(Commit(0, COMMANDS[:3], (0, 0)))
    rig.deletions.pass_on(Commit(3, COMMANDS[3:4], ()))
    rig.deletions.pass_on(Commit(4, COMMANDS[:1], ()))
    assert (rig.followed, rig.marks) == ([3], [])
    rig.settled = 3
    rig.deletions.advance()
    assert (rig.followed, rig.marks) == ([3, 4, 5], [4])


def test_a_mark_that_the_disk_refuses_is_tried_again(capfd):
    rig = Rig()
    rig.error = OSError(28, "No space left on device")
    rig.deletions.pass_on(Commit(0, COMMANDS[3:4], ()))
    rig.deletions.advance()
    assert rig.followed == []
    assert len(rig.timers) == 1
    rig.error = None
    rig.timers.pop()()
    assert rig.followed == [1]
    assert "a deletion waits" in capfd.readouterr().err
