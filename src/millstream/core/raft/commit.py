"""Commit by counting: what a quorum has on its disks, and under write caching what it has in memory.

Each replica counts up to what it has synced, the leader included (A6). Only an entry of the leader's own term is
counted; what earlier terms left is committed with it (figure 8 of the Raft paper). Learners do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.membership import after_commit
from millstream.core.raft.quorum import reached
from millstream.model.replication import RaftPosition

if TYPE_CHECKING:
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReplicaId


def advance(replica: Replica) -> None:
    """Leader: move the committed and the visible end as far as the answers allow."""
    ends = replica.ends
    committed = RaftPosition(reached(replica.log.configuration, lambda voter: durable_of(replica, voter)))
    if committed > ends.committed and may_count(replica, committed):
        ends.committed = committed
        after_commit(replica)
    if replica.write_caching and replica.leading is not None:
        received = RaftPosition(reached(replica.log.configuration, lambda voter: received_of(replica, voter)))
        if received > ends.visible and may_count(replica, received):
            ends.visible = received
    ends.visible = max(ends.visible, ends.committed)


def may_count(replica: Replica, position: RaftPosition) -> bool:
    """Whether the entry that ends there is of this leader's term."""
    return replica.log.term_at(position) == replica.ballot.term


def durable_of(replica: Replica, voter: ReplicaId) -> int:
    """End of what a voter is known to have on disk."""
    if voter == replica.me:
        return replica.ends.durable
    leading = replica.leading
    assert leading is not None
    return leading.peers[voter].durable


def received_of(replica: Replica, voter: ReplicaId) -> int:
    """End of what a voter is known to have in memory."""
    if voter == replica.me:
        return replica.log.end
    leading = replica.leading
    assert leading is not None
    return leading.peers[voter].received
