"""Elections: when a replica stands, what it asks, and when it grants a vote.

A replica whose leader is silent for one timeout asks first whether it would be elected (pre-vote), which disturbs
nobody. With a majority it starts the next term, votes for itself, and asks for votes. Its own vote counts when it is
durable. A vote is granted once a term, to a candidate whose log is at least as new. A replica in contact with its
leader grants none, so that a replica that returns from a partition does not depose a leader that works.

Replicas stand in the order of the configuration: each has a priority by its place, and stands only at or above a target
that falls with every timeout. Without a winner the next try comes after a random 150 to 300 ms, doubling up to eight
times, so that a disk slower than that can still elect. A candidate whose vote is not durable yet starts no other term.

A crash between a vote and its sync loses the vote and the message that would have carried it, which is the same as
never having been asked.

Sources: Ongaro's thesis, sections 3.4, 3.6, 4.2.3 and 9.6; priorities: Redpanda, `consensus.cc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft import leading, rejoining
from millstream.core.raft.messages import NewerTerm, VoteReply, VoteRequest
from millstream.core.raft.options import MAX_PRIORITY
from millstream.core.raft.quorum import Outcome, is_voter, members, tally
from millstream.core.raft.ready import Role
from millstream.core.raft.roles import follow, wait_for_leader
from millstream.model.replication import NO_REPLICA, Term

if TYPE_CHECKING:
    from millstream.core.raft.messages import LogPoint
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReplicaId

MAX_DOUBLINGS = 3
BEGIN_TIMEOUTS = 4
"""Election timeouts for which a replica that was just made waits for its beginning or for a leader: a broker opens
thousands of replicas in that time."""


def begin_waiting(replica: Replica) -> None:
    """Set the first wait of a replica that has just been made.

    An only voter stands at once. In a new group the first voter stands at once and the others wait a little longer than
    a timeout, so that thousands of new groups elect without a storm. Where the first leader is assigned, all of them
    wait for it (`beginning`).
    """
    wait_for_leader(replica)
    voters = replica.log.configuration.voters
    if rejoining.hears_nothing(replica):
        replica.patience.timeout_us = 0
        return
    if replica.patience.begins_in is not None:
        replica.patience.timeout_us += (BEGIN_TIMEOUTS - 1) * replica.options.election_timeout_us
        return
    is_new = replica.ballot.term == 0 and replica.ballot.voted_for == NO_REPLICA and replica.log.end == 0
    if voters == (replica.me,) or (is_new and voters and voters[0] == replica.me):
        replica.patience.timeout_us = 0
    elif is_new:
        replica.patience.timeout_us += replica.options.election_jitter_max_us


def time_out(replica: Replica) -> None:
    """The leader was silent for one wait, or an election found no winner: stand, if this replica may."""
    patience = replica.patience
    if rejoining.hears_nothing(replica):
        rejoining.ask_term(replica)
        return
    patience.tries += 1
    if replica.role is Role.CANDIDATE and not replica.ballot.is_durable():
        _wait_for_retry(replica)
        return
    target = patience.target
    voters = max(len(replica.log.configuration.voters), 1)
    patience.target = max(1, target * (voters - 1) // voters)
    follow(replica, replica.ballot.term, NO_REPLICA)
    if not may_stand(replica):
        wait_for_leader(replica)
        return
    if replica.options.priority and priority_of(replica, replica.me) < target:
        _wait_for_retry(replica)
        return
    if replica.options.pre_vote:
        _campaign(replica, pre=True, transfer=False)
    else:
        stand(replica, transfer=False)


def stand(replica: Replica, *, transfer: bool) -> None:
    """Start a term as candidate."""
    follow(replica, Term(replica.ballot.term + 1), NO_REPLICA)
    replica.ballot.voted_for = replica.me
    _campaign(replica, pre=False, transfer=transfer)


def may_stand(replica: Replica) -> bool:
    """Whether this replica may be elected at all."""
    patience = replica.patience
    return (
        is_voter(replica.log.configuration, replica.me)
        and patience.damaged_until is None
        and not patience.forbidden
        and replica.installing is None
    )


def priority_of(replica: Replica, candidate: ReplicaId) -> int:
    """Priority of a candidate by its place among the voters; the full one for a replica that is not among them."""
    voters = replica.log.configuration.voters
    if candidate not in voters:
        return MAX_PRIORITY
    return (len(voters) - voters.index(candidate)) * MAX_PRIORITY // len(voters)


def on_vote_request(replica: Replica, sender: ReplicaId, request: VoteRequest) -> None:
    """Grant or refuse a vote, or say whether it would be granted."""
    ballot = replica.ballot
    if request.term < ballot.term:
        replica.send(sender, NewerTerm(ballot.term))
        return
    if hears_leader(replica) and not request.transfer:
        _refuse(replica, sender, request)
        return
    if request.term > ballot.term and not request.pre:
        follow(replica, request.term, NO_REPLICA)
    if not (can_vote(replica, sender, request) and is_up_to_date(replica, request.log_end)):
        _refuse(replica, sender, request)
        return
    if not request.transfer and not is_preferred(replica, sender):
        _refuse(replica, sender, request)
        return
    reply = VoteReply(request.term, granted=True, pre=request.pre)
    if request.pre:
        replica.send_at_once(sender, reply)
    else:
        ballot.voted_for = sender
        wait_for_leader(replica)
        replica.send(sender, reply)


def can_vote(replica: Replica, candidate: ReplicaId, request: VoteRequest) -> bool:
    """Whether this replica's vote in the term of the request is still free, or the candidate's already."""
    if replica.patience.damaged_until is not None:
        return False
    if request.pre and request.term > replica.ballot.term:
        return True
    if replica.ballot.voted_for == candidate:
        return True
    return replica.ballot.voted_for == NO_REPLICA and replica.leader == NO_REPLICA


def is_up_to_date(replica: Replica, log_end: LogPoint) -> bool:
    """Whether a candidate's log is at least as new as this one (thesis, section 3.6.1)."""
    log = replica.log
    return log_end.term > log.end_term or (log_end.term == log.end_term and log_end.position >= log.end)


