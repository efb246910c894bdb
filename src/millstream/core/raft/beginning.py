"""The beginning of a group whose first leader is assigned: it leads the first term without an election.

::

    the creation of the group names its voters ──► each voter has cast its vote of the first term for the first of them
    first voter: made ──► its vote and its creation are on disk ──`Raft.begin`──► leads the first term
    the others:  made ────────────────────────────────────────────────────────► follow, with no vote left in that term

A thousand new groups thus need no vote request, no answer, and one vote record on each disk, which says that the
replica is there. It is as if all voters had been asked and had granted their votes at the moment of the creation, with
empty logs. The first term is 0, as Kafka's first leader epoch; it is 1 in a group that an older release has made. No
election is ever held in term 0: a candidate starts a later term. Two rules make the vote true:

- **The vote of the first term is final.** A replica of such a group is never in an earlier term, however it came up:
  with the others, long after them, from a snapshot of the metadata. One that has lost its disk processes and votes
  nothing before the others have sent it their term (`rejoining`), which is the first term or a later one.
- **The first leader starts once.** Only a replica that was made from nothing may begin, and only after the shell has
  noted durably that it was made. From then on a replica without files is one that has lost them. A first leader that
  crashes, or loses its disk, comes up as a follower, and the group elects in a later
  term.

A first leader that starts late, because its broker was away, finds voters in later terms, and steps down. The others
wait longer than usual before they stand, until they start, because the first leader may still open other groups.

**Bad input.** A call of `begin` that comes too late, or twice, leads nowhere. **Crash.** Before the note nothing was
sent in the first term; the replica is made again. After it, the group elects.

Source: the controller of Kafka assigns the first leader of each partition (KIP-500); votes: Ongaro's thesis, section
3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft import election, rejoining
from millstream.core.raft.ready import Role
from millstream.core.raft.roles import wait_for_leader
from millstream.model.replication import NO_REPLICA

if TYPE_CHECKING:
    from millstream.core.raft.ready import Recovered, VoteState
    from millstream.core.raft.replica import Replica


def recover(replica: Replica, recovered: Recovered) -> None:
    """Take over what the creation of the group says, when the core is made."""
    if recovered.cast is None or rejoining.hears_nothing(replica):
        return
    cast(replica, recovered.cast)
    if may_begin(recovered):
        replica.patience.begins_in = recovered.cast.term


def cast(replica: Replica, vote: VoteState) -> None:
    """The vote of the creation is cast, unless the replica has voted in that term, or is in a later one, already."""
    ballot = replica.ballot
    if ballot.term < vote.term:
        ballot.enter(vote.term)
    if ballot.term == vote.term and ballot.voted_for == NO_REPLICA:
        ballot.voted_for = vote.voted_for


def may_begin(recovered: Recovered) -> bool:
    """Whether the replica runs for the first time since it was made."""
    return recovered.created and recovered.state.is_blank and recovered.damaged_until is None and not recovered.runs


def begin(replica: Replica) -> None:
    """The shell has noted durably that this replica was made: lead if it is the first leader, wait for it if not."""
    patience, ballot = replica.patience, replica.ballot
    term, patience.begins_in = patience.begins_in, None
    if term is None or replica.leading is not None:
        return
    wait_for_leader(replica)
    if ballot.term == term and leads_first(replica):
        replica.role = Role.CANDIDATE
        replica.votes = {voter: True for voter in replica.log.configuration.voters if voter != replica.me}
        if ballot.is_durable():
            election.on_own_vote_durable(replica)


def leads_first(replica: Replica) -> bool:
    """Whether this replica is the assigned leader, and no other replica has led since."""
    return (
        replica.ballot.voted_for == replica.me
        and replica.role is Role.FOLLOWER
        and replica.leader == NO_REPLICA
        and replica.log.end == 0
        and election.may_stand(replica)
    )
