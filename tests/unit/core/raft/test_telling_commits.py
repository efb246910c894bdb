"""A leader whose option says so tells its peers at once what is committed; others wait for the next append or beat."""

import pytest

from millstream.core.raft.messages import AppendReply, Configuration, Heartbeat
from millstream.core.raft.options import RaftOptions
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import LogPersisted, Recovered, VoteState
from millstream.model.replication import NO_REPLICA, NO_TERM, EntryCount, RaftPosition, ReplicaId, Seed, Term, TimeUs

ME, QUICK, SLOW = ReplicaId(1), ReplicaId(2), ReplicaId(3)
NOTHING = VoteState(NO_TERM, NO_REPLICA)
NOW, TERM = TimeUs(1_000), Term(1)


class Leader:
    """The core of a leader whose term start is on its own disk."""

    def __init__(self, **options):
        recovered = Recovered(Configuration((ME, QUICK, SLOW)), NOTHING, cast=VoteState(TERM, ME), created=True)
        self.core = Raft(ME, recovered, Seed(7), TimeUs(0), RaftOptions(**options))
        self.core.state_persisted(NOW, self.core.ready().state)
        self.core.begin(NOW)
        self.end = RaftPosition(1)
        self.sends = {}
        self.persist()

    def persist(self):
        self.take()
        self.core.log_persisted(NOW, LogPersisted(self.end, TERM))
        return self.take()

    def take(self):
        """Take the Ready, and send what it orders; what it says is committed, by peer."""
        ready = self.core.ready()
        said = [(one.to, one.message.committed) for one in ready.messages if isinstance(one.message, Heartbeat)]
        for send in ready.sends:
            append = self.core.sent(send, send.limit, 100)
            self.sends[send.to] = append.committed
        return said

    def propose(self):
        self.core.propose(NOW, EntryCount(1))
        self.end = RaftPosition(self.end + 1)
        return self.persist()

    def answer(self, peer, end):
        self.core.step(NOW, peer, AppendReply(TERM, RaftPosition(end), RaftPosition(end), 0))
        return self.take()


@pytest.fixture
def leader():
    made = Leader(tells_commits=True)
    for peer in (QUICK, SLOW):
        made.answer(peer, 0)  # it matches
    return made


def test_a_peer_is_told_when_what_it_has_is_committed(leader):
    assert leader.answer(QUICK, 1) == [(QUICK, 1)], "the other has not said that it has the entry"
    assert leader.answer(QUICK, 1) == [], "once"
    assert leader.answer(SLOW, 1) == [(SLOW, 1)]
    assert leader.answer(SLOW, 1) == []


def test_entries_that_are_to_be_sent_say_it_themselves(leader):
    leader.answer(QUICK, 1)
    leader.answer(SLOW, 1)
    assert leader.propose() == []
    leader.core.propose(NOW, EntryCount(1))
    leader.end = RaftPosition(3)
    assert leader.answer(QUICK, 2) == [], "the append that goes in this turn has it"
    assert leader.sends[QUICK] == 2


def test_a_connection_that_was_lost_is_told_again(leader):
    leader.answer(QUICK, 1)
    leader.core.peer_lost(QUICK)
    leader.take()
    leader.core.step(NOW, QUICK, AppendReply(TERM, RaftPosition(1), RaftPosition(1), 0))
    assert leader.take() == [(QUICK, 1)]


def test_without_the_option_nothing_is_sent_for_a_commit_alone():
    leader = Leader()
    for peer in (QUICK, SLOW):
        leader.answer(peer, 0)
        assert leader.answer(peer, 1) == []
    assert leader.core.committed == 1
