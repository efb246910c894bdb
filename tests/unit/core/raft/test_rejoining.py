"""A replica that has lost its log counts for nothing until it knows what it may have promised, and has that again."""

from millstream.core.raft.messages import (
    Append,
    Configuration,
    Heartbeat,
    Inquiry,
    InquiryReply,
    LogPoint,
    TermRun,
    VoteReply,
    VoteRequest,
)
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import UNKNOWN_END, LogPersisted, Recovered, Role, VoteState
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Round, Seed, Term, TimeUs

ME, LEADER, OTHER = ReplicaId(1), ReplicaId(2), ReplicaId(3)
MEMBERS = Configuration(voters=(ME, LEADER, OTHER))
SECOND = 1_000_000


def lost(term=0, members=MEMBERS):
    recovered = Recovered(members, VoteState(Term(term), NO_REPLICA), damaged_until=UNKNOWN_END)
    return Raft(ME, recovered, Seed(5), TimeUs(0))


def say(core, now, sender, message):
    """What is sent after a message, everything that is to be durable being so at once."""
    core.step(TimeUs(now), sender, message)
    return settle(core, now)


def settle(core, now):
    sent = []
    while True:
        ready = core.ready()
        sent += [(one.to, one.message) for one in ready.messages]
        if ready.state is not None:
            core.state_persisted(TimeUs(now), ready.state)
        elif ready.write is not None:
            core.log_persisted(TimeUs(now), LogPersisted(ready.write.end, ready.write.term))
        else:
            return sent


def asked(core, now=0):
    core.deadline_passed(TimeUs(now))
    return settle(core, now)


def vote_request(term, transfer=False):
    return VoteRequest(Term(term), LogPoint(RaftPosition(900), Term(term - 1)), pre=False, transfer=transfer)


def append(term, prev, end, committed, before=0):
    return Append(
        Term(term),
        LogPoint(RaftPosition(prev), Term(before)),
        (TermRun(RaftPosition(end), Term(term)),),
        (),
        RaftPosition(committed),
        RaftPosition(committed),
        0,
    )


def test_it_asks_both_others_first_and_hears_nothing_meanwhile():
    core = lost()
    questions = asked(core)
    assert [to for to, _ in questions] == [LEADER, OTHER]
    number = questions[0][1].number
    assert say(core, 1, OTHER, vote_request(7)) == []
    assert say(core, 2, LEADER, Heartbeat(Term(6), RaftPosition(0), RaftPosition(0), Round(1))) == []
    assert say(core, 3, LEADER, append(6, 0, 4, 4)) == []
    assert core.term == 0
    assert core.next_position == 0
    say(core, 4, OTHER, InquiryReply(Term(6), number, RaftPosition(9), leads=False))
    assert core.term == 0
    assert [to for to, _ in asked(core, SECOND)] == [LEADER]
    say(core, SECOND, LEADER, InquiryReply(Term(8), number, RaftPosition(9), leads=True))
    assert core.term == 8


def test_an_answer_to_a_question_of_an_earlier_life_counts_for_nothing():
    core = lost()
    number = asked(core)[0][1].number
    for sender in (LEADER, OTHER):
        say(core, 1, sender, InquiryReply(Term(6), number + 1, RaftPosition(9), leads=False))
    assert core.term == 0


def test_it_votes_again_when_it_has_what_the_leader_had_when_it_was_asked():
    core = lost()
    number = asked(core)[0][1].number
    for sender in (LEADER, OTHER):
        say(core, 1, sender, InquiryReply(Term(6), number, RaftPosition(9), leads=sender == LEADER))
    sent = say(core, 2, LEADER, Heartbeat(Term(6), RaftPosition(0), RaftPosition(0), Round(1)))
    assert (LEADER, Inquiry(Term(6), number)) in sent
    say(core, 3, LEADER, InquiryReply(Term(6), number, RaftPosition(9), leads=True))
    say(core, 4, LEADER, append(6, 0, 8, 8))
    assert core.is_damaged
    assert say(core, 5 * SECOND, OTHER, vote_request(7)) == [(OTHER, VoteReply(Term(7), granted=False, pre=False))]
    say(core, 6 * SECOND, LEADER, append(7, 8, 9, 9, 6))
    assert not core.is_damaged
    sent = say(core, 60 * SECOND, OTHER, vote_request(8, transfer=True))
    assert (OTHER, VoteReply(Term(8), granted=True, pre=False)) in sent


