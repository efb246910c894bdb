"""Changes of role that are not an election won: hearing a leader, meeting a newer term, stepping down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.options import MAX_PRIORITY
from millstream.core.raft.ready import Role
from millstream.model.replication import NO_REPLICA

if TYPE_CHECKING:
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReplicaId, Term


def follow(replica: Replica, term: Term, leader: ReplicaId) -> None:
    """Become a follower in ``term``, of ``leader`` if one is known. The own wait continues, but for an ex-leader's."""
    if term > replica.ballot.term:
        replica.ballot.enter(term)
        replica.out.held.clear()
        replica.ends.verified = replica.ends.committed
        replica.round = 0
    if replica.role is Role.LEADER:
        _drop_leadership(replica)
        wait_for_leader(replica)
    replica.role = Role.FOLLOWER
    replica.alone = False
    replica.leader = leader
    replica.votes.clear()


def hear_leader(replica: Replica, leader: ReplicaId) -> None:
    """A message of this term's leader has arrived."""
    assert replica.role is not Role.LEADER, "two leaders in one term"
    assert replica.leader in (leader, NO_REPLICA), "two leaders in one term"
    if replica.role is not Role.FOLLOWER or replica.leader != leader:
        follow(replica, replica.ballot.term, leader)
    patience = replica.patience
    patience.contact_us = replica.now
    patience.target = MAX_PRIORITY
    if patience.tries:
        patience.tries = 0
        wait_for_leader(replica)


def wait_for_leader(replica: Replica) -> None:
    """Wait one election timeout from now on."""
    options = replica.options
    jitter = replica.draw.between(options.election_jitter_min_us, options.election_jitter_max_us)
    replica.patience.contact_us = replica.now
    replica.patience.timeout_us = options.election_timeout_us + jitter


def _drop_leadership(replica: Replica) -> None:
    leading = replica.leading
    assert leading is not None
    replica.out.failed_reads.extend(read.read_id for read in leading.reads)
    replica.leading = None
