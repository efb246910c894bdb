"""Members change step by step, under the leader of the moment: learners, joint majorities, a leader that leaves."""

import pytest
from membership_support import Replicas

from millstream.core.raft.messages import Configuration
from millstream.core.raft.ready import Refusal, Role
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Term, TimeUs


def led(replicas):
    replicas.run(lambda: replicas.leader is not None and replicas.leader.is_serving)
    return replicas.leader


def test_a_replica_is_replaced_step_by_step():
    replicas = Replicas((1, 2, 3), (4,))
    leader = led(replicas)
    assert not leader.steer(TimeUs(replicas.now), (1, 2, 4), ())
    assert leader.replica.log.configuration == Configuration((1, 2, 3), (), (4,))
    assert not leader.steer(TimeUs(replicas.now), (1, 2, 4), ()), "the first change is not committed"
    replicas.steer((1, 2, 4))
    replicas.run(lambda: replicas.configuration(4) == Configuration((1, 2, 4)))
    assert leader.propose_members(TimeUs(replicas.now), (1, 2, 9), ()) is Refusal.NOT_CAUGHT_UP


def test_a_learner_that_is_not_there_is_no_voter_and_holds_nothing_up():
    replicas = Replicas((1, 2, 3), (4,))
    leader = led(replicas)
    replicas.cut = {4}
    before = replicas.now
    replicas.run(lambda: leader.steer(TimeUs(replicas.now), (1, 2, 4), ()) or replicas.now > before + 5_000_000)
    assert leader.replica.log.configuration == Configuration((1, 2, 3), (), (4,))
    assert replicas.leader is leader and leader.committed == leader.next_position
    replicas.steer((1, 2, 3))
    assert leader.replica.log.configuration == Configuration((1, 2, 3)), "the learner is given up again"


def test_a_learner_never_stands_and_its_vote_is_not_counted():
    replicas = Replicas((1, 2, 3), (4, 5))
    led(replicas)
    replicas.steer((1, 2, 3), (4, 5))
    replicas.cut = {1, 2}
    before = replicas.now
    replicas.run(lambda: replicas.now > before + 10_000_000)
    assert {replicas.cores[node].role for node in (4, 5)} == {Role.FOLLOWER}
    assert not replicas.cores[3].leads, "one voter of three, and two learners"


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_no_more():
    replicas = Replicas((1, 2, 3), (4,))
    leader = led(replicas)
    replicas.steer((4, 2, 3))
    gone = leader.replica.me
    assert gone == 1 and not leader.leads
    replicas.run(lambda: replicas.leader is not None and replicas.leader.is_serving)
    assert replicas.leader.replica.me != gone
    term = replicas.leader.term
    before = replicas.now
    replicas.run(lambda: replicas.now > before + 10_000_000)
    assert replicas.leader.term == term, "the removed replica disturbs nobody"


def test_a_joint_configuration_needs_both_majorities():
    replicas = Replicas((1, 2, 3), (4, 5))
    leader = led(replicas)
    replicas.steer((1, 2, 3), (4, 5))
    replicas.cut = {2, 3}
    assert leader.propose_members(TimeUs(replicas.now), (1, 4, 5), ()) is None
    replicas.drain(leader.replica.me)
    committed = leader.committed
    replicas.run(lambda: not leader.leads)
    assert leader.committed == committed, "1, 4 and 5 have it, and of 1, 2, 3 only 1"
    replicas.cut = set()
    replicas.steer((1, 4, 5))
    assert all(replicas.configuration(node) == Configuration((1, 4, 5)) for node in (1, 4, 5))


def test_the_next_leader_goes_on_where_the_last_one_was():
    replicas = Replicas((1, 2, 3), (4,))
    leader = led(replicas)
    leader.steer(TimeUs(replicas.now), (2, 3, 4), ())
    replicas.drain(leader.replica.me)
    replicas.cut = {1}
    replicas.steer((2, 3, 4))
    replicas.cut = set()
    replicas.run(lambda: not replicas.cores[1].leads)
    assert {replicas.configuration(node).voters for node in (2, 3, 4)} == {(2, 3, 4)}


def test_an_only_replica_becomes_three_and_one_again():
    replicas = Replicas((1,), (2, 3))
    led(replicas)
    replicas.steer((1, 2, 3))
    replicas.steer((3,))
    assert replicas.configuration(3) == Configuration((3,))


@pytest.mark.parametrize("unready", ["transfer", "follower"])
def test_no_step_is_taken_by_a_replica_that_hands_over_or_follows(unready):
    replicas = Replicas((1, 2, 3), (4,))
    leader = led(replicas)
    replicas.run(lambda: leader.transfer(TimeUs(replicas.now), ReplicaId(2)) is None)
    asked = leader if unready == "transfer" else replicas.cores[ReplicaId(3)]
    assert not asked.steer(TimeUs(replicas.now), (1, 2, 4), ())
    assert asked.replica.log.configuration == Configuration((1, 2, 3))


def test_the_order_of_the_voters_changes_in_one_step():
    replicas = Replicas((1, 2, 3))
    leader = led(replicas)
    assert not leader.steer(TimeUs(replicas.now), (3, 1, 2), ())
    assert leader.replica.log.configuration == Configuration((3, 1, 2))
    assert leader.replica.leader != NO_REPLICA and leader.term >= Term(1)
    assert leader.next_position > RaftPosition(0)