def test_it_has_no_vote_left_in_the_term_that_it_was_told():
    core = lost()
    number = asked(core)[0][1].number
    for sender in (LEADER, OTHER):
        say(core, 1, sender, InquiryReply(Term(6), number, RaftPosition(0), leads=sender == LEADER))
    say(core, 2, LEADER, Heartbeat(Term(6), RaftPosition(0), RaftPosition(0), Round(1)))
    say(core, 3, LEADER, InquiryReply(Term(6), number, RaftPosition(0), leads=True))
    say(core, 4, LEADER, Heartbeat(Term(6), RaftPosition(0), RaftPosition(0), Round(1)))
    assert not core.is_damaged
    assert core.replica.ballot.voted_for == ME


def test_it_stands_for_no_election():
    core = lost(term=3)
    for now in range(0, 60 * SECOND, SECOND):
        assert asked(core, now) == []
    assert core.role is Role.FOLLOWER


def test_one_that_has_its_term_asks_the_leader_alone():
    core = lost(term=3)
    assert asked(core) == []
    sent = say(core, 1, LEADER, Heartbeat(Term(3), RaftPosition(0), RaftPosition(0), Round(1)))
    assert any(isinstance(message, Inquiry) for _, message in sent)


def test_a_replica_that_knows_no_term_answers_so():
    assert say(lost(), 1, OTHER, Inquiry(Term(0), 5)) == [(OTHER, InquiryReply(Term(0), 5, UNKNOWN_END, leads=False))]
    healthy = Raft(ME, Recovered(MEMBERS, VoteState(Term(4), NO_REPLICA)), Seed(1), TimeUs(0))
    assert say(healthy, 1, OTHER, Inquiry(Term(0), 5)) == [
        (OTHER, InquiryReply(Term(4), 5, RaftPosition(0), leads=False))
    ]


def test_of_five_replicas_all_others_have_to_answer_because_one_may_have_the_lost_vote():
    core = lost(members=Configuration(voters=tuple(map(ReplicaId, (1, 2, 3, 4, 5)))))
    number = asked(core)[0][1].number
    for sender, term in ((2, 5), (3, 4)):
        say(core, 1, ReplicaId(sender), InquiryReply(Term(term), number, RaftPosition(0), leads=False))
    assert core.term == 0
    say(core, 1, ReplicaId(5), InquiryReply(Term(2), number, RaftPosition(0), leads=False))
    assert core.term == 0
    candidate = ReplicaId(4)  # stands in a term of which the three know nothing
    say(core, 1, candidate, InquiryReply(Term(7), number, RaftPosition(0), leads=False))
    assert core.term == 7
    assert say(core, 2, LEADER, vote_request(7)) == [(LEADER, VoteReply(Term(7), granted=False, pre=False))]


def test_two_of_five_that_are_lost_do_not_wait_for_each_other():
    core = lost(members=Configuration(voters=tuple(map(ReplicaId, (1, 2, 3, 4, 5)))))
    number = asked(core)[0][1].number
    say(core, 1, ReplicaId(5), InquiryReply(Term(0), number, UNKNOWN_END, leads=False))
    for sender in (2, 3):
        say(core, 1, ReplicaId(sender), InquiryReply(Term(6), number, RaftPosition(0), leads=False))
    assert core.term == 0
    say(core, 1, ReplicaId(4), InquiryReply(Term(6), number, RaftPosition(0), leads=False))
    assert core.term == 6


def test_two_of_three_that_are_lost_wait():
    core = lost()
    number = asked(core)[0][1].number
    say(core, 1, OTHER, InquiryReply(Term(0), number, UNKNOWN_END, leads=False))
    say(core, 1, LEADER, InquiryReply(Term(6), number, RaftPosition(0), leads=False))
    assert core.term == 0
