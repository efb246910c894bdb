"""Handing over leadership: on request, before the broker stops, and away from a disk that stalls.

The target must replicate. The leader takes no proposals during it, waits until the target has its whole log, and asks
it to stand at once. If no new leader has come after a timeout the old one continues; nothing is lost either way (A16).

Source: Ongaro's thesis, section 3.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.membership import most_caught_up
from millstream.core.raft.messages import TimeoutNow
from millstream.core.raft.progress import Flow
from millstream.core.raft.ready import Refusal
from millstream.model.replication import NO_REPLICA, TimeUs

if TYPE_CHECKING:
    from millstream.core.raft.replica import Leading, Replica
    from millstream.model.replication import ReplicaId


def transfer(replica: Replica, to: ReplicaId) -> Refusal | None:
    """Start to hand over to ``to``; None if it has started. A `RoleChange` tells when it is done."""
    leading = replica.leading
    if leading is None:
        return Refusal.NOT_LEADER
    if leading.transferee != NO_REPLICA:
        return Refusal.TRANSFERRING
    if to == replica.me or to not in replica.log.configuration.voters:
        return Refusal.NOT_A_VOTER
    if leading.peers[to].flow is not Flow.REPLICATE:
        return Refusal.NOT_CAUGHT_UP
    leading.transferee = to
    leading.transfer_deadline_us = TimeUs(replica.now + replica.options.transfer_timeout_us)
    leading.timeout_sent = False
    ask_to_stand(replica, leading)
    return None


def leave(replica: Replica) -> bool:
    """Stand for no election from now on, and start to hand leadership over to the voter that has most of the log;
    whether a handover is in progress.
    """
    replica.patience.forbidden = True
    leading = replica.leading
    if leading is not None and leading.transferee == NO_REPLICA:
        best = most_caught_up(replica)
        if best is not None:
            transfer(replica, best)
    return leading is not None and leading.transferee != NO_REPLICA


def ask_to_stand(replica: Replica, leading: Leading) -> None:
    """Ask the transferee to stand, if it has the whole log."""
    target = leading.peers[leading.transferee]
    if not leading.timeout_sent and target.received >= replica.log.end:
        leading.timeout_sent = True
        replica.send(leading.transferee, TimeoutNow(replica.ballot.term))


def deadline_passed(replica: Replica, leading: Leading) -> None:
    """Give up a handover that takes too long; start one if the own disk stalls."""
    if leading.transferee != NO_REPLICA:
        if replica.now >= leading.transfer_deadline_us:
            leading.transferee = NO_REPLICA
        return
    due = stall_deadline(replica, leading)
    if due is not None and replica.now >= due:
        leading.unsynced_since_us = replica.now
        best = most_caught_up(replica)
        if best is not None:
            transfer(replica, best)


def stall_deadline(replica: Replica, leading: Leading) -> TimeUs | None:
    """When the own disk counts as stalled; None while it has nothing to sync."""
    if leading.unsynced_since_us is None or not replica.options.disk_stall_us:
        return None
    return TimeUs(leading.unsynced_since_us + replica.options.disk_stall_us)
