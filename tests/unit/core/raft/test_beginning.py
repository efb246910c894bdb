"""Groups whose first leader is assigned: it leads term 1 without a message, once, and nobody votes in term 1 again."""

import pytest

from millstream.core.raft.messages import Configuration, LogPoint, VoteReply, VoteRequest
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import UNKNOWN_END, Recovered, Role, VoteState
from millstream.model.replication import NO_REPLICA, NO_TERM, RaftPosition, ReplicaId, Seed, Term, TimeUs

FIRST, ME, OTHER = ReplicaId(1), ReplicaId(2), ReplicaId(3)
MEMBERS = Configuration(voters=(FIRST, ME, OTHER))
NOTHING = VoteState(NO_TERM, NO_REPLICA)
CAST = VoteState(Term(1), FIRST)
TIMEOUT_US = 1_500_000


def made(me, state=NOTHING, **more):
    """A replica of an assigned group; ``created`` unless the test says otherwise."""
    more = {"created": True, **more}
    return Raft(me, Recovered(MEMBERS, state, cast=CAST, **more), Seed(7), TimeUs(0))


def begin(core, now=0):
    """Make durable what the core asks for, then begin; the messages meanwhile."""
    messages = []
    while True:
        ready = core.ready()
        messages += ready.messages
        if ready.state is None:
            break
        core.state_persisted(TimeUs(now), ready.state)
    core.begin(TimeUs(now))
    messages += core.ready().messages
    return messages


def test_the_first_leader_leads_term_1_without_asking_anybody():
    core = made(FIRST)
    messages = begin(core)
    assert (core.role, core.term) == (Role.LEADER, 1)
    assert core.began_group and not core.is_serving
    assert not any(isinstance(one.message, VoteRequest) for one in messages)


def test_it_does_not_lead_before_its_creation_is_noted():
    core = made(FIRST)
    core.state_persisted(TimeUs(0), core.ready().state)
    core.deadline_passed(TimeUs(TIMEOUT_US // 2))
    assert core.role is Role.FOLLOWER


def test_it_does_not_lead_before_its_own_vote_is_durable():
    core = made(FIRST)
    vote = core.ready().state
    assert vote == CAST
    core.begin(TimeUs(0))
    core.ready()
    assert core.role is not Role.LEADER
    core.state_persisted(TimeUs(0), vote)
    assert core.role is Role.LEADER


@pytest.mark.parametrize("state", [NOTHING, CAST], ids=["nothing durable", "vote durable"])
def test_a_first_leader_that_comes_up_again_follows(state):
    core = made(FIRST, state, created=False)
    begin(core)
    assert (core.role, core.term) == (Role.FOLLOWER, 1)


def test_a_vote_on_disk_shows_that_this_is_not_its_first_life():
    core = made(FIRST, CAST)
    begin(core)
    assert (core.role, core.term) == (Role.FOLLOWER, 1)


def test_a_first_leader_that_has_lost_its_disk_does_not_begin():
    core = made(FIRST, created=False, damaged_until=UNKNOWN_END)
    begin(core)
    assert core.role is Role.FOLLOWER
    assert core.term == 0


def test_a_second_call_leads_nowhere():
    core = made(FIRST)
    begin(core)
    core.step(TimeUs(0), OTHER, VoteRequest(Term(2), LogPoint(RaftPosition(0), NO_TERM), pre=False, transfer=True))
    begin(core)
    assert core.term == 2
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize("created", [True, False])
def test_nobody_else_gets_a_vote_in_term_1(created):
    core = made(ME, created=created)
    begin(core)
    core.step(TimeUs(0), OTHER, VoteRequest(Term(1), LogPoint(RaftPosition(0), NO_TERM), pre=False, transfer=True))
    replies = [one.message for one in core.ready().messages if isinstance(one.message, VoteReply)]
    assert [reply.granted for reply in replies] == [False]
    assert core.term == 1


def test_the_others_wait_for_four_timeouts_until_they_begin_and_for_one_after_it():
    core = made(ME)
    core.state_persisted(TimeUs(0), core.ready().state)
    assert core.deadline() > 3 * TIMEOUT_US
    core.begin(TimeUs(0))
    core.ready()
    assert core.deadline() <= 2 * TIMEOUT_US + 300_000
