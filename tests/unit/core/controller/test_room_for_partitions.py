"""Brokers have room for a bounded number of partitions: more are refused in words, and a move counts only itself."""

import re

import msgspec
import pytest
from controller_bench import Bench

from millstream.config.settings import Settings
from millstream.core.controller.commands import FEATURE_LEVEL, PartitionState
from millstream.core.controller.load import Load
from millstream.core.controller.requests import (
    AddPartitions,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    EvacuateBrokers,
    ReassignPartition,
    ReassignPartitions,
    SetReplicationFactor,
)
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode


@pytest.fixture
def small():
    """Two brokers that may have four partitions each."""
    return Bench(brokers=(1, 2), level=FEATURE_LEVEL, partitions_per_shard_max=4)


def test_a_topic_that_fills_the_brokers_is_created_and_one_partition_more_is_refused_in_words(small):
    assert not small.create(CreateTopic("full", 4, 2))[0].error
    for asked in (
        CreateTopics((CreateTopic("more", 1, 1),)),
        CreateTopics((CreateTopic("more", -1, -1, assignments=((0, (2,)),)),)),
        CreatePartitions((AddPartitions("full", 5),)),
        CreatePartitions((AddPartitions("full", 5, assignments=((2, 1),)),)),
    ):
        (result,) = small.do(asked)
        assert result.error == ErrorCode.POLICY_VIOLATION
        assert re.search(r"Broker [12] would have 5 partitions .*partitions\.per\.shard\.max allows 4", result.message)


def test_what_was_refused_takes_no_room_from_the_topics_after_it_in_the_request(small):
    results = small.create(CreateTopic("large", 9, 1), CreateTopic("fits", 8, 1))
    assert [bool(result.error) for result in results] == [True, False]


def test_a_replica_that_moves_or_is_added_needs_room_on_its_broker(small):
    assert not small.create(CreateTopic("a", -1, -1, assignments=tuple((i, (1,)) for i in range(4))))[0].error
    assert not small.create(CreateTopic("b", -1, -1, assignments=tuple((i, (2,)) for i in range(3))))[0].error
    moved = small.do(ReassignPartitions(tuple(ReassignPartition("a", index, (2,)) for index in (0, 1))))
    assert [result.error for result in moved] == [0, ErrorCode.POLICY_VIOLATION]
    (result,) = small.do(SetReplicationFactor("b", 2))
    assert result.error == ErrorCode.POLICY_VIOLATION
    assert not small.state.topics["b"].partitions[0].replicas[1:]


def test_internal_topics_and_the_moves_of_a_dead_broker_need_no_room(small):
    small.create(CreateTopic("full", 4, 2))
    assert not small.create(CreateTopic("__consumer_offsets", 50, 2))[0].error
    small.join(node=3)
    small.do(SetReplicationFactor("full", 2))
    small.fence(2)
    small.do(EvacuateBrokers((NodeId(2),)))
    assert small.state.load.replicas[3] > 4


def test_a_broker_that_is_no_cluster_has_room_by_its_own_shards():
    alone = Bench()
    settings = Settings(data_dir="/unused", shards=3, node_id=1, partitions_per_shard_max=4)
    alone.rules = msgspec.structs.replace(alone.rules, settings=settings, start_settings=settings)
    assert alone.create(CreateTopic("full", 12, 1))[0].error == 0
    assert "allows 12" in alone.create(CreateTopic("more", 1, 1))[0].message


def test_a_change_of_one_partition_counts_no_other():
    before, after, same = PartitionState(1, (1, 2), 1), PartitionState(1, (2, 3), 2), object()
    load = Load()
    load.add([before])
    load.change((before, same), (after, same, PartitionState(3, (3,), 3)))  # `same` cannot be counted
    assert (load.replicas, load.leaders) == ({2: 1, 3: 2}, {2: 1, 3: 1})
