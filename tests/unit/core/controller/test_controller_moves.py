"""Replicas move: who may hold a partition, what a move remembers, which moves the controller begins by itself."""

import pytest
from controller_bench import Bench
from msgspec.structs import replace

from millstream.core.controller.balancing import MOVES_MAX
from millstream.core.controller.commands import BrokerUnregistered, ReplicaChange, ReplicasChanged, ReplicasMoving
from millstream.core.controller.replicas import Move, Origin
from millstream.core.controller.requests import (
    BalanceReplicas,
    CompleteMoves,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    EvacuateBrokers,
    ReassignPartition,
    ReassignPartitions,
    SetBrokerMode,
    SetReplicationFactor,
    TopicReference,
    UnregisterBroker,
)
from millstream.core.controller.state import decode_state, encode_state, state_hash
from millstream.errors import Corruption

FIVE = (1, 2, 3, 4, 5)


@pytest.fixture
def five():
    bench = Bench(brokers=FIVE, level=2)
    bench.create(CreateTopic("t", assignments=((0, (1, 2, 3)), (1, (2, 3, 1)))))
    return bench


def ask(bench, replicas, index=0, *, topic="t", factor=True):
    (result,) = bench.do(ReassignPartitions((ReassignPartition(topic, index, replicas),), factor))
    return result.error.name, result.message


def complete(bench, *moves):
    bench.do(CompleteMoves(moves))


def part(bench, index=0):
    return bench.state.topics["t"].partitions[index]


def test_a_partition_is_held_by_old_and_new_brokers_until_its_leader_says_that_it_has_moved(five):
    assert ask(five, (1, 2, 4)) == ("NONE", None)
    assert part(five).replicas == (1, 2, 4, 3)
    assert five.state.moves == {1: Move(five.state.topics["t"].topic_id, 0, (1, 2, 4), (1, 2, 3))}
    complete(five, (1, (1, 2, 5)), (2, (2, 3, 1)))
    assert part(five).replicas == (1, 2, 4, 3), "it speaks of another move"
    complete(five, (1, (1, 2, 4)))
    assert (part(five).replicas, five.state.moves) == ((1, 2, 4), {})
    assert five.state.origins == {1: Origin((1, 2, 3), (3,))}
    assert five.state.load.replicas == {1: 2, 2: 2, 3: 1, 4: 1}


def test_a_move_that_is_ended_goes_back_and_one_that_is_changed_goes_on(five):
    ask(five, (1, 2, 4))
    ask(five, (1, 5, 4))
    assert (part(five).replicas, five.state.moves[1].before) == ((1, 5, 4, 2, 3), (1, 2, 3))
    assert ask(five, None) == ("NONE", None)
    assert (part(five).replicas, five.state.moves[1].target) == ((1, 2, 3, 5, 4), (1, 2, 3))
    assert five.decide(ReassignPartitions((ReassignPartition("t", 0, None),))).commands == ()
    complete(five, (1, (1, 2, 3)))
    assert (part(five).replicas, five.state.origins[1].departed) == ((1, 2, 3), (5, 4))


@pytest.mark.parametrize(
    ("replicas", "changes", "code", "words"),
    [
        ((1, 2, 3), {"topic": "u"}, "UNKNOWN_TOPIC_OR_PARTITION", "Unable to find a topic named u."),
        ((1, 2, 3), {"index": 2}, "UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition t:2."),
        (None, {}, "NO_REASSIGNMENT_IN_PROGRESS", None),
        ((), {}, "INVALID_REPLICATION_ASSIGNMENT", "The manual partition assignment includes an empty replica list."),
        ((1, 9), {}, "INVALID_REPLICATION_ASSIGNMENT", "includes broker 9, but no such broker is registered."),
        ((1, 1), {}, "INVALID_REPLICATION_ASSIGNMENT", "includes the broker 1 more than once."),
        ((1, 2), {"factor": False}, "INVALID_REPLICATION_FACTOR", "The replication factor is changed from 3 to 2"),
        ((1, 2, 3), {}, "NONE", None),
    ],
)
def test_what_is_not_moved_is_answered_as_in_kafka(five, replicas, changes, code, words):
    error, message = ask(five, replicas, **changes)
    assert error == code
    assert (message is None) == (words is None)
    assert words is None or words in message
    assert five.state.moves == {}


