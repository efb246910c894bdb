"""Three replicas of one group over the production log: elections, replication, fail-over, truncation, restarts."""

import pytest

from millstream.errors import Retriable
from millstream.model.replication import replica_id
from millstream.raft.group import GroupRole
from sim.brokers.world import Cluster

HANDOVER_US = 500_000
"""Far below the time after which a silent leader is replaced."""


def led(cluster: Cluster):
    assert cluster.run(lambda: cluster.leader() is not None), "nobody leads"
    leader = cluster.leader()
    assert leader is not None
    return leader


def append(cluster: Cluster, broker, values, **how) -> None:
    for value in values:
        assert broker.append(value, **how)
    last = values[-1]
    assert cluster.run(lambda: last in cluster.history.acknowledged), f"{last} is not acknowledged"


def test_the_first_voter_is_elected_and_batches_are_committed_everywhere() -> None:
    cluster = Cluster(1)
    leader = led(cluster)
    assert leader.replica == replica_id(1)
    append(cluster, leader, range(1, 21), count=3)
    cluster.settle()
    assert {one.group.high_watermark for one in cluster.brokers.values()} == {60}


def test_a_follower_takes_no_batch() -> None:
    cluster = Cluster(2)
    leader = led(cluster)
    follower = next(one for one in cluster.brokers.values() if one is not leader)
    with pytest.raises(Retriable, match="not the leader"):
        follower.group.replicate((memoryview(b"x"),), 1, 1, 0)
    cluster.settle()
    assert follower.group.leader == leader.replica
    assert follower.group.role is GroupRole.FOLLOWING


def test_another_replica_leads_after_a_crash_and_nothing_acknowledged_is_lost() -> None:
    cluster = Cluster(3)
    first = led(cluster)
    append(cluster, first, range(1, 11))
    first.crash()
    second = led(cluster)
    assert second is not first
    append(cluster, second, range(11, 21))
    cluster.heal()
    cluster.settle()
    assert len(cluster.history.acknowledged) == 20


def test_a_leader_that_leaves_hands_over_and_takes_no_leadership_again() -> None:
    cluster = Cluster(3)
    first = led(cluster)
    append(cluster, first, range(1, 11))
    assert first.group.leave()
    first.idle = False
    assert cluster.run(lambda: cluster.leader() not in (None, first), limit_us=HANDOVER_US)
    second = led(cluster)
    append(cluster, second, range(11, 21))
    assert not first.group.leave()
    second.crash()
    third = led(cluster)
    assert third not in (first, second)


def test_a_diverged_leader_is_cut_back() -> None:
    cluster = Cluster(4)
    first = led(cluster)
    append(cluster, first, range(1, 6))
    cluster.settle()
    others = [one for one in cluster.brokers.values() if one is not first]
    cluster.cut = {(first.replica, other.replica) for other in others}
    for value in range(100, 110):
        assert first.append(value)
    assert cluster.run(lambda: cluster.leader() in others)
    second = led(cluster)
    append(cluster, second, range(6, 11))
    cluster.heal()
    cluster.settle()
    assert cluster.history.seen["truncation"] >= 1
    assert not set(range(100, 110)) & set(cluster.history.acknowledged)
    assert {one.group.high_watermark for one in cluster.brokers.values()} == {10}


def test_all_brokers_crash_and_come_back() -> None:
    cluster = Cluster(5)
    append(cluster, led(cluster), range(1, 31), size=500)
    for broker in cluster.brokers.values():
        broker.crash()
    cluster.heal()
    leader = led(cluster)
    append(cluster, leader, range(31, 41))
    cluster.settle()
    assert leader.group.high_watermark == 40


def test_a_follower_that_was_away_catches_up_from_segments() -> None:
    cluster = Cluster(6)
    leader = led(cluster)
    away = next(one for one in cluster.brokers.values() if one is not leader)
    away.crash()
    append(cluster, leader, range(1, 201), size=700)
    cluster.heal()
    cluster.settle()
    assert away.group.high_watermark == 200


def test_the_log_start_is_agreed() -> None:
    cluster = Cluster(7)
    leader = led(cluster)
    append(cluster, leader, range(1, 41), size=700)
    leader.group.propose_log_start(25)
    leader.idle = False
    assert cluster.run(lambda: all(one.log.start_offset == 25 for one in cluster.brokers.values()))
    for broker in cluster.brokers.values():
        broker.crash()
    cluster.heal()
    cluster.settle()
    assert {one.log.start_offset for one in cluster.brokers.values()} == {25}


@pytest.mark.parametrize("seed", range(12, 16))
def test_a_new_leader_does_not_serve_before_its_own_disk_has_the_agreed_log_start(seed) -> None:
    cluster = Cluster(seed)
    leader = led(cluster)
    append(cluster, leader, range(1, 11))
    cluster.settle()
    others = [one for one in cluster.brokers.values() if one is not leader]
    leader.group.propose_log_start(5)
    leader.idle = False
    assert cluster.run(lambda: leader.log.start_offset == 5, 100_000)
    leader.crash()
    assert {one.log.start_offset for one in others} == {0}
    assert led(cluster).log.start_offset == 5


def test_leadership_is_handed_over() -> None:
    cluster = Cluster(8)
    leader = led(cluster)
    append(cluster, leader, [1])
    cluster.settle()
    resigned = []
    leader.group.events.on_resign = lambda: resigned.append(leader.group.high_watermark)
    leader.group.transfer(replica_id(3))
    leader.idle = False
    assert cluster.run(lambda: cluster.leader() is cluster.brokers[replica_id(3)], 1_000_000)
    assert resigned


def test_a_read_barrier_is_confirmed_by_the_leader_only() -> None:
    cluster = Cluster(9)
    leader = led(cluster)
    answers = []
    leader.group.read_barrier(answers.append)
    leader.idle = False
    assert cluster.run(lambda: bool(answers), 1_000_000)
    assert answers == [None]
    follower = next(one for one in cluster.brokers.values() if one is not leader)
    follower.group.read_barrier(answers.append)
    assert isinstance(answers[1], Retriable)
