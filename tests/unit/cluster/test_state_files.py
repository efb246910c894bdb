"""Loading the controller's state: what is trusted, what is refused, with which words."""

import os
import struct

import pytest

from millstream.cluster.revision_marks import write_mark
from millstream.cluster.state_files import (
    SnapshotStore,
    controller_log_directory,
    groups_in_log,
    load_state,
    pack_snapshot,
    read_snapshots,
)
from millstream.core.controller.commands import (
    BrokerRegistered,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    ProducerIdsAllocated,
    ReplicaChange,
    ReplicasChanged,
    ReplicasMoving,
    TopicCreated,
    TopicDeleted,
    encode_command,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.errors import Corruption
from millstream.model.cluster import FeatureLevel, Incarnation, NodeId
from millstream.storage.disk import SystemDisk
from millstream.wire.records import build_batch

DISK = SystemDisk()


def batch(base, *commands):
    return build_batch(((None, encode_command(command), (), 0) for command in commands), base_offset=base)


def ids(number):
    return ProducerIdsAllocated(number * 1000, 1000, 1)


@pytest.fixture
def data(tmp_path):
    os.makedirs(controller_log_directory(str(tmp_path)))
    return str(tmp_path)


def write(data, base, content):
    with open(os.path.join(controller_log_directory(data), f"{base:020d}.log"), "wb") as file:
        file.write(content)


def test_an_empty_directory_has_no_cluster(tmp_path):
    state, next_offset = load_state(DISK, str(tmp_path))
    assert (state.exists, next_offset) == (False, 0)


def test_the_log_alone_gives_the_state_over_several_segments(data):
    write(data, 0, batch(0, ClusterCreated("x", 1), ids(0)) + batch(2, ids(1)))
    write(data, 3, batch(3, ids(2)))
    state, next_offset = load_state(DISK, data)
    assert (state.cluster_id, state.next_producer_id, next_offset) == ("x", 3000, 4)


def test_a_snapshot_spares_the_log_before_it_and_may_lie_within_a_batch(data):
    whole = ControllerState()
    for command in (ClusterCreated("x", 1), ids(0), ids(1), ids(2), ids(3)):
        whole.apply(command)
    part = ControllerState()
    for command in (ClusterCreated("x", 1), ids(0), ids(1)):
        part.apply(command)
    SnapshotStore(DISK, data).save(part, lambda error: None)
    write(data, 2, batch(2, ids(1), ids(2)) + batch(4, ids(3)))
    assert load_state(DISK, data) == (whole, 5)


@pytest.mark.parametrize("cut", [1, 17, 40, 60, 70])
def test_a_batch_that_is_being_written_right_now_is_left_out(data, cut):
    tail = batch(1, ids(0))
    assert len(tail) > 70
    write(data, 0, batch(0, ClusterCreated("x", 1)) + tail[:cut])
    assert load_state(DISK, data)[1] == 1


def test_zeros_at_the_end_are_no_records(data):
    write(data, 0, batch(0, ClusterCreated("x", 1)) + bytes(4096))
    assert load_state(DISK, data)[1] == 1


def flipped(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (flipped(batch(0, ClusterCreated("x", 1)), 70), "does not match its checksum"),
        (batch(0, ClusterCreated("x", 1)) + batch(2, ids(0)), "offset 2 where 1 was expected"),
        (batch(0, ClusterCreated("x", 1), ClusterCreated("y", 1)), "contradicts itself"),
        (build_batch([(None, b"what", (), 0)]), "no command that this version knows"),
        (flipped(batch(0, ClusterCreated("x", 1)), 16), "no batch header"),
    ],
)
def test_a_log_that_is_not_what_was_written_is_refused_with_file_and_position(data, content, words):
    write(data, 0, content)
    with pytest.raises(Corruption, match=words) as caught:
        load_state(DISK, data)
    assert "00000000000000000000.log, byte " in caught.value.message


def test_a_torn_batch_before_the_last_segment_is_corruption(data):
    write(data, 0, batch(0, ClusterCreated("x", 1)) + batch(1, ids(0))[:-3])
    write(data, 2, batch(2, ids(1)))
    with pytest.raises(Corruption, match="longer than the file"):
        load_state(DISK, data)


def test_a_log_whose_beginning_no_snapshot_covers_is_refused(data):
    write(data, 5, batch(5, ids(0)))
    with pytest.raises(Corruption, match="starts at offset 5, but the newest readable snapshot ends at 0"):
        load_state(DISK, data)


