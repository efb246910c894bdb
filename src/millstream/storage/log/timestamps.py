"""From a timestamp to an offset: the segment by what is known of each, the batch by the index, the record by looking
into one batch.

Segments and batches are chosen by their largest timestamps, which producers may send in any order; the answer is the
*first* record in offset order that is late enough, as Kafka's ListOffsets wants it. Every batch that is passed on the
way is held against its checksum: after a damaged one no record is an answer. There is one way to look: the worker's,
which may block and decompress. What is still only in the log cache is written to its segment for that, but
only when nothing before it is late enough: on a full disk that has to wait. After ``stop`` the worker is asked nothing
more: a search that would is refused retriably.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import Corruption, MillstreamError, Retriable, Unavailable
from millstream.format.epochs import epoch_at
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition, Offset, TimestampMs
from millstream.model.replication import Term
from millstream.storage.messages.commands import Find, Found, FoundRecord
from millstream.storage.segments.read_faults import closed, raise_fault, stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import HelperLink
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.segments.read_faults import ReadFaults

    Answer = FoundRecord | MillstreamError | None
    Done = Callable[[Answer], None]


class _Reach(NamedTuple):
    """How far a search looks, although more may be written while it runs: what comes later in the log is no answer as
    long as something before it was not searched.
    """

    position: int
    """In the log's stream."""

    partial: bool
    """It may lie within a batch."""

    generation: int
    """Of the log: after a cut of its end, the position says nothing."""


