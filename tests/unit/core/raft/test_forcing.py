"""A replica whose group has lost its majority for good leads alone; elsewhere nothing of that is possible."""

import pytest
from membership_support import Replicas

from millstream.core.raft.forcing import lacks_quorum
from millstream.core.raft.messages import Configuration, NewerTerm
from millstream.core.raft.ready import LogPersisted
from millstream.model.replication import NO_REPLICA, EntryCount, Term, TimeUs, replica_id


def lose_two(replicas):
    """Replicas 1 and 3 are gone, and replica 2 has noticed."""
    replicas.run(lambda: replicas.leader is not None and replicas.leader.is_serving)
    replicas.leader.propose(TimeUs(replicas.now), EntryCount(5))
    replicas.drain(replicas.leader.replica.me)
    replicas.run(lambda: all(core.committed == replicas.leader.committed for core in replicas.cores.values()))
    replicas.cut |= {1, 3}
    survivor = replicas.cores[2]
    replicas.run(lambda: not survivor.leads and survivor.leader == NO_REPLICA)
    return survivor


def test_the_survivor_of_three_leads_alone_and_commits_what_it_has():
    replicas = Replicas([1, 2, 3])
    survivor = lose_two(replicas)
    before, term = survivor.next_position, survivor.term
    survivor.lead_alone(TimeUs(replicas.now))
    replicas.run(lambda: survivor.is_serving)
    assert survivor.term > term
    assert survivor.replica.log.configuration == Configuration((2,))
    assert survivor.committed == survivor.next_position == before + 2, "a term start and the members"
    survivor.propose(TimeUs(replicas.now), EntryCount(3))
    survivor.log_persisted(TimeUs(replicas.now), LogPersisted(survivor.next_position, survivor.term))
    assert survivor.committed == before + 5


def test_a_replica_that_comes_back_with_its_old_log_follows_the_survivor_when_it_may_be_a_member_again():
    replicas = Replicas([1, 2, 3])
    survivor = lose_two(replicas)
    survivor.lead_alone(TimeUs(replicas.now))
    replicas.run(lambda: survivor.is_serving)
    replicas.cut.discard(3)
    replicas.steer((2, 3))
    replicas.run(lambda: replicas.cores[3].committed == survivor.committed)
    assert survivor.replica.log.configuration.voters == (2, 3)


def test_a_newer_term_takes_the_leadership_that_is_not_begun_yet():
    replicas = Replicas([1, 2, 3])
    survivor = lose_two(replicas)
    survivor.lead_alone(TimeUs(replicas.now))
    other = replicas.cores[1]
    other.replica.ballot.enter(Term(survivor.term + 5))
    survivor.step(TimeUs(replicas.now), 1, NewerTerm(Term(survivor.term + 5)))
    assert not survivor.replica.alone and not survivor.leads
    state = survivor.ready().state
    assert state is not None
    survivor.state_persisted(TimeUs(replicas.now), state)
    assert not survivor.leads, "the vote of the term before makes no leader of this one"


@pytest.mark.parametrize(
    ("voters", "outgoing", "lost", "lacks"),
    [
        ((1, 2, 3), (), (2, 3), True),
        ((1, 2, 3), (), (3,), False),
        ((1, 2, 3, 4), (), (3, 4), True),
        ((1, 2), (), (2,), True),
        ((1,), (), (2,), False),
        ((), (), (2,), False),
        ((1, 2, 4), (1, 2, 3), (3, 4), False),
        ((1, 2, 4), (1, 3, 5), (3, 5), True),
    ],
)
def test_a_group_lacks_its_quorum_when_one_of_its_majorities_is_lost(voters, outgoing, lost, lacks):
    configuration = Configuration(tuple(map(replica_id, voters)), tuple(map(replica_id, outgoing)))
    assert lacks_quorum(configuration, lost) is lacks