def is_preferred(replica: Replica, candidate: ReplicaId) -> bool:
    """Whether a candidate's priority is enough for now."""
    return not replica.options.priority or priority_of(replica, candidate) >= replica.patience.target


def hears_leader(replica: Replica) -> bool:
    """Whether this replica leads or had contact with its leader within one election timeout."""
    if not replica.options.check_quorum or replica.leader == NO_REPLICA:
        return False
    return (
        replica.role is Role.LEADER or replica.now - replica.patience.contact_us < replica.options.election_timeout_us
    )


def on_vote_reply(replica: Replica, sender: ReplicaId, reply: VoteReply) -> None:
    """Count a vote."""
    term = replica.ballot.term
    if not reply.granted and reply.term > term:
        follow(replica, reply.term, NO_REPLICA)
        return
    if reply.pre:
        expected = replica.role is Role.PRE_CANDIDATE and (not reply.granted or reply.term == term + 1)
    else:
        expected = replica.role is Role.CANDIDATE and reply.term == term
    if expected:
        count_vote(replica, sender, granted=reply.granted)


def count_vote(replica: Replica, voter: ReplicaId, *, granted: bool) -> None:
    """Record one replica's answer and act on the outcome."""
    replica.votes[voter] = granted
    outcome = Outcome.WON if replica.alone else tally(replica.log.configuration, replica.votes)
    if outcome is Outcome.LOST:
        follow(replica, replica.ballot.term, NO_REPLICA)
        _wait_for_retry(replica)
    elif outcome is Outcome.WON and replica.role is Role.PRE_CANDIDATE:
        stand(replica, transfer=False)
    elif outcome is Outcome.WON:
        leading.begin(replica)


def on_own_vote_durable(replica: Replica) -> None:
    """The vote of this term is on disk: send what waited for it, and count it if it is for this replica."""
    replica.release_held()
    if replica.role is Role.CANDIDATE and replica.me not in replica.votes:
        count_vote(replica, replica.me, granted=True)


def _campaign(replica: Replica, *, pre: bool, transfer: bool) -> None:
    ballot = replica.ballot
    replica.role = Role.PRE_CANDIDATE if pre else Role.CANDIDATE
    replica.votes.clear()
    _wait_for_retry(replica)
    request = VoteRequest(Term(ballot.term + 1) if pre else ballot.term, replica.log.last, pre=pre, transfer=transfer)
    configuration = replica.log.configuration
    for member in members(configuration):
        if member == replica.me or not is_voter(configuration, member):
            continue
        if pre:
            replica.send_at_once(member, request)
        else:
            replica.send(member, request)
    if pre:
        count_vote(replica, replica.me, granted=True)


def _refuse(replica: Replica, candidate: ReplicaId, request: VoteRequest) -> None:
    replica.send(candidate, VoteReply(replica.ballot.term, granted=False, pre=request.pre))


def _wait_for_retry(replica: Replica) -> None:
    patience, options = replica.patience, replica.options
    wait = replica.draw.between(options.retry_min_us, options.retry_max_us)
    patience.contact_us = replica.now
    patience.timeout_us = wait << min(max(patience.tries - 1, 0), MAX_DOUBLINGS)