def test_nothing_moves_while_a_broker_of_the_cluster_is_too_old():
    bench = Bench(brokers=(1, 2, 3))
    bench.create(CreateTopic("t", 1, 2))
    assert ask(bench, (3, 2)) == (
        "UNSUPPORTED_VERSION",
        "the cluster has feature level 1, and replicas move from level 2 on: finish the upgrade of every broker first",
    )
    for request in (SetReplicationFactor("t", 3), BalanceReplicas(), SetBrokerMode(2, "drained"), UnregisterBroker(2)):
        (result,) = bench.do(request)
        assert result.error.name == "UNSUPPORTED_VERSION"
    assert bench.decide(EvacuateBrokers((2,))).commands == ()


def test_a_broker_gets_a_replica_back_only_after_it_has_heard_that_it_lost_it(five):
    ask(five, (1, 2, 4))
    complete(five, (1, (1, 2, 4)))
    five.rules = replace(five.rules, is_behind=lambda node: node == 3)
    code, words = ask(five, (1, 2, 3))
    assert (code, "has yet to remove" in words) == ("INVALID_REPLICATION_ASSIGNMENT", True)
    assert ask(five, (1, 2, 5)) == ("NONE", None)
    complete(five, (1, (1, 2, 5)))
    five.rules = replace(five.rules, is_behind=lambda node: False)
    assert ask(five, (1, 2, 3)) == ("NONE", None)


def test_an_internal_topic_gets_no_replica_on_a_broker_that_has_yet_to_hear_that_it_lost_one():
    bench = Bench(brokers=(1, 2, 3), level=2)
    bench.create(CreateTopic("__consumer_offsets", 1))
    (before,) = bench.state.topics["__consumer_offsets"].partitions
    assert sorted(before.replicas) == [1, 2, 3]
    ask(bench, (1,), topic="__consumer_offsets")
    complete(bench, (before.raft_group, (1,)))
    bench.fence(2)
    bench.fence(3)
    bench.rules = replace(bench.rules, is_behind=lambda node: node == 3)
    bench.join(2)
    bench.join(3)
    assert not bench.state.moves
    bench.rules = replace(bench.rules, is_behind=lambda node: False)
    bench.fence(3)
    bench.join(3)
    assert [sorted(move.target) for move in bench.state.moves.values()] == [[1, 2, 3]]


def test_the_factor_of_a_topic_grows_by_the_least_loaded_and_shrinks_by_the_last_and_the_dead(five):
    (result,) = five.do(SetReplicationFactor("t", 5))
    assert (result.error.name, result.partitions) == ("NONE", 2)
    assert [sorted(move.target) for move in five.state.moves.values()] == [[1, 2, 3, 4, 5]] * 2
    assert five.do(SetReplicationFactor("t", 6))[0].error.name == "INVALID_REPLICATION_FACTOR"
    five.fence(2)
    five.do(SetReplicationFactor("t", 2))
    assert [move.target for move in five.state.moves.values()] == [(1, 3), (3, 1)]
    assert five.do(SetReplicationFactor("t", 0))[0].error.name == "INVALID_REPLICATION_FACTOR"
    assert five.do(SetReplicationFactor("x", 1))[0].error.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_broker_that_leaves_is_given_nothing_and_its_replicas_go_to_others(five):
    five.do(SetBrokerMode(2, "leaving"))
    assert ask(five, (1, 2, 4)) == (
        "INVALID_REPLICATION_ASSIGNMENT",
        "The manual partition assignment includes broker 2, which is leaving the cluster or lost.",
    )
    five.do(EvacuateBrokers())
    assert [move.target for move in five.state.moves.values()] == [(1, 4, 3), (5, 3, 1)]
    assert five.decide(EvacuateBrokers()).commands == ()
    complete(five, (1, (1, 4, 3)), (2, (5, 3, 1)))
    epoch = five.state.registry.brokers[2].epoch
    assert five.decide(EvacuateBrokers()).commands == (BrokerUnregistered(2, epoch),)
    five.do(EvacuateBrokers())
    assert five.state.registry.nodes() == (1, 3, 4, 5)
    assert five.state.registry.has_left(2)
    assert "broker 2 has left this cluster" in five.register(2).message


