"""Reading entries by Raft position, for a leader that sends them: whole batches, lent from the log cache or read by the
worker.

The bytes are those of the batches between two positions. Control entries have no bytes in the log: the Raft core has
them. A read may end early: at the budget, or at a segment's end. It takes at least one batch, or the control entries up
to the next batch. What was trimmed or compacted can't be sent entry by entry (``first_position``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import MillstreamError, Rejected
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition
from millstream.storage.log.cold_reads import ColdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.replication import RaftPosition
    from millstream.storage.log.cold_reads import ColdReads
    from millstream.storage.log.open_log import OpenLog


class EntryRead(NamedTuple):
    """Batches of a log, and the Raft position at which they end."""

    buf: IoBuf
    """The receiver releases it."""
    end: RaftPosition
    """Exclusive; between two entries."""


def first_position(log: OpenLog) -> RaftPosition:
    """Start of the entries that the log has one by one: after what was trimmed, compacted or folded."""
    first = log.files.segments.first
    compacted = [one.end_offset for one in log.files.segments if one.generation]
    return log.raft.controls.position_before(max(first.base_offset, *compacted, log.raft.controls.base.offset))


def read_cached(log: OpenLog, start: RaftPosition, limit: RaftPosition, max_bytes: int) -> EntryRead | None:
    """What ``Log.read_entries`` does."""
    limit = _bounded(log, start, limit, max_bytes)
    offset, end_offset = log.raft.controls.offset_at(start), log.raft.controls.offset_at(limit)
    if offset >= end_offset:
        return EntryRead(IoBuf(), limit)
    cache = log.cache
    begin = cache.position_of(offset)
    end = log.next_position if end_offset >= log.next_offset else cache.position_of(end_offset)
    if begin is None or end is None:
        return None
    found = cache.read(offset, end, max_bytes, minimum_one=True)
    if found is None or begin + len(found) >= end:
        return None if found is None else EntryRead(found, limit)
    return EntryRead(found, log.raft.controls.position_of(cache.offset_at(BytePosition(begin + len(found)))))


def read_cold(
    log: OpenLog,
    reads: ColdReads,
    start: RaftPosition,
    limit: RaftPosition,
    max_bytes: int,
    done: Callable[[EntryRead | MillstreamError], None],
) -> None:
    """What ``Log.read_entries_cold`` does."""
    limit = _bounded(log, start, limit, max_bytes)
    controls = log.raft.controls
    end_offset = controls.offset_at(limit)

    def finished(found: IoBuf | MillstreamError) -> None:
        if isinstance(found, MillstreamError):
            done(found)
        else:
            end = limit if call.found_end >= end_offset else controls.position_of(call.found_end)
            done(EntryRead(found, end))

    request = ColdRequest(controls.offset_at(start), end_offset, max_bytes, below_start=True)
    call = reads.read(log, request, finished)


def _bounded(log: OpenLog, start: RaftPosition, limit: RaftPosition, max_bytes: int) -> RaftPosition:
    """The limit, or an earlier one in front of a control entry: those before take up the budget."""
    if start < first_position(log):
        raise Rejected(
            f"{log.name}: entries from position {start} are no longer kept one by one", ErrorCode.OFFSET_OUT_OF_RANGE
        )
    limit = min(limit, log.next_raft_position)
    taken = 0
    for one in log.raft.controls.between(start, limit):
        taken += len(one.payload)
        if taken > max_bytes and one.position > start:
            return one.position
    return limit
