"""Unsafe recovery: one replica of a group that has lost its majority permanently leads alone from now on.

::

    voters (1, 2, 3), 2 and 3 lost ──lead_alone on 1──► vote of a new term, durable ──► term start, configuration (1)
                                                                                         committed by its own disk

The replica takes the leadership that no election could give it: it votes for itself in the next term, and when that is
on disk it starts to lead with two entries, its term start and a configuration of itself alone. Both are in one write,
so a crash leaves the old members or the new one. From then on it is a group like any other: other members join it by
`membership`.

**What it breaks.** An entry that only lost replicas had is lost, although it may have been committed; and two lost
replicas of three that come back would elect a leader of their own. The caller has to make sure that they never do, and
takes the replica with the newest log (`core.raft.election.is_up_to_date`), which has everything that another survivor
knows to be committed. A replica that has lost a part of its own log must not be taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.quorum import Outcome, tally
from millstream.core.raft.ready import Role
from millstream.core.raft.roles import follow
from millstream.model.replication import NO_REPLICA, Term, node_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from millstream.core.raft.messages import Configuration
    from millstream.core.raft.replica import Replica


def lacks_quorum(configuration: Configuration, lost: Collection[int]) -> bool:
    """Whether no leader can be elected, and nothing committed, without the brokers ``lost`` (node ids)."""
    voters = (*configuration.voters, *configuration.outgoing)
    gone = {voter: False for voter in voters if node_of(voter) in lost}
    return bool(gone) and tally(configuration, gone) is Outcome.LOST


def lead_alone(replica: Replica) -> None:
    """Stand as the only voter; the term starts when the vote for it is durable."""
    assert replica.leading is None and replica.patience.damaged_until is None
    follow(replica, Term(replica.ballot.term + 1), NO_REPLICA)
    replica.ballot.voted_for = replica.me
    replica.role = Role.CANDIDATE
    replica.installing = None
    replica.patience.contact_us = replica.now
    replica.alone = True
