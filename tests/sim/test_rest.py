"""Groups at rest send no heartbeats, and every guard that heartbeats feed goes on as if they did."""

import pytest

from millstream.core.raft.messages import TimeoutNow
from millstream.core.raft.options import RaftOptions
from millstream.model.replication import Term
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.raft_items import RaftItem
from sim.brokers.world import GROUP, Cluster

pytestmark = pytest.mark.usefixtures("quiet")

SECOND = 1_000_000
OPTIONS = RaftOptions()


class Counted:
    """Counts what brokers send."""

    def __init__(self, cluster):
        self.items = []
        self.beats = 0
        for broker in cluster.brokers.values():
            self._watch(broker)

    def _watch(self, broker):
        say, beats = broker._say, broker.beats

        def counted_say(to, life, item):
            self.items.append(item)
            say(to, life, item)

        def counted_beats(to, what, *, reply):
            self.beats += len(what)
            beats(to, what, reply=reply)

        broker._say, broker.beats = counted_say, counted_beats


def resting(seed=1, **options):
    """A cluster whose group is at rest, with its sets watched in place of its deadlines, and its leader."""
    cluster = Cluster(seed, options=RaftOptions(**options))
    assert cluster.run(lambda: cluster.leader() is not None)
    cluster.leader().append(1)
    cluster.settle()
    assert cluster.run(lambda: bool(cluster.leader().raft._resting), 2 * SECOND)
    assert cluster.run(lambda: all(parked(broker) for broker in cluster.brokers.values()), 4 * SECOND)
    return cluster, cluster.leader()


def parked(broker):
    return broker.raft._deadlines.parked_count


def followers(cluster, leader):
    return [broker for broker in cluster.brokers.values() if broker is not leader]


def test_a_group_without_work_is_spared_heartbeats_and_keeps_its_leader_and_its_replicas_in_sync():
    cluster, leader = resting()
    counted = Counted(cluster)
    cluster.run(limit_us=60 * SECOND)
    assert counted.beats == 0
    assert {type(item) for item in counted.items} == {LedAgain, Followed}
    assert [broker.group.term for broker in cluster.brokers.values()] == [1, 1, 1]
    now = leader.shard.reactor.now_us()
    assert len(leader.group.peers) == 2
    assert all(now - peer.contact_us < SECOND for peer in leader.group.peers)


def test_no_deadline_of_a_group_at_rest_is_looked_at():
    cluster, leader = resting()
    cluster.run(limit_us=3 * SECOND)  # earlier deadlines
    looks = []
    for broker in cluster.brokers.values():
        renew = broker.raft.renew
        broker.raft.renew = lambda group, renew=renew: (looks.append(group), renew(group))
    cluster.run(limit_us=60 * SECOND)
    assert not looks
    leader.append(2)
    cluster.settle()
    assert not parked(leader), "a leader with work has its deadline"
    assert cluster.run(lambda: bool(parked(leader)), 4 * SECOND)


def test_a_group_rests_beside_a_replica_whose_broker_is_down_and_fills_it_when_it_is_back():
    cluster, leader = resting()
    down, other = followers(cluster, leader)
    down.crash()
    leader.append(2)
    assert cluster.run(lambda: bool(leader.raft._resting), 4 * SECOND)
    assert cluster.run(lambda: bool(parked(leader)), 4 * SECOND)
    counted = Counted(cluster)
    cluster.run(limit_us=20 * SECOND)
    assert counted.beats == 0
    assert (leader.group.term, other.group.term) == (1, 1)
    down.start()
    assert cluster.run(lambda: down.group.committed_position == leader.group.end_position, SECOND)
    assert leader.group.term == 1


def test_a_leader_that_rests_beside_a_replica_that_is_down_steps_down_without_the_other_one():
    cluster, leader = resting()
    down, other = followers(cluster, leader)
    down.crash()
    leader.append(2)
    assert cluster.run(lambda: bool(parked(leader)), 6 * SECOND)
    cluster.cut = {(other.replica, leader.replica)}
    assert cluster.run(lambda: not leader.group.leads, 3 * SECOND)


def test_a_leader_that_reaches_nobody_does_not_rest():
    cluster, leader = resting()
    for one in followers(cluster, leader):
        one.crash()
    assert cluster.run(lambda: not leader.group.leads, 3 * SECOND)


def test_the_deadline_comes_back_to_a_group_that_its_leader_has_taken_out_of_the_set():
    cluster, leader = resting()
    other = followers(cluster, leader)[0]
    heard = next(iter(other.raft._heard._sets.values()))
    session = next(iter(other.raft._heard._sets))[1]
    other.raft.on_led(leader.replica, Led(session, heard.number + 1, (), ()), lambda _: None)
    assert not parked(other)
    leader.crash()
    begun = cluster.now
    followers(cluster, leader)[1].crash()
    assert cluster.run(lambda: other.group.leader != leader.replica, 4 * SECOND)
    assert cluster.now - begun < OPTIONS.election_timeout_us + SECOND


