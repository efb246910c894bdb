"""A replica with a log takes no term that only an unclean cut can have made, until it had time to learn of the cut."""

import pytest

from millstream.core.controller.cutting import TERM_GAP
from millstream.core.raft.failed import FailedReplica
from millstream.core.raft.leaps import LEAP, PATIENCE_US
from millstream.core.raft.messages import Append, Configuration, Heartbeat, NewerTerm, VoteReply, VoteRequest
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import Recovered, VoteState
from millstream.model.replication import NO_REPLICA, LogPoint, RaftPosition, Seed, Term, TermRun, TimeUs, replica_id

ME, OTHER, THIRD = map(replica_id, (1, 2, 3))
OWN, CUT = Term(5), Term(5 + TERM_GAP)
ENTRIES = (TermRun(RaftPosition(10), OWN),)
END = LogPoint(RaftPosition(10), Term(9))
MESSAGES = [
    Heartbeat(CUT, RaftPosition(0), RaftPosition(0), 1),
    Append(CUT, LogPoint(RaftPosition(0), Term(0)), (), (), RaftPosition(0), RaftPosition(0), 1),
    VoteRequest(CUT, END, pre=False, transfer=False),
    VoteRequest(CUT, END, pre=True, transfer=False),
    VoteReply(CUT, granted=False, pre=False),
    NewerTerm(CUT),
]


def replica(runs=ENTRIES):
    state = VoteState(OWN, NO_REPLICA)
    return Raft(ME, Recovered(Configuration((ME, OTHER, THIRD)), state, runs=runs), Seed(1), TimeUs(0))


def test_a_leap_is_less_than_a_cut_adds_and_more_than_elections_that_were_not_noticed():
    assert TERM_GAP - LEAP >= LEAP


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_that_leaps_has_no_effect_on_a_log_until_a_cut_would_be_known(message):
    core = replica()
    for now in (1, PATIENCE_US):
        core.step(TimeUs(now), OTHER, message)
        assert core.term == OWN and not core.ready().messages
    core.step(TimeUs(PATIENCE_US + 1), OTHER, message)
    assert core.term == CUT or getattr(message, "pre", False)


def test_smaller_steps_are_taken_and_so_is_any_by_an_empty_replica():
    core = replica()
    core.step(TimeUs(1), OTHER, NewerTerm(Term(OWN + LEAP - 1)))
    assert core.term == OWN + LEAP - 1
    empty = replica(runs=())
    empty.step(TimeUs(1), OTHER, NewerTerm(CUT))
    assert empty.term == CUT


def test_a_replica_that_has_failed_takes_no_leap_either():
    failed = FailedReplica(OWN, NO_REPLICA, LogPoint(RaftPosition(10), OWN), 1_000_000, TimeUs(0))
    for message in MESSAGES:
        assert failed.step(TimeUs(1), OTHER, message) is None
        assert failed.term == OWN
    failed.step(TimeUs(PATIENCE_US + 1), OTHER, MESSAGES[0])
    assert failed.term == CUT
