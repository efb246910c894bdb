"""A peer whose disk has lost what it had reported, and that does not know: the leader counts it for what it has."""

import pytest

from millstream.core.raft.messages import (
    AppendRejected,
    AppendReply,
    Configuration,
    HeartbeatReply,
    LogPoint,
    VoteReply,
    VoteRequest,
)
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import LogPersisted, Recovered, VoteState
from millstream.model.replication import NO_REPLICA, EntryCount, RaftPosition, ReplicaId, Seed, Term, TimeUs

ME, PEER, OTHER = ReplicaId(1), ReplicaId(2), ReplicaId(3)


class Leader:
    """A leader with nine records; each peer has all of them on its disk."""

    def __init__(self):
        members = Configuration(voters=(ME, PEER, OTHER))
        self.now = 0
        self.core = Raft(ME, Recovered(members, VoteState(Term(0), NO_REPLICA)), Seed(5), TimeUs(0))
        while not self.core.leads:
            self.now += 1_000_000
            self.core.deadline_passed(TimeUs(self.now))
            said = self.settle()
            while said:
                asked = said.pop()
                if isinstance(asked.message, VoteRequest):
                    said += self.hear(asked.to, VoteReply(asked.message.term, granted=True, pre=asked.message.pre))
        for _ in range(9):
            self.core.propose(TimeUs(self.now), EntryCount(1))
            self.settle()
        self.has_all(PEER)
        self.has_all(OTHER)

    def settle(self):
        """Carry out what follows, everything being durable at once; returns the messages."""
        ready = self.core.ready()
        messages, self.sends, self.installs = list(ready.messages), ready.sends, ready.installs
        while ready.state is not None or ready.write is not None:
            if ready.state is not None:
                self.core.state_persisted(TimeUs(self.now), ready.state)
            if ready.write is not None:
                self.core.log_persisted(TimeUs(self.now), LogPersisted(ready.write.end, ready.write.term))
            ready = self.core.ready()
            messages += ready.messages
        return messages

    def hear(self, peer, message):
        """A message arrives; returns what is sent. ``sends`` and ``installs`` are what is ordered."""
        self.core.step(TimeUs(self.now), peer, message)
        return self.settle()

    def has_all(self, peer):
        self.hear(peer, AppendReply(self.core.term, self.core.next_position, self.core.next_position, 1))

    def restarted(self, peer, has):
        """The peer comes back, says so, and is probed. Returns where."""
        self.core.peer_lost(peer)
        self.hear(peer, HeartbeatReply(self.core.term, RaftPosition(has), RaftPosition(has), 1))
        (send,) = [one for one in self.sends if one.to == peer]
        return self.core.sent(send, send.limit, 0).prev.position

    def rejected(self, peer, at, hint):
        point = LogPoint(RaftPosition(hint), self.core.term if hint else Term(0))
        return self.hear(peer, AppendRejected(self.core.term, at, point, 1))


@pytest.fixture
def leader():
    made = Leader()
    assert made.core.committed == made.core.next_position == 10
    return made


def test_a_peer_that_lacks_what_it_had_synced_is_sent_it_again(leader):
    at = leader.restarted(PEER, 4)
    assert at == 10
    leader.rejected(PEER, at, 4)
    (send,) = leader.sends
    assert (send.to, send.start) == (PEER, 4)
    assert leader.core.durable_of(PEER) == 4
    assert leader.core.committed == 10, "what was committed stays committed"
    leader.core.sent(send, send.limit, 0)
    leader.has_all(PEER)
    assert leader.core.durable_of(PEER) == 10


def test_it_counts_for_no_entry_that_is_not_committed_yet(leader):
    leader.core.propose(TimeUs(leader.now), EntryCount(1))
    for send in leader.core.ready().sends:
        leader.core.sent(send, send.limit, 0)
    leader.has_all(PEER)
    assert leader.core.committed == 10, "this disk has not synced it"
    leader.rejected(PEER, leader.restarted(PEER, 4), 4)
    leader.core.log_persisted(TimeUs(leader.now), LogPersisted(leader.core.next_position, leader.core.term))
    assert leader.core.committed == 10, "one disk of three has it"
    leader.has_all(OTHER)
    assert leader.core.committed == 11


def test_if_the_leader_has_no_longer_what_it_lacks_it_gets_files(leader):
    leader.core.fold(RaftPosition(8))
    leader.rejected(PEER, leader.restarted(PEER, 4), 4)
    assert [one.to for one in leader.installs] == [PEER]
    assert leader.core.durable_of(PEER) == 0
    leader.hear(PEER, HeartbeatReply(leader.core.term, RaftPosition(4), RaftPosition(4), 1))
    assert not leader.sends, "it is not taken for filled"


def test_an_old_rejection_changes_nothing_while_the_peer_follows(leader):
    leader.rejected(PEER, RaftPosition(6), 4)
    assert not leader.sends
    assert leader.core.durable_of(PEER) == 10
