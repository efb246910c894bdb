"""Find an offset by time in one partition of this shard; what the special timestamps mean stands in the Kafka handler.

The answer's leader epoch is the epoch of the record that was found, so that a consumer can notice a truncated log later
(KIP-320).
"""

from collections.abc import Callable
from typing import Final

from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, TimestampMs
from millstream.partition.partition import Partition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

# (error code, timestamp, offset, leader epoch)
Found = tuple[int, int, int, int]
_NOTHING: Final[Found] = (0, -1, -1, -1)


def list_offset(
    partition: Partition,
    timestamp: int,
    current_leader_epoch: int,
    isolation_level: int,
    done: Callable[[Found], None],
) -> None:
    """Call ``done`` once, now or when the helper process has looked."""
    error = partition.serving(current_leader_epoch)
    if error is ErrorCode.NONE and timestamp not in (EARLIEST, EARLIEST_LOCAL) and not partition.group.is_serving:
        error = ErrorCode.OFFSET_NOT_AVAILABLE  # a leader that has just been elected may not know all that is committed
    if error is not ErrorCode.NONE:
        done((int(error), -1, -1, -1))
        return
    log = partition.log
    end = partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark
    if timestamp == LATEST:
        done((0, -1, end, partition.leader_epoch))
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.start_offset
        done((0, -1, start, _epoch_at(partition, start)))
    elif timestamp == MAX_TIMESTAMP or timestamp >= 0:

        def found(result: tuple[int, int, int] | MillstreamError | None) -> None:
            if isinstance(result, MillstreamError):
                done((int(result.code), -1, -1, -1))
            elif result is None:
                done(_NOTHING)
            else:
                offset, at, epoch = result
                done((0, at, offset, epoch))

        if timestamp == MAX_TIMESTAMP:
            log.max_timestamp(Offset(end), found)
        else:
            log.offset_for_timestamp(TimestampMs(timestamp), Offset(end), found)
    else:
        done(_NOTHING)


def _epoch_at(partition: Partition, offset: int) -> int:
    """The epoch in which ``offset`` was (or will be) written."""
    found = -1
    for epoch, start in partition.log.leader_epochs:
        if start > offset:
            break
        found = epoch
    return found if found >= 0 else partition.leader_epoch
