"""A replica whose disk has lost what it once promised: its files are missing, or were damaged and put aside.

It may have voted, and acknowledged entries, without knowing anything of that. Two questions bring it back safely:

1. **In which term?** Asked if the vote is lost, too. The replica processes, votes and acknowledges nothing until all
   other voters have answered. It continues in the newest term that they named, with no vote left in it: it can't
   contradict a vote or an answer of before. Fewer answers would not do: a candidate to which its lost vote is still in
   flight may be the only one that knows the term. Some may answer that they are lost as well: they are no longer
   candidates. So many others must know their term that each majority with this replica in it has one of them.
2. **How far?** Asked of the leader of that term, or of a later one, whose log has everything that this replica has
   helped to commit. Up to the end that the leader names the replica takes entries, and grants no vote; then it is a
   replica like any other.

An answer counts only for a question since the replica's start, which its number tells. Questions are repeated, so
that a lost one costs time only. While another voter is away the replica waits, and the others continue if they are a
quorum. With two of three replicas lost it is unknown what was promised, and the group waits, as it does without a
quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.messages import Inquiry, InquiryReply
from millstream.core.raft.ready import UNKNOWN_END, Role
from millstream.core.raft.roles import follow, wait_for_leader

if TYPE_CHECKING:
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReplicaId

ASK_AGAIN_US = 500_000


def hears_nothing(replica: Replica) -> bool:
    """Whether this replica does not know its term yet."""
    return replica.rejoining is not None and replica.rejoining.terms is not None


def ask_term(replica: Replica) -> None:
    """Ask every other voter that has not answered yet."""
    rejoining = replica.rejoining
    assert rejoining is not None and rejoining.terms is not None
    for voter in replica.log.configuration.voters:
        if voter != replica.me and voter not in rejoining.terms:
            replica.send_at_once(voter, Inquiry(replica.ballot.term, rejoining.number))
    replica.patience.contact_us = replica.now
    replica.patience.timeout_us = ASK_AGAIN_US


def ask_end(replica: Replica, leader: ReplicaId) -> None:
    """Ask the leader for the end of its log, unless it has said it."""
    rejoining = replica.rejoining
    if rejoining is not None and replica.patience.damaged_until == UNKNOWN_END:
        replica.send(leader, Inquiry(replica.ballot.term, rejoining.number))


def on_inquiry(replica: Replica, sender: ReplicaId, inquiry: Inquiry) -> None:
    """Answer a replica that has lost its log. One that does not know its own term says so by `UNKNOWN_END`."""
    if hears_nothing(replica):
        reply = InquiryReply(replica.ballot.term, inquiry.number, UNKNOWN_END, leads=False)
        replica.send_at_once(sender, reply)
    else:
        leads = replica.role is Role.LEADER
        replica.send(sender, InquiryReply(replica.ballot.term, inquiry.number, replica.log.end, leads=leads))


def on_inquiry_reply(replica: Replica, sender: ReplicaId, reply: InquiryReply) -> None:
    """Note an answer to a question that was asked since the start."""
    rejoining = replica.rejoining
    if rejoining is None or reply.number != rejoining.number:
        return
    patience = replica.patience
    if rejoining.terms is None:
        if reply.leads and sender == replica.leader and reply.term == replica.ballot.term:
            assert patience.damaged_until is not None
            patience.damaged_until = min(patience.damaged_until, reply.end)
        return
    voters = replica.log.configuration.voters
    if sender not in voters:
        return
    if reply.end == UNKNOWN_END:
        rejoining.lost.add(sender)
    else:
        rejoining.terms[sender] = reply.term
    answered = rejoining.terms.keys() | rejoining.lost | {replica.me}
    if answered.issuperset(voters) and len(rejoining.terms) >= len(voters) - len(voters) // 2:
        newest = max(rejoining.terms.values())
        rejoining.terms = None
        if newest > replica.ballot.term:
            follow(replica, newest, replica.leader)
        replica.ballot.voted_for = replica.me
        patience.damaged_term = newest
        wait_for_leader(replica)