def test_saving_alternates_between_the_slots_and_says_what_may_be_trimmed(data):
    store = SnapshotStore(DISK, data)
    state = ControllerState()
    trims = []
    for command in (ClusterCreated("x", 1), ids(0), ids(1)):
        state.apply(command)
        store.save(state, lambda error: trims.append(error))
        trims.append(store.trim_before)
    assert trims == [None, 0, None, 1, None, 2]
    assert [(slot, found.revision) for slot, found in read_snapshots(DISK, data)] == [
        ("snapshot.a", 3),
        ("snapshot.b", 2),
    ]
    reopened = SnapshotStore(DISK, data)
    assert (reopened.revision, reopened.trim_before) == (3, 2)
    state.apply(ids(2))
    reopened.save(state, lambda error: None)
    assert [slot for slot, _ in read_snapshots(DISK, data)] == ["snapshot.b", "snapshot.a"]


@pytest.mark.parametrize("damage", [b"", b"MSC1", b"junk" * 20, "flip", "cut"])
def test_a_broken_snapshot_is_told_from_a_whole_one(data, damage):
    state = ControllerState()
    state.apply(ClusterCreated("x", 1))
    good = pack_snapshot(state)
    if damage == "flip":
        damage = flipped(good, len(good) - 1)
    elif damage == "cut":
        damage = good[:-1]
    with open(os.path.join(data, "controller", "snapshot.a"), "wb") as file:
        file.write(damage)
    ((slot, found),) = read_snapshots(DISK, data)
    assert slot == "snapshot.a"
    assert isinstance(found, Corruption)
    write(data, 0, batch(0, ClusterCreated("x", 1), ids(0)))
    assert load_state(DISK, data)[1] == 2


def test_the_stored_form_of_a_snapshot_is_what_earlier_releases_wrote():
    """Golden bytes: a directory that exists must stay readable."""
    state = ControllerState()
    state.apply(ClusterCreated("x", 1))
    data = pack_snapshot(state)
    magic, _, size = struct.unpack_from("<4sIQ", data)
    assert (magic, size) == (b"MSC1", len(data) - 16)
    assert data[16:].hex() == (
        "88a776657273696f6e01a87265766973696f6e01aa636c75737465725f6964a178aa66697273745f6e6f646501"
        "af6e6578745f726166745f67726f757001b06e6578745f70726f64756365725f696400a6746f7069637390"
        "ac6e6f64655f636f6e6669677380"
    )


def test_recovery_of_a_cluster_s_broker_knows_groups_whose_deletion_may_not_be_committed(data):
    first, second = (
        TopicCreated(name, name.encode() * 16, (PartitionState(group, (1,), 1),), {})
        for name, group in (("a", 1), ("b", 2))
    )
    write(data, 0, batch(0, ClusterCreated("x", 1), first, second, TopicDeleted(first.topic_id, "a")))
    assert {group: (topic.name, index) for group, (topic, index) in groups_in_log(DISK, data).items()} == {
        1: ("a", 0),
        2: ("b", 0),
    }


def test_recovery_wants_the_groups_that_this_broker_may_still_hold(data):
    profile = BrokerProfile((ListenerAddress("A", "h", 1),), PeerAddress("h", 2), "", 1, "1", FeatureLevel(2))
    first = [
        ClusterCreated("x", 1),
        FeatureLevelRaised(FeatureLevel(1)),
        *(BrokerRegistered(NodeId(node), Incarnation(bytes([node]) * 16), profile) for node in (1, 2)),
        FeatureLevelRaised(FeatureLevel(2)),
        TopicCreated("t", bytes(16), (PartitionState(1, (1,), 1), PartitionState(2, (2,), 2)), {}),
        ReplicasMoving(bytes(16), (ReplicaChange(0, (2,)), ReplicaChange(1, (1,)))),
        ReplicasChanged(bytes(16), (ReplicaChange(0, (2,)), ReplicaChange(1, (1,)))),
    ]
    write(data, 0, batch(0, *first))
    assert groups_in_log(DISK, data).keys() == {1, 2}
    assert groups_in_log(DISK, data, 1).keys() == {1, 2}, "nobody has noted that it is committed"
    write_mark(DISK, data, len(first))
    assert groups_in_log(DISK, data, 1).keys() == {2}
    assert groups_in_log(DISK, data, 2).keys() == {1}