def test_a_broker_does_not_leave_when_the_others_are_too_few():
    bench = Bench(brokers=(1, 2, 3), level=2)
    bench.create(CreateTopic("t", 1, 3))
    (result,) = bench.do(SetBrokerMode(3, "leaving"))
    assert result.message.startswith("t/0 has 3 replicas, and without broker 3 there are 2 brokers: add a broker, or")
    assert bench.do(SetBrokerMode(9, "leaving"))[0].error.name == "BROKER_ID_NOT_REGISTERED"
    assert bench.state.registry.modes == {}


def test_replicas_of_a_dead_broker_move_as_far_as_a_majority_is_alive(five):
    five.create(CreateTopic("u", assignments=((0, (3,)),)), CreateTopic("v", assignments=((0, (3, 4)),)))
    five.fence(3)
    five.do(EvacuateBrokers((3, 4)))
    names = sorted(five.state.topics.by_id[move.topic_id].name for move in five.state.moves.values())
    assert names == ["t", "t"], "one of one, and one of two, are no majority; broker 4 is alive"
    assert all(3 not in move.target for move in five.state.moves.values())


def test_replicas_are_spread_over_a_broker_that_joined_and_not_moved_without_need():
    bench = Bench(brokers=(1, 2, 3), level=2)
    bench.create(CreateTopic("t", 20, 3))
    bench.join(4)
    (result,) = bench.do(BalanceReplicas())
    assert result.partitions == 15
    targets = [node for move in bench.state.moves.values() for node in move.target]
    assert targets.count(4) == 15
    complete(bench, *((group, move.target) for group, move in list(bench.state.moves.items())))
    assert bench.state.load.replicas == dict.fromkeys((1, 2, 3, 4), 15)
    assert bench.do(BalanceReplicas())[0].partitions == 0


def test_the_spread_keeps_racks_and_begins_a_bounded_number_of_moves():
    bench = Bench(level=2)
    for node, rack in ((1, "a"), (2, "b"), (3, "b")):
        bench.join(node, rack=rack)
    bench.do(CreateTopics((CreateTopic("t", assignments=tuple((index, (1, 2)) for index in range(200))),)))
    bench.do(BalanceReplicas())
    assert len(bench.state.moves) == MOVES_MAX
    assert {move.target for move in bench.state.moves.values()} == {(1, 3)}


def test_only_a_dead_broker_that_holds_nothing_is_forgotten_at_once(five):
    assert "is alive: 'millstream cluster decommission 5' moves" in five.do(UnregisterBroker(5))[0].message
    five.fence(3)
    assert "broker 3 holds 2 replicas" in five.do(UnregisterBroker(3))[0].message
    five.fence(5)
    assert not five.do(UnregisterBroker(5))[0].error
    assert five.do(UnregisterBroker(5))[0].error.name == "BROKER_ID_NOT_REGISTERED"


def test_moves_and_modes_survive_a_snapshot_and_go_with_their_topic(five):
    ask(five, (1, 2, 4))
    five.do(SetBrokerMode(5, "drained"))
    again = decode_state(encode_state(five.state))
    assert (again.moves, again.origins, again.registry.modes) == (five.state.moves, five.state.origins, {5: "drained"})
    assert state_hash(again) == state_hash(five.state)
    five.do(DeleteTopics((TopicReference("t"),)))
    assert (five.state.moves, five.state.origins) == ({}, {})


@pytest.mark.parametrize(
    "command",
    [
        ReplicasMoving((1).to_bytes(16, "big"), ()),
        ReplicasMoving((1).to_bytes(16, "big"), (ReplicaChange(2, (1,)),)),
        ReplicasMoving((1).to_bytes(16, "big"), (ReplicaChange(0, (1, 9)),)),
        ReplicasChanged((1).to_bytes(16, "big"), (ReplicaChange(0, (1, 1)),)),
        BrokerUnregistered(1, 0),
        BrokerUnregistered(5, 0),
        BrokerUnregistered(9, 0),
    ],
)
def test_a_command_that_contradicts_the_state_changes_nothing(five, command):
    before = state_hash(five.state)
    with pytest.raises(Corruption):
        five.state.apply(command)
    assert state_hash(five.state) == before