def test_a_group_counts_as_at_rest_while_all_peers_answer():
    cluster, leader = resting()
    leader.raft.quiet()
    assert leader.raft.quiet() == {GROUP}
    silent = followers(cluster, leader)[0]
    cluster.cut = {(silent.replica, leader.replica)}
    cluster.run(limit_us=OPTIONS.election_timeout_us + SECOND // 2)
    assert leader.group.leads
    assert not leader.raft.quiet()


def test_what_a_client_appends_ends_the_rest_and_the_rest_comes_back():
    cluster, leader = resting()
    for value in range(2, 5):
        leader.append(value)
        assert not leader.raft._resting
        cluster.settle()
        assert all(broker.group.committed_position == leader.group.end_position for broker in cluster.brokers.values())
        assert cluster.run(lambda: bool(leader.raft._resting), 2 * SECOND)


def test_a_leader_that_dies_is_replaced_as_soon_as_without_rest():
    cluster, leader = resting()
    leader.crash()
    begun = cluster.now
    assert cluster.run(lambda: cluster.leader() is not None, 10 * SECOND)
    assert cluster.now - begun < OPTIONS.election_timeout_us + SECOND


def test_a_follower_at_rest_grants_no_vote_to_a_replica_that_was_cut_off():
    cluster, leader = resting(pre_vote=False)
    lonely = followers(cluster, leader)[0]
    # It does not hear the leader, and all hear it.
    cluster.cut = {(leader.replica, lonely.replica)}
    cluster.run(limit_us=10 * SECOND)
    other = followers(cluster, leader)[1]
    assert other.group.leader == leader.replica
    assert other.group.term == 1


def test_a_leader_at_rest_steps_down_when_no_majority_answers_and_another_one_leads_although_its_sets_arrive():
    cluster, leader = resting()
    cluster.cut = {(one.replica, leader.replica) for one in followers(cluster, leader)}
    assert cluster.run(lambda: not leader.group.leads, 4 * SECOND)
    assert cluster.run(lambda: any(one.group.is_serving for one in followers(cluster, leader)), 10 * SECOND)


def test_a_leader_at_rest_hears_that_its_followers_have_left_it():
    """The new leader can't tell the old one; the third replica follows the new one, and answers the old one's sets."""
    cluster, leader = resting()
    new, third = followers(cluster, leader)
    cluster.cut = {(new.replica, leader.replica)}
    new.raft.on_raft(leader.replica, RaftItem(GROUP, TimeoutNow(Term(1))), ())
    new.idle = False
    assert leader.raft._resting
    assert cluster.run(lambda: new.group.is_serving and third.group.leader == new.replica, SECOND)
    assert cluster.run(lambda: not leader.group.leads, SECOND)
    assert cluster.run(lambda: leader.group.term == new.group.term, SECOND)


def test_a_broker_that_restarts_is_told_what_is_committed_although_its_leader_rests():
    cluster, leader = resting()
    back = followers(cluster, leader)[0]
    back.crash()
    back.start()
    cluster.settle(5 * SECOND)
    assert back.group.committed_position == leader.group.end_position
    assert cluster.leader() is leader
    assert cluster.run(lambda: bool(leader.raft._resting), 4 * SECOND)


def test_a_set_that_is_lost_is_sent_again():
    cluster, leader = resting()
    other = followers(cluster, leader)[0]
    other.raft._heard._sets.clear()
    other.raft._heard._of.clear()
    assert cluster.run(lambda: not leader.raft._resting, SECOND)
    assert cluster.run(lambda: bool(leader.raft._resting) and GROUP in other.raft._heard._of, 4 * SECOND)
    assert leader.group.term == 1


def test_an_old_set_and_a_set_of_another_term_renew_nothing():
    cluster, leader = resting()
    other = followers(cluster, leader)[0]
    heard = next(iter(other.raft._heard._sets.values()))
    session = next(iter(other.raft._heard._sets))[1]
    answers = []
    other.raft.on_led(leader.replica, Led(session, heard.number + 1, (GROUP,), (9,)), answers.append)
    cluster.run(limit_us=0)
    other.raft._heard.answers()
    assert answers == [Followed(session, heard.number, True, (GROUP,))]
    before = heard.heard_us
    cluster.run(limit_us=1000)
    other.raft.on_led(leader.replica, Led(session, heard.number - 1, (GROUP,), (1,)), answers.append)
    assert len(answers) == 1
    assert heard.heard_us == before
    assert GROUP not in other.raft._heard._of


def test_a_replica_that_is_closed_is_left_out_of_the_answers():
    cluster, leader = resting()
    other = followers(cluster, leader)[0]
    other.checks = []
    other.raft.close(other.group)
    assert cluster.run(lambda: not leader.raft._resting, SECOND)
    cluster.run(limit_us=5 * SECOND)
    assert not leader.raft._resting
    assert leader.group.leads
