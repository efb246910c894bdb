"""What a crash leaves of a deleted topic is removed by the next start; what nobody knows is left to a person."""

import random

import pytest

from millstream.app.stale_topics import remove_stale_topics
from millstream.cluster.state_files import load_state, pack_snapshot
from millstream.core.controller.commands import (
    ClusterCreated,
    PartitionState,
    TopicCreated,
    TopicDeleted,
    encode_command,
)
from millstream.storage.disk import make_directories, write_all
from millstream.tiers.purging import marked
from millstream.wire.records import build_batch
from sim.engine.disk import PowerFailure, SimDisk

KEPT, DELETED, STRANGE = (bytes([number]) * 16 for number in (1, 2, 3))


def put(disk, path, data=b"x"):
    make_directories(disk, path.rpartition("/")[0])
    write_all(disk.open(path, create=True), [data], 0)


def topic(name, topic_id, group):
    return TopicCreated(name, topic_id, (PartitionState(group, (1,), 1),), {})


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(0))
    commands = (
        ClusterCreated("c", 1),
        topic("kept", KEPT, 1),
        topic("deleted", DELETED, 2),
        TopicDeleted(DELETED, "deleted"),
    )
    records = [(None, encode_command(command), (), 0) for command in commands]
    put(disk, f"/data/controller/log/{0:020d}.log", build_batch(records))
    for topic_id in (KEPT, DELETED, STRANGE):
        put(disk, f"/data/topics/{topic_id.hex()}/topic", b"name\n")
        put(disk, f"/data/topics/{topic_id.hex()}/0/{0:020d}.log")
    disk.sync_all("/data")
    return disk


def topics(disk):
    return sorted(disk.list("/data/topics"))


def test_a_deletion_that_a_crash_cut_short_is_finished_and_what_is_unknown_stays(disk, capfd):
    remove_stale_topics(disk, "/data")
    assert topics(disk) == [KEPT.hex(), STRANGE.hex()]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"/data/topics/{STRANGE.hex()} belongs to no topic of this cluster; it is left as it is" in said[0]
    disk.crash(torn=False)
    assert topics(disk) == [KEPT.hex(), STRANGE.hex()]


def test_a_deleted_topic_is_marked_for_the_removal_of_its_objects_before_it_goes(disk):
    for step in range(1, 100):
        disk.crash_at = disk.operations + step
        try:
            remove_stale_topics(disk, "/data", archives=True)
        except PowerFailure:
            disk.crash(torn=True)
            assert f"{DELETED.hex()}" in disk.list("/data/topics") or marked(disk, "/data") == [DELETED.hex()]
            continue
        break
    assert step > 1
    assert marked(disk, "/data") == [DELETED.hex()]


def test_a_crash_at_any_point_of_it_leaves_nothing_that_looks_like_the_topic_in_the_end(disk):
    for step in range(1, 100):
        disk.crash_at = disk.operations + step
        try:
            remove_stale_topics(disk, "/data")
        except PowerFailure:
            disk.crash(torn=True)
            continue
        break
    assert step > 1
    assert topics(disk) == [KEPT.hex(), STRANGE.hex()]


def test_damage_that_a_snapshot_covers_does_not_end_the_start(disk, capfd):
    state, end = load_state(disk, "/data")
    put(disk, "/data/controller/snapshot.a", pack_snapshot(state))
    put(disk, f"/data/controller/log/{end:020d}.log", b"")
    disk.flip(f"/data/controller/log/{0:020d}.log", 70)
    remove_stale_topics(disk, "/data")
    assert topics(disk) == [KEPT.hex(), DELETED.hex(), STRANGE.hex()]
    said = capfd.readouterr().err
    assert "the list of deleted topics is lost: /data/controller/log/" in said
    assert f"/data/topics/{DELETED.hex()} belongs to no topic of this cluster; it is left as it is" in said


def test_nothing_happens_without_topics():
    remove_stale_topics(SimDisk(random.Random(0)), "/data")
