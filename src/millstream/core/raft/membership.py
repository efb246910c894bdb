"""Members of a group: how a leader changes them, and what follows from a change.

Voters change in two entries (joint consensus): the first needs majorities of the old and of the new voters, and the
leader appends the second by itself when the first is committed. Learners alone change in one entry. A configuration is
in force from its append on, on every replica, and until it is truncated.

A change is refused, and nothing happens, while another one is not committed, before the leader has committed an entry
of its own term (the error in the first published single-server change, raft-dev, July 2015), and for a new voter that
is not a caught-up learner. A leader that is no longer a voter leads until that is committed, and then steps down.

`steer` takes a group to other members step by step; each leader continues where the last one was::

    voters (1, 2, 3) ──► learner 4 ──► 4 has caught up ──► joint (1, 2, 4) and (1, 2, 3) ──► voters (1, 2, 4)

Source: Ongaro's thesis, chapter 4; the joint form: Ongaro and Ousterhout, "In Search of an Understandable Consensus
Algorithm", section 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.leader_log import append_control
from millstream.core.raft.messages import Configuration, TimeoutNow
from millstream.core.raft.progress import Flow, Progress
from millstream.core.raft.quorum import is_voter, members
from millstream.core.raft.ready import Refusal, Role
from millstream.core.raft.roles import follow
from millstream.model.replication import NO_REPLICA

if TYPE_CHECKING:
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import RaftPosition, ReplicaId


def propose_members(replica: Replica, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]) -> Refusal | None:
    """Start the change to these members; None if it has started. It is done when a configuration without outgoing
    voters is committed.
    """
    now = replica.log.configuration
    refusal = _change_refused(replica, voters, learners)
    if refusal is not None:
        return refusal
    outgoing = () if set(voters) == set(now.voters) else now.voters
    append_control(replica, Configuration(voters, outgoing, learners))
    meet_members(replica)
    return None


def steer(replica: Replica, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]) -> bool:
    """Take the next step towards these members, if this replica leads and one can be taken now. True when they are the
    members, ``voters`` in this order, and that is committed. No replica is in both tuples, and ``voters`` has some.
    """
    leading = replica.leading
    if leading is None or replica.ends.committed < leading.term_start_end or change_in_flight(replica):
        return False
    now = replica.log.configuration
    if now.voters == voters and set(now.learners) == set(learners):
        return True
    missing = [voter for voter in voters if voter not in now.voters]
    if all(_has_caught_up(replica, voter) for voter in missing):
        still = tuple(learner for learner in learners if learner not in now.voters)
        propose_members(replica, voters, still)
        return False
    wanted = tuple(dict.fromkeys((*missing, *learners)))
    wanted = tuple(learner for learner in wanted if learner not in now.voters)
    if set(wanted) != set(now.learners):
        propose_members(replica, now.voters, wanted)
    return False


def meet_members(replica: Replica) -> None:
    """Leader: have a progress for every other member, and for no other replica."""
    leading = replica.leading
    assert leading is not None
    wanted = [member for member in members(replica.log.configuration) if member != replica.me]
    known = leading.peers
    leading.peers = {member: known.get(member) or Progress(replica.log.end, replica.now) for member in wanted}
    if leading.transferee not in leading.peers:
        leading.transferee = NO_REPLICA


def after_commit(replica: Replica) -> None:
    """Leader: the committed end has moved. Leave a joint configuration, or the leadership of a group without me."""
    log = replica.log
    if log.configured_at > replica.ends.committed:
        return
    configuration = log.configuration
    if configuration.outgoing:
        append_control(replica, Configuration(configuration.voters, (), configuration.learners))
        meet_members(replica)
    elif replica.role is Role.LEADER and not is_voter(configuration, replica.me):
        best = most_caught_up(replica)
        if best is not None:
            replica.send(best, TimeoutNow(replica.ballot.term))
        follow(replica, replica.ballot.term, NO_REPLICA)


def most_caught_up(replica: Replica) -> ReplicaId | None:
    """The voter with the longest log among those that replicate; None if no voter replicates."""
    leading = replica.leading
    assert leading is not None
    best: tuple[RaftPosition, ReplicaId] | None = None
    for voter in replica.log.configuration.voters:
        progress = leading.peers.get(voter)
        if progress is None or progress.flow is not Flow.REPLICATE:
            continue
        if best is None or progress.received > best[0]:
            best = (progress.received, voter)
    return best[1] if best is not None else None


def _change_refused(replica: Replica, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]) -> Refusal | None:
    leading = replica.leading
    if leading is None:
        return Refusal.NOT_LEADER
    if leading.transferee != NO_REPLICA:
        return Refusal.TRANSFERRING
    if replica.ends.committed < leading.term_start_end:
        return Refusal.NOT_READY
    now = replica.log.configuration
    if change_in_flight(replica):
        return Refusal.CHANGE_IN_FLIGHT
    wanted = (*voters, *learners)
    if not voters or len(set(wanted)) < len(wanted) or (set(learners) & set(now.voters)):
        return Refusal.INVALID
    if not all(voter in now.voters or _has_caught_up(replica, voter) for voter in voters):
        return Refusal.NOT_CAUGHT_UP
    return None


def _has_caught_up(replica: Replica, member: ReplicaId) -> bool:
    """Leader: whether another member has on its disk what is committed."""
    leading = replica.leading
    progress = leading.peers.get(member) if leading is not None else None
    return progress is not None and progress.flow is Flow.REPLICATE and progress.durable >= replica.ends.committed


def change_in_flight(replica: Replica) -> bool:
    """Whether the configuration in force is joint or not committed yet."""
    log = replica.log
    return bool(log.configuration.outgoing) or log.configured_at > replica.ends.committed
