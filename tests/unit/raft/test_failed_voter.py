"""A replica whose partition has failed votes from its durable term, and does nothing else."""

from functools import partial

import pytest

from millstream.core.raft.failed import FailedReplica
from millstream.core.raft.messages import (
    AppendReply,
    Heartbeat,
    Inquiry,
    InquiryReply,
    NewerTerm,
    VoteReply,
    VoteRequest,
)
from millstream.model.replication import NO_REPLICA, LogPoint
from millstream.raft.group import GroupRole
from sim.brokers.world import GROUP, Cluster

TIMEOUT_US = 1_500_000
LONG_AGO = -TIMEOUT_US


def request(term, position=10, of_term=3, *, pre=False, transfer=False):
    return VoteRequest(term, LogPoint(position, of_term), pre, transfer)


def failed(term=5, voted_for=NO_REPLICA, contact_us=LONG_AGO):
    return FailedReplica(term, voted_for, LogPoint(10, 3), TIMEOUT_US, contact_us)


def test_a_vote_is_given_once_a_term():
    one = failed()
    assert one.step(0, 1, request(6)) == (VoteReply(6, granted=True, pre=False), True)
    assert one.step(TIMEOUT_US, 1, request(6)).message.granted, "the answer was lost"
    assert not one.step(2 * TIMEOUT_US, 2, request(6)).message.granted
    assert one.step(4 * TIMEOUT_US, 2, request(7)).message.granted
    assert one.step(4 * TIMEOUT_US, 1, request(6)).message == NewerTerm(7)


@pytest.mark.parametrize(
    ("position", "of_term", "granted"), [(9, 3, False), (10, 3, True), (90, 2, False), (1, 4, True)]
)
def test_a_log_that_lacks_what_is_durable_here_gets_none(position, of_term, granted):
    for pre in (True, False):
        answer = failed().step(0, 1, request(6, position, of_term, pre=pre))
        assert answer.message == VoteReply(6 if granted or not pre else 5, granted=granted, pre=pre)
        assert answer.is_vote == (granted and not pre)


def test_a_question_before_an_election_changes_nothing():
    one = failed()
    assert one.step(0, 1, request(6, pre=True)).message.granted
    assert (one.term, one.voted_for) == (5, NO_REPLICA)


def test_the_vote_that_was_given_before_the_failure_holds():
    one = failed(voted_for=2)
    assert not one.step(0, 1, request(5)).message.granted
    assert one.step(0, 2, request(5)).message.granted


def test_who_hears_a_leader_deposes_it_only_when_the_leader_asks():
    one = failed()
    assert one.step(0, 1, Heartbeat(6, 10, 10, 1)) is None, "nothing is acknowledged"
    assert not one.step(1, 2, request(7, pre=True)).message.granted
    assert not one.step(1, 2, request(7)).message.granted
    assert one.step(1, 2, request(7, transfer=True)).message.granted
    assert failed().step(0, 1, Heartbeat(4, 10, 10, 1)) is None
    assert failed(contact_us=0).step(1, 2, request(6)).message == VoteReply(5, granted=False, pre=False)


def test_a_replica_that_has_lost_its_log_hears_the_term():
    assert failed().step(0, 2, Inquiry(0, 77)).message == InquiryReply(5, 77, 10, leads=False)
    assert failed().step(0, 2, AppendReply(5, 10, 10, 1)) is None


# Three replicas over the production log


def fail(broker):
    """As `partition.boundary`."""
    log, storage = broker.log, broker.shard.storage
    has_led = broker.group.role is GroupRole.LEADING
    broker.checks = []
    broker.group.halt()
    storage.cut_off(log)
    broker.raft.vote_on(log, partial(storage.checkpointer.failed_logs.add, log), has_led=has_led)
    broker.raft.close(broker.group)
    storage.forget(log)
    broker.idle = False


def open_again(cluster, broker):
    """As a repair: what was voted meanwhile is in the log."""
    checkpointer = broker.shard.storage.checkpointer
    broker.raft.stop_voting(GROUP)
    broker.shard.storage.checkpoint(lambda: None)
    broker.idle = False
    assert cluster.run(lambda: GROUP not in checkpointer.failed_logs)
    broker.open_groups(broker.shard, clean=False)
    broker.idle = False


def led(cluster):
    assert cluster.run(lambda: cluster.leader() is not None), "nobody leads"
    return cluster.leader()


def append(cluster, broker, values):
    for value in values:
        assert broker.append(value)
    assert cluster.run(lambda: values[-1] in cluster.history.acknowledged)


def test_another_replica_leads_when_the_leader_has_failed_and_nothing_is_lost():
    cluster = Cluster(3)
    first = led(cluster)
    append(cluster, first, range(1, 11))
    fail(first)
    assert cluster.run(lambda: any(one.leads(GROUP) for one in cluster.brokers.values() if one is not first))
    second = next(one for one in cluster.brokers.values() if one.leads(GROUP))
    append(cluster, second, range(11, 21))
    open_again(cluster, first)
    cluster.settle()
    assert {one.group.high_watermark for one in cluster.brokers.values()} == {20}


def test_a_group_with_one_failed_and_one_dead_replica_has_a_leader_which_commits_nothing_alone():
    cluster = Cluster(5)
    first = led(cluster)
    append(cluster, first, range(1, 11))
    failing, dead = (one for one in cluster.brokers.values() if one is not first)
    fail(failing)
    dead.crash()
    first.crash()
    first.start()
    assert cluster.run(lambda: first.leads(GROUP)), "the failed replica does not vote"
    term = first.group.term
    assert first.append(11)
    assert not cluster.run(lambda: 11 in cluster.history.acknowledged, limit_us=5_000_000)
    open_again(cluster, failing)
    assert failing.log.raft.vote.term >= term, "the vote is not on its disk"
    append(cluster, led(cluster), [12])


def test_a_vote_outlives_a_crash():
    cluster = Cluster(7)
    first = led(cluster)
    append(cluster, first, range(1, 4))
    failing, dead = (one for one in cluster.brokers.values() if one is not first)
    fail(failing)
    dead.crash()
    first.crash()
    first.start()
    assert cluster.run(lambda: first.leads(GROUP))
    term = first.group.core.term
    failing.crash()
    failing.start()
    assert failing.log.raft.vote.term >= term
