"""Partitions on shards: even, steady, and never a reason not to start."""

import os

import pytest

from millstream.cluster.placement import FILE, Placement, load_placement, save_placement
from millstream.core.controller.commands import PartitionState, TopicCreated
from millstream.core.controller.state import ControllerState
from millstream.storage.disk import SystemDisk

DISK = SystemDisk()


def cluster(**topics):
    state = ControllerState()
    for number, (name, count) in enumerate(topics.items()):
        first = state.next_raft_group
        partitions = tuple(PartitionState(first + index, (1,), 1) for index in range(count))
        state.apply(TopicCreated(name, bytes([number] * 16), partitions, {}))
    return state


def test_a_topic_is_spread_first_and_then_the_shards_are_filled_evenly():
    placement = Placement(3)
    assert placement.place([1, 2]) == (0, 1)
    assert placement.place([3]) == (2,)
    assert placement.place([4, 5, 6, 7]) == (0, 1, 2, 0)
    assert placement.place([8]) == (1,)
    assert placement.counts == [3, 3, 2]


def test_new_partitions_of_a_topic_avoid_the_shards_that_have_some():
    placement = Placement(3)
    placement.place([1])
    placement.place([2, 3, 4, 5])
    assert placement.place([6], siblings=[1]) == (2,)


def test_what_is_deleted_makes_room():
    placement = Placement(2)
    placement.place([1, 2, 3])
    placement.forget([1, 3])
    assert placement.counts == [0, 1]
    assert placement.place([4]) == (0,)


def test_partitions_stay_where_they_were_over_a_restart(tmp_path):
    state = cluster(a=3, b=1)
    placement = Placement(2, {1: 1, 2: 1, 3: 0, 4: 1})
    save_placement(DISK, str(tmp_path), placement)
    assert load_placement(DISK, str(tmp_path), 2, state, 1).homes == placement.homes


def test_unknown_partitions_are_placed_and_forgotten_ones_dropped(tmp_path):
    save_placement(DISK, str(tmp_path), Placement(2, {1: 1, 99: 1}))
    loaded = load_placement(DISK, str(tmp_path), 2, cluster(a=3, b=1), 1)
    assert loaded.homes[1] == 1
    assert sorted(loaded.homes) == [1, 2, 3, 4]
    assert loaded.counts == [2, 2]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"shards":2,"homes":[[1,7]]}', b'{"shards":3,"homes":[[1,1]]}'])
def test_a_file_that_does_not_fit_is_ignored(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert load_placement(DISK, str(tmp_path), 2, cluster(a=4), 1).homes == {1: 0, 2: 1, 3: 0, 4: 1}
    assert os.listdir(tmp_path) == ([] if content is None else [FILE])