class Timestamps:
    """Lookups of one shard's logs."""

    def __init__(self, worker: HelperLink[Any, Any], faults: ReadFaults) -> None:
        self._worker = worker
        self._faults = faults
        self._stopped = False

    def stop(self) -> None:
        """Send no more requests: the worker is to end, and may not answer them."""
        self._stopped = True

    def find(self, log: OpenLog, timestamp: TimestampMs, end_offset: Offset, done: Done) -> None:
        """See ``Log.offset_for_timestamp``."""
        self._find(log, _all_below(log, end_offset), timestamp, end_offset, done)

    def _find(self, log: OpenLog, reach: _Reach, timestamp: TimestampMs, end_offset: Offset, done: Done) -> None:
        if log.ends.written_position >= reach.position:
            self._search(log, None, reach, timestamp, end_offset, done)
            return

        def first_try(answer: Answer) -> None:
            if answer is not None:
                done(answer)
            else:
                log.behind.when_written(
                    BytePosition(reach.position), lambda: self._search(log, None, reach, timestamp, end_offset, done)
                )

        written = _Reach(log.ends.written_position, partial=True, generation=log.ends.generation)
        self._search(log, None, written, timestamp, end_offset, first_try)

    def find_largest(self, log: OpenLog, end_offset: Offset, done: Done) -> None:
        """See ``Log.max_timestamp``."""
        largest = max(segment.max_timestamp for segment in log.files.segments.all())
        if largest < 0:
            # Records without timestamps, if there are any: the first of them, as in Kafka.
            self.find(log, largest, end_offset, done)
            return
        reach = _all_below(log, end_offset)

        def first_try(answer: Answer) -> None:
            # The batch that made it the largest may be out of bounds, above the end or below the start: then look at
            # all.
            if answer is not None:
                done(answer)
            else:
                self._largest_of_all(log, reach, end_offset, done)

        self._find(log, reach, largest, end_offset, first_try)

    def _search(
        self, log: OpenLog, after: Segment | None, reach: _Reach, timestamp: TimestampMs, end_offset: Offset, done: Done
    ) -> None:
        """Ask the worker about the next segment that may hold it."""
        if log.closed:
            done(closed(log.name))
            return
        log.refresh()
        for segment in log.files.segments.all():
            if after is not None and segment.end_offset <= after.end_offset:
                continue
            if segment.base_offset >= end_offset or segment.stream >= reach.position:
                break
            if segment.max_timestamp < timestamp or not segment.size_bytes or segment.end_offset <= log.start_offset:
                continue

            def answered(answer: Answer, segment: Segment = segment) -> None:
                if answer is None:
                    # One that compaction took the place of, maybe of its file too, is looked for once more.
                    last = after if segment.dead else segment
                    self._search(log, last, reach, timestamp, end_offset, done)
                else:
                    done(answer)

            self._ask(log, segment, reach, timestamp, end_offset, answered, largest=False)
            return
        done(None)

    def _largest_of_all(self, log: OpenLog, reach: _Reach, end_offset: Offset, done: Done) -> None:
        """The largest of all segments; those that can hold no larger one than was found are not read."""
        best: list[FoundRecord] = []
        segments = [one for one in log.files.segments.all() if one.base_offset < end_offset and one.size_bytes]
        segments.sort(key=_latest, reverse=True)
        asked: list[Segment] = []

        def following(answer: Answer) -> None:
            if log.closed:
                answer = closed(log.name)
            if isinstance(answer, MillstreamError):
                done(answer)
                return
            if answer is not None and (not best or (answer[1], -answer[0]) > (best[0][1], -best[0][0])):
                best[:] = [answer]
            if segments and (not best or _latest(segments[0]) > (best[0][1], -best[0][0])):
                asked.append(segments.pop(0))
                self._ask(log, asked[-1], reach, TimestampMs(-1), end_offset, following, largest=True)
            elif any(one.dead for one in asked):
                # Compaction took the place of what was asked.
                self._largest_of_all(log, reach, end_offset, done)
            else:
                done(best[0] if best else None)

        following(None)

    def _ask(
        self,
        log: OpenLog,
        segment: Segment,
        reach: _Reach,
        timestamp: TimestampMs,
        end_offset: Offset,
        answered: Done,
        *,
        largest: bool,
    ) -> None:
        if self._stopped:
            answered(stopping(log.name))
            return
        if reach.generation != log.ends.generation:
            answered(_cut(log))
            return
        limit = min(reach.position - segment.stream, segment.size_bytes)
        if limit <= 0:
            answered(None)
            return
        grows = reach.partial and limit < segment.size_bytes
        start, number = max(log.start_offset, segment.base_offset), self._worker.next_id()
        command = Find(number, segment.path, segment.base_offset, limit, timestamp, start, end_offset, largest, grows)

        def failed(fault: Exception) -> None:
            log.guard("look-up", raise_fault, fault)
            log.guard("look-up", answered, closed(log.name))

        found = partial(log.guard, "look-up", self._answer, log, segment, reach, answered)
        self._worker.ask(command, Found, found, failed)

    def _answer(self, log: OpenLog, segment: Segment, reach: _Reach, answered: Done, reply: Found) -> None:
        """The worker's reply."""
        name, path = log.name, segment.path
        fault = reply.fault
        if reply.errno == errno.ENOENT:
            if segment.dead or log.closed:
                answered(None)  # the segment was deleted in the meantime
                return
            fault = f"{path} is missing"
        if fault and reach.generation != log.ends.generation:
            answered(_cut(log))
        elif fault:
            self._faults.corrupt(name, path, Offset(-1), fault)
            answered(Corruption(f"{name}: {fault}"))
        elif reply.errno:
            self._faults.failed(name, path, reply.errno)
            answered(Unavailable(f"{name}: {path} could not be read: {os.strerror(reply.errno)}"))
        elif reply.offset < 0:
            answered(None)
        else:
            # In the batch it is outside the checksum.
            known = epoch_at(log.raft.epochs, reply.offset)
            epoch = Term(reply.leader_epoch if known < 0 else known)
            answered(FoundRecord(Offset(reply.offset), TimestampMs(reply.timestamp), epoch))


def _all_below(log: OpenLog, end_offset: int) -> _Reach:
    """Up to a batch's end after all records below ``end_offset``."""
    # With ``write.caching`` readers see more than what is durable.
    position = log.ends.durable_position if end_offset <= log.durable_offset else log.next_position
    return _Reach(position, partial=False, generation=log.ends.generation)


def _cut(log: OpenLog) -> Retriable:
    return Retriable(f"{log.name}: its end was cut while it was searched", ErrorCode.KAFKA_STORAGE_ERROR)


def _latest(segment: Segment) -> tuple[int, int]:
    """No record of it is later, or as late and in front of this."""
    return segment.max_timestamp, -segment.base_offset
