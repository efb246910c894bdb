"""Brokers that are declared lost: their disks never come back, nothing is placed on them, others take their place."""

import msgspec
from controller_bench import Bench, disk

from millstream.core.controller.placement import candidates
from millstream.core.controller.quorum import Members, plan_members
from millstream.core.controller.requests import CreateTopic, DeclareLost, EvacuateBrokers
from millstream.core.controller.state import decode_state, encode_state
from millstream.model.error_code import ErrorCode

REASON = "burned"


def three(*lost):
    bench = Bench(brokers=(1, 2, 3), level=2)
    bench.create(CreateTopic("t", 2, 3))
    for node in lost:
        bench.fence(node)
    return bench


def test_a_lost_disk_is_retired_and_its_broker_is_refused_for_ever():
    bench = three(2, 3)
    decision = bench.decide(DeclareLost((2, 3), REASON))
    assert [command.reason for command in decision.commands] == [REASON, REASON]
    bench.do(DeclareLost((2, 3), REASON))
    registry = bench.state.registry
    assert registry.retired == {disk(2): 2, disk(3): 3}
    assert registry.brokers[2].is_lost and not registry.brokers[1].is_lost
    assert registry.brokers[2].replica != registry.brokers[3].replica
    refused = bench.register(2)
    assert refused.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "what it holds is outdated" in refused.message
    other = bench.register(2, incarnation=disk(22))
    assert "was declared lost: start it once with an empty directory and --replace" in other.message
    assert decode_state(encode_state(bench.state)) == bench.state


def test_a_broker_that_is_alive_is_not_lost_and_then_nobody_is():
    bench = three(3)
    for nodes in ((2, 3), (1,), (9,)):
        decision = bench.decide(DeclareLost(nodes, REASON))
        assert decision.results[0].error and not decision.commands
    assert "broker 2 is alive" in bench.do(DeclareLost((2, 3), REASON))[0].message


def test_declaring_twice_changes_nothing():
    bench = three(2)
    bench.do(DeclareLost((2,), REASON))
    decision = bench.decide(DeclareLost((2,), REASON))
    assert not decision.results[0].error and not decision.commands


def test_nothing_is_placed_on_a_lost_broker_until_another_disk_takes_its_place():
    bench = three(2, 3)
    bench.do(DeclareLost((2, 3), REASON))
    assert [one.node for one in candidates(bench.state)] == [1]
    assert plan_members(bench.state, (1, 2, 3)) == Members((1,), ())
    assert bench.create(CreateTopic("u", 1, 3))[0].error == ErrorCode.INVALID_REPLICATION_FACTOR
    bench.join(2, incarnation=disk(22), replace=True, replacement=22)
    assert [one.node for one in candidates(bench.state)] == [1, 2]
    assert not bench.state.registry.brokers[2].is_lost


def test_the_replicas_of_lost_brokers_move_where_enough_brokers_are_left():
    bench = three(2, 3)
    bench.do(DeclareLost((2, 3), REASON))
    assert not bench.decide(EvacuateBrokers((2, 3))).commands, "one broker is too few for three replicas"
    bench.join(4)
    bench.join(5)
    (moving,) = bench.decide(EvacuateBrokers((2, 3))).commands
    assert all({1, 4, 5} == set(change.replicas) for change in moving.changes)


def test_a_long_reason_is_cut():
    bench = three(2)
    (command,) = bench.decide(DeclareLost((2,), "x" * 9_999)).commands
    assert msgspec.structs.asdict(command)["reason"] == "x" * 500
