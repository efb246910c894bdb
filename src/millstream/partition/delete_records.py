"""DeleteRecords on a partition's home shard: let its log start later, and say so once that is durable.

========================================  =============================================
offset                                    answer
========================================  =============================================
-1                                        the log starts at the high watermark
up to the high watermark                  the log starts there; never further back
beyond it, or below -1                    OFFSET_OUT_OF_RANGE
any, topic without ``delete``             POLICY_VIOLATION: the key's last record must survive
========================================  =============================================

The answer comes after the sync of the note that moves the start, so no crash brings a record back whose
deletion a client had confirmed. Where the object store acknowledges in the place of the disk (``shared.wal=object``),
it comes when an entry there has the start. Readers find the new start at once. Without memory for the note the request
waits for it, like the broker's own appends; a partition that closes before that is unknown.
"""

from collections.abc import Callable
from typing import Final

from millstream.errors import MillstreamError
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.asked import Asked
from millstream.partition.partition import Partition
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

HIGH_WATERMARK: Final = -1

# (error code, where the log starts, -1 with an error)
Deleted = tuple[int, int]
NO_LOW_WATERMARK: Final = -1

_LINES: Final = RateLimit(per_minute=30)
"""Of this process: records are lost, but applications may do that all the time."""


def delete_records(partition: Partition, offset: Offset, done: Callable[[Deleted], None]) -> None:
    """Call ``done`` once, when records before ``offset`` are durably gone or cannot be."""
    asked = Asked(partition, "deletion", done, (int(ErrorCode.REQUEST_TIMED_OUT), NO_LOW_WATERMARK))
    asked.run(_delete_records, partition, offset, asked)


def _delete_records(partition: Partition, offset: Offset, done: Asked[Deleted]) -> None:
    refusal, start = _judged(partition, offset)
    if refusal is not ErrorCode.NONE:
        done((int(refusal), NO_LOW_WATERMARK))
        return

    before = partition.log.start_offset

    def settled(error: ErrorCode) -> None:
        if error:
            done((int(error), NO_LOW_WATERMARK))
            return
        if start > before and _LINES.allows():
            gone = f"offsets {before} to {start - 1} are deleted{_LINES.left_out()}"
            operator_log.at(partition.log.name).info("DeleteRecords: %s", gone)
        done((0, max(start, partition.log.start_offset)))

    def attempt() -> bool:
        try:
            return propose()
        except Exception as error:  # noqa: BLE001 - the boundary
            partition.failed("deletion", error)
            done.refuse()
            return True

    def propose() -> bool:
        if partition.refusal or start <= partition.settled_start:
            settled(partition.refusal)
            return True
        try:
            partition.group.propose_log_start(Offset(start))
        except ArenaFull:
            return False
        except MillstreamError as error:
            settled(error.code)
        else:
            partition.waiters.trims.append((start, settled))
        return True

    if attempt():
        return
    if partition.admission is None:
        done((int(ErrorCode.KAFKA_STORAGE_ERROR), NO_LOW_WATERMARK))
    else:
        partition.admission.add_own(attempt)


def _judged(partition: Partition, offset: int) -> tuple[ErrorCode, int]:
    """Whether the partition may start at ``offset``, and which offset that is."""
    if partition.refusal:
        return partition.refusal, offset
    if "delete" not in partition.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION, offset
    start = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not partition.group.knows_committed and (offset == HIGH_WATERMARK or start > partition.high_watermark):
        return ErrorCode.OFFSET_NOT_AVAILABLE, start
    if not 0 <= start <= partition.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, start
    return ErrorCode.NONE, start
