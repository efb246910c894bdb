"""Find an offset by time in one partition of this shard; what the special timestamps mean stands in the Kafka handler.

What of the log is archived is searched before what is local. Local segments may be deleted while a search lasts, when
the archive has them: the part that has left the local log since then is searched again.

The answer's leader epoch is the epoch of the record that was found, so that a consumer can notice a truncated log later
(KIP-320).
"""

from collections.abc import Callable
from typing import Final

from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import LeaderEpoch, Offset, RequestedTime, TimestampMs
from millstream.partition.asked import Asked
from millstream.partition.partition import Partition
from millstream.tiers.messages import Found as FoundInArchive

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

# (error code, timestamp, offset, leader epoch)
Found = tuple[int, int, int, int]
_NOTHING: Final[Found] = (0, -1, -1, -1)
_FAILED: Final[Found] = (int(ErrorCode.KAFKA_STORAGE_ERROR), -1, -1, -1)

_OF_THE_START: Final = (EARLIEST, EARLIEST_LOCAL)
OnFound = Callable[[tuple[int, int, int] | MillstreamError | None], None]


def list_offset(
    partition: Partition,
    timestamp: RequestedTime,
    current_leader_epoch: LeaderEpoch,
    isolation_level: int,
    done: Callable[[Found], None],
) -> None:
    """Call ``done`` once, now or when the helper process has answered."""
    asked = Asked(partition, "look-up", done, _FAILED)
    asked.run(_list_offset, partition, timestamp, current_leader_epoch, isolation_level, asked)


def _list_offset(
    partition: Partition,
    timestamp: RequestedTime,
    current_leader_epoch: LeaderEpoch,
    isolation_level: int,
    done: Callable[[Found], None],
) -> None:
    error = partition.serving(current_leader_epoch)
    if error is ErrorCode.NONE and not partition.group.knows_committed:
        # A leader that has just been elected may know neither all that is committed nor the newest log start, and after
        # a start the object store may not have confirmed what was committed before it.
        error = ErrorCode.OFFSET_NOT_AVAILABLE
    if error is not ErrorCode.NONE:
        done((int(error), -1, -1, -1))
        return
    log = partition.log
    end = partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark
    if timestamp == LATEST:
        done((0, -1, end, partition.leader_epoch))
    elif timestamp in _OF_THE_START:
        start = log.start_offset if timestamp == EARLIEST else max(log.start_offset, log.first_local_offset)
        done((0, -1, start, _epoch_at(partition, start)))
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        done(_of_archive(partition, timestamp))
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
            _largest(partition, Offset(end), found)
        else:
            _find(partition, TimestampMs(timestamp), log.start_offset, Offset(end), found)
    else:
        done(_NOTHING)


def _find(partition: Partition, timestamp: TimestampMs, start: Offset, end: Offset, found: OnFound) -> None:
    """The first record in [``start``, ``end``) that is late enough: in the archived part of the log, then in the local
    one.
    """
    archive, log = partition.archive, partition.log
    local_start = max(start, log.first_local_offset)

    def of_local(result: tuple[int, int, int] | MillstreamError | None) -> None:
        if archive is not None and log.first_local_offset > local_start and not partition.closed:
            _find(partition, timestamp, local_start, end, found)
        else:
            found(result)

    def of_archive(result: FoundInArchive | MillstreamError | None) -> None:
        if result is not None:
            found(result if isinstance(result, MillstreamError) else _numbers(result))
        else:
            log.offset_for_timestamp(timestamp, end, of_local)

    if archive is None or max(start, log.start_offset) >= local_start:
        log.offset_for_timestamp(timestamp, end, of_local)
    else:
        archive.find(timestamp, start, min(end, local_start), of_archive)


def _largest(partition: Partition, end: Offset, found: OnFound) -> None:
    """The record below ``end`` with the largest timestamp of the whole log: the first of several."""
    archive, log = partition.archive, partition.log
    local_start = log.first_local_offset

    def of_local(local: tuple[int, int, int] | MillstreamError | None) -> None:
        if isinstance(local, MillstreamError) or archive is None or partition.closed:
            found(local)
        elif log.first_local_offset > local_start:
            _largest(partition, end, found)
        elif log.start_offset >= local_start:
            found(local)
        else:

            def of_archive(result: FoundInArchive | MillstreamError | None) -> None:
                if result is None:
                    found(local)
                else:
                    found(result if isinstance(result, MillstreamError) else _numbers(result))

            least = TimestampMs(-1 if local is None else local[1])
            archive.find_largest(least, min(end, local_start), of_archive)

    log.max_timestamp(end, of_local)


def _numbers(result: FoundInArchive) -> tuple[int, int, int]:
    return result.offset, result.timestamp, result.leader_epoch


def _of_archive(partition: Partition, timestamp: int) -> Found:
    """The last archived offset (KIP-1005), or the first that is not archived."""
    if partition.archive is None:
        return _NOTHING
    end = partition.archive.archive.end_offset
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return (0, -1, end, _epoch_at(partition, end))
    if partition.archive.archive.is_empty:
        return _NOTHING
    return (0, -1, end - 1, _epoch_at(partition, end - 1))


def _epoch_at(partition: Partition, offset: int) -> int:
    """The epoch in which ``offset`` was (or will be) written."""
    found = -1
    for epoch, start in partition.log.leader_epochs:
        if start > offset:
            break
        found = epoch
    return found if found >= 0 else partition.leader_epoch
