"""Where a leader epoch ended in one partition of this shard: how a reader notices that its records were cut away.

The rules are those of Kafka's leader epoch cache, which a consumer's check for truncation relies on:

==========================================  =====================================================
-1, or an epoch that is still to come       -1 and -1: nothing is known
the current epoch                           it, and the log end
an epoch in between                         the largest epoch not above it, and where the next one starts
an epoch older than any that is kept        it, and where the oldest that is kept starts
==========================================  =====================================================

A leader knows its own epoch from the start, with no record of it written yet: it starts at the log end. An epoch
whose records were all deleted is not kept; the oldest one that is starts at the log start.
"""

from bisect import bisect_right

from millstream.model.error_code import ErrorCode
from millstream.model.quantities import LeaderEpoch
from millstream.partition.partition import Partition

# (error code, leader epoch, end offset, exclusive)
EpochEnd = tuple[int, int, int]


def epoch_end(partition: Partition, current_leader_epoch: LeaderEpoch, leader_epoch: LeaderEpoch) -> EpochEnd:
    """The end of ``leader_epoch``; ``current_leader_epoch`` is who the caller thinks leads, -1 for no idea."""
    try:
        return _epoch_end(partition, current_leader_epoch, leader_epoch)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("look-up", error)
        return (int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1)


def _epoch_end(partition: Partition, current_leader_epoch: LeaderEpoch, leader_epoch: LeaderEpoch) -> EpochEnd:
    error = partition.serving(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return (int(error), -1, -1)
    current, log = partition.leader_epoch, partition.log
    if leader_epoch == -1 or leader_epoch > current:
        return (0, -1, -1)
    if leader_epoch == current:
        return (0, current, log.next_offset)
    begun = [(epoch, first) for epoch, first in log.leader_epochs if epoch < current]
    at = bisect_right(begun, leader_epoch, key=lambda entry: entry[0])
    after = begun[at][1] if at < len(begun) else _began(partition, current)
    kept = at > 0 and after > log.start_offset
    return (0, begun[at - 1][0] if kept else leader_epoch, max(after, log.start_offset))


def _began(partition: Partition, current: int) -> int:
    """Where the current epoch starts: with its first record, or at the log end while it has no record."""
    last = partition.log.leader_epochs[-1:]
    return last[0][1] if last and last[0][0] == current else partition.log.next_offset
