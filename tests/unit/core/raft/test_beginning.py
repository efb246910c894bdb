"""Groups whose first leader is assigned: it leads the first term once, without a message; its votes are all given."""

import pytest

from millstream.core.raft.messages import Configuration, Inquiry, LogPoint, VoteReply, VoteRequest
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import UNKNOWN_END, Recovered, Role, VoteState
from millstream.model.replication import NO_REPLICA, NO_TERM, RaftPosition, ReplicaId, Seed, Term, TimeUs

FIRST, ME, OTHER = ReplicaId(1), ReplicaId(2), ReplicaId(3)
MEMBERS = Configuration(voters=(FIRST, ME, OTHER))
NOTHING = VoteState(NO_TERM, NO_REPLICA)
CASTS = [VoteState(Term(0), FIRST), VoteState(Term(1), FIRST)]
TIMEOUT_US = 1_500_000


@pytest.fixture(params=CASTS, ids=["term 0", "term 1"])
def cast(request):
    """The vote of the creation: in term 0, or in term 1 of a group that an older release has made."""
    return request.param


def made(cast, me, state=NOTHING, **more):
    """A replica of an assigned group; ``created`` unless the test says otherwise."""
    more = {"created": True, **more}
    return Raft(me, Recovered(MEMBERS, state, cast=cast, **more), Seed(7), TimeUs(0))


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


def test_the_first_leader_leads_without_asking_anybody(cast):
    core = made(cast, FIRST)
    messages = begin(core)
    assert (core.role, core.term) == (Role.LEADER, cast.term)
    assert core.began_group and not core.is_serving
    assert not any(isinstance(one.message, VoteRequest) for one in messages)


def test_it_does_not_lead_before_its_creation_is_noted(cast):
    core = made(cast, FIRST)
    core.state_persisted(TimeUs(0), core.ready().state)
    core.deadline_passed(TimeUs(TIMEOUT_US // 2))
    assert core.role is Role.FOLLOWER


def test_it_does_not_lead_before_its_own_vote_is_durable(cast):
    core = made(cast, FIRST)
    vote = core.ready().state
    assert vote == cast
    core.begin(TimeUs(0))
    core.ready()
    assert core.role is not Role.LEADER
    core.state_persisted(TimeUs(0), vote)
    assert core.role is Role.LEADER


@pytest.mark.parametrize("voted", [False, True], ids=["nothing durable", "vote durable"])
def test_a_first_leader_that_comes_up_again_follows(cast, voted):
    core = made(cast, FIRST, cast if voted else NOTHING, created=False)
    begin(core)
    assert (core.role, core.term) == (Role.FOLLOWER, cast.term)


def test_a_vote_on_disk_shows_that_this_is_not_its_first_life(cast):
    core = made(cast, FIRST, cast)
    begin(core)
    assert (core.role, core.term) == (Role.FOLLOWER, cast.term)


def test_a_first_leader_that_has_lost_its_disk_does_not_begin(cast):
    core = made(cast, FIRST, created=False, damaged_until=UNKNOWN_END)
    begin(core)
    assert core.role is Role.FOLLOWER
    assert core.term == 0


def test_a_second_call_leads_nowhere(cast):
    core = made(cast, FIRST)
    begin(core)
    core.step(TimeUs(0), OTHER, VoteRequest(Term(2), LogPoint(RaftPosition(0), NO_TERM), pre=False, transfer=True))
    begin(core)
    assert core.term == 2
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize("created", [True, False])
def test_nobody_else_gets_a_vote_in_the_first_term(cast, created):
    core = made(cast, ME, created=created)
    begin(core)
    core.step(TimeUs(0), OTHER, VoteRequest(cast.term, LogPoint(RaftPosition(0), NO_TERM), pre=False, transfer=True))
    replies = [one.message for one in core.ready().messages if isinstance(one.message, VoteReply)]
    assert [reply.granted for reply in replies] == [False]
    assert core.term == cast.term


def test_the_others_wait_for_four_timeouts_until_they_begin_and_for_one_after_it(cast):
    core = made(cast, ME)
    core.state_persisted(TimeUs(0), core.ready().state)
    assert core.deadline() > 3 * TIMEOUT_US
    core.begin(TimeUs(0))
    core.ready()
    assert core.deadline() <= 2 * TIMEOUT_US + 300_000


def test_who_comes_up_again_with_an_empty_log_waits_as_long_as_the_others(cast):
    first, other = (made(cast, who, cast, created=False) for who in (FIRST, ME))
    assert first.deadline() == other.deadline() >= TIMEOUT_US


def test_a_replica_that_has_kept_its_vote_alone_knows_its_term(cast):
    core = made(cast, ME, cast, created=False, damaged_until=UNKNOWN_END)
    core.deadline_passed(TimeUs(10 * TIMEOUT_US))
    assert not any(isinstance(one.message, Inquiry) for one in core.ready().messages)
    core = made(cast, ME, created=False, damaged_until=UNKNOWN_END)
    core.deadline_passed(TimeUs(10 * TIMEOUT_US))
    assert any(isinstance(one.message, Inquiry) for one in core.ready().messages)


def test_no_candidate_stands_in_term_0():
    core = Raft(ME, Recovered(MEMBERS, cast=CASTS[0], created=True), Seed(7), TimeUs(0))
    begin(core)
    asked = []
    for step in range(1, 9):
        core.deadline_passed(TimeUs(step * 10 * TIMEOUT_US))
        ready = core.ready()
        asked += [one.message.term for one in ready.messages if isinstance(one.message, VoteRequest)]
    assert asked and min(asked) == 1
