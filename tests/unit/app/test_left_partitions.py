"""Files of partitions that other brokers hold now go at the next start after a crash; a replica that lives never."""

import random

import pytest

from millstream.app.stale_topics import forget_note, remove_left_partitions, remove_stale_topics
from millstream.cluster.revision_marks import RECEIVED_PATH, read_note, write_mark, write_note
from millstream.cluster.snapshots import LaggingLog
from millstream.cluster.state_files import SnapshotStore, load_snapshot, load_state, newest_snapshot_file
from millstream.core.controller.commands import (
    MOVING_REPLICAS,
    BrokerRegistered,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    ReplicaChange,
    ReplicasChanged,
    ReplicasMoving,
    TopicCreated,
    TopicDeleted,
    encode_command,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.storage.disk import make_directories, write_all
from millstream.wire.records import build_batch
from sim.engine.disk import PowerFailure, SimDisk

ID, OTHER = bytes([1]) * 16, bytes([2]) * 16
ME = 1


def put(disk, path, data=b"x"):
    make_directories(disk, path.rpartition("/")[0])
    write_all(disk.open(path, create=True), [data], 0)


def registered(node):
    listener = ListenerAddress("PLAINTEXT", f"h{node}", 9092)
    profile = BrokerProfile((listener,), PeerAddress(f"h{node}", 9192), "", 1, "0.1.0", MOVING_REPLICAS)
    return BrokerRegistered(node, bytes([node]) * 16, profile)


def moving(index, nodes):
    return ReplicasMoving(ID, (ReplicaChange(index, nodes),))


def moved(index, nodes):
    return ReplicasChanged(ID, (ReplicaChange(index, nodes),))


COMMANDS = (
    ClusterCreated("c", 1),
    FeatureLevelRaised(MOVING_REPLICAS),
    *map(registered, (1, 2, 3, 4)),
    TopicCreated("t", ID, tuple(PartitionState(1 + n, (1, 2, 3), 1) for n in range(3)), {}),
    moving(0, (2, 3, 4)),
    moved(0, (2, 3, 4)),  # partition 0 has left this broker, and that is noted as committed
    TopicCreated("u", OTHER, (PartitionState(9, (1, 2), 1),), {}),
    moving(1, (2, 3, 4)),
    moved(1, (2, 3, 4)),  # partition 1 shall leave, which may not be committed
)


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(0))
    records = [(None, encode_command(command), (), 0) for command in COMMANDS]
    put(disk, f"/data/controller/log/{0:020d}.log", build_batch(records))
    for topic_id, count in ((ID, 3), (OTHER, 1)):
        for index in range(count):
            put(disk, f"/data/topics/{topic_id.hex()}/{index}/{0:020d}.log")
            put(disk, f"/data/topics/{topic_id.hex()}/{index}/epochs")
    write_mark(disk, "/data", len(COMMANDS) - 2)
    disk.sync_all("/data")
    return disk


def partitions(disk, topic_id=ID):
    return sorted(disk.list(f"/data/topics/{topic_id.hex()}"))


def test_what_has_left_goes_and_what_may_still_be_held_stays(disk, capfd):
    remove_left_partitions(disk, "/data", ME)
    assert partitions(disk) == ["1", "2"]
    assert partitions(disk, OTHER) == ["0"]
    assert "/0 is removed: other brokers hold this partition now" in capfd.readouterr().err
    disk.crash(torn=False)
    assert partitions(disk) == ["1", "2"]


def test_nothing_goes_if_the_log_does_not_reach_what_was_noted(disk, capfd):
    write_mark(disk, "/data", len(COMMANDS) + 1)
    remove_left_partitions(disk, "/data", ME)
    assert partitions(disk) == ["0", "1", "2"]
    assert "the controller's log here is incomplete" in capfd.readouterr().err
    write_mark(disk, "/data", len(COMMANDS))
    remove_left_partitions(disk, "/data", ME)
    assert partitions(disk) == ["2"]


def test_what_was_received_of_a_partition_that_has_left_goes_with_it(disk):
    for name in ("0.12.staged", "1.12.staged"):
        put(disk, f"/data/topics/{ID.hex()}/{name}/{0:020d}.1.log")
    remove_left_partitions(disk, "/data", ME)
    assert partitions(disk) == ["1", "1.12.staged", "2"]


def test_a_crash_at_any_point_of_the_removal_is_completed_by_the_next(disk):
    for step in range(1, 100):
        disk.crash_at = disk.operations + step
        try:
            remove_left_partitions(disk, "/data", ME)
        except PowerFailure:
            disk.crash(torn=True)
            assert {"1", "2"} <= set(partitions(disk))
            continue
        break
    assert step > 3
    assert partitions(disk) == ["1", "2"]


def test_a_topic_that_was_deleted_while_this_broker_was_away_goes_with_the_snapshot_that_it_received(disk):
    state, end = load_state(disk, "/data")
    state.apply(TopicDeleted(OTHER, "u"))
    remove_stale_topics(disk, "/data", in_cluster=True)
    assert OTHER.hex() in disk.list("/data/topics"), "nothing says that it was deleted"
    write_note(disk, "/data", state.revision)
    remove_stale_topics(disk, "/data", in_cluster=True)
    assert OTHER.hex() in disk.list("/data/topics"), "the note came, and the snapshot did not"
    SnapshotStore(disk, "/data").replace_all(state)
    forget = read_note(disk, "/data")
    remove_stale_topics(disk, "/data", in_cluster=True)
    assert (disk.list("/data/topics"), forget) == ([ID.hex()], end + 1)
    forget_note(disk, "/data")
    assert read_note(disk, "/data") is None


def test_both_snapshots_are_the_one_that_was_received(disk):
    state, _ = load_state(disk, "/data")
    store = SnapshotStore(disk, "/data")
    store.replace_all(state)
    assert (store.revision, store.trim_before) == (state.revision, state.revision)
    assert load_snapshot(disk, "/data") == state
    found = newest_snapshot_file(disk, "/data")
    assert found is not None and found[0] == state.revision
    disk.unlink("/data/controller/snapshot.a")
    assert load_snapshot(disk, "/data") == state


def test_a_damaged_note_says_nothing(disk):
    write_note(disk, "/data", 3)
    assert read_note(disk, "/data") == 3
    disk.flip(f"/data/{RECEIVED_PATH}", 6)
    assert read_note(disk, "/data") is None


def test_a_lagging_log_keeps_commands_for_brokers_that_were_away():
    class Log:
        trimmed = None

        def trim_prefix(self, offset):
            self.trimmed = offset

    log = Log()
    LaggingLog(log, 100).trim_prefix(100)
    assert log.trimmed is None
    LaggingLog(log, 100).trim_prefix(150)
    assert log.trimmed == 50
