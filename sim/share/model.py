"""The share partition once more, one offset at a time, without runs: slow and simple. It gets what the real one gets,
and has to come to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.share.batches import RecordState
from millstream.core.share.partition import ACCEPT, RELEASE, RENEW
from millstream.model.error_code import ErrorCode
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.share.batches import Batch
    from millstream.core.share.partition import Acknowledgement, Acquired, Limits, Request, SharePartition, Write

FREE, HELD, DONE, DROPPED = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


class Record(msgspec.Struct):
    """One offset."""

    state: RecordState = FREE
    count: int = 0
    member: str = ""
    token: int = 0
    deadline_us: int = 0
    pending: RecordState | None = None
    changed: bool = False
    sent: bool = False
    whole: int = 0

    def free(self, state: RecordState) -> None:
        """Nobody holds it."""
        self.state, self.member, self.token, self.deadline_us, self.pending = state, "", 0, 0, None

    def will_be(self) -> RecordState:
        """Its state after the write that it waits for."""
        return self.state if self.pending is None else self.pending


class Model:
    """One share partition."""

    def __init__(self, start: int, stored: Sequence[Batch], limits: Limits, *, is_stored: bool) -> None:
        self.limits = limits
        self.start = start
        self.stored_start = start if is_stored else None
        self.used = is_stored
        self.records: dict[int, Record] = {}
        self.sent_start: int | None = None
        end = max([start, *(batch.last + 1 for batch in stored)])
        for offset in range(start, end):
            self.records[offset] = Record()
        for batch in stored:
            first = max(batch.first, start)
            for offset in range(first, batch.last + 1):
                state = FREE if batch.state is HELD else batch.state
                self.records[offset] = Record(state, batch.count, whole=batch.last - first + 1)
        self.end = end
        self._advance()

    def _advance(self) -> None:
        while self.start < self.end and self.records[self.start].state >= DONE:
            del self.records[self.start]
            self.start += 1

    def _lapse(self, record: Record) -> None:
        record.free(DROPPED if record.count >= self.limits.deliveries_max else FREE)
        record.changed, record.sent = True, False

    def expire(self, now_us: int) -> None:
        """Deadlines."""
        for record in self.records.values():
            if record.state is HELD and record.pending is None and record.deadline_us <= now_us:
                self._lapse(record)
        self._advance()

    def acquire(
        self, request: Request, read_from: int, batches: Sequence[tuple[int, int]], read_end: int, now_us: int,
        given: Sequence[Acquired],
    ) -> None:  # fmt: skip
        """Check what the real one has ``given``, and give it, too."""
        self.expire(now_us)
        got = {offset: one.count for one in given for offset in range(one.first, one.last + 1)}
        wanted = self._wanted(request, read_from, batches, read_end, got)
        if {offset: self.records[offset].count + 1 for offset in wanted} != got:
            raise Violation(f"model: {sorted(got)} were given, not {wanted}")
        for one in given:
            inside = any(first <= one.first and one.last <= last for first, last in batches)
            if one.last - one.first >= request.batch_size and not inside:
                raise Violation(f"model: {one} has more records than asked for")
            for offset in range(one.first, one.last + 1):
                record = self.records[offset]
                if not self._part(record):
                    record.whole = 0
                record.changed = record.changed or record.sent
                record.sent = False
                record.state, record.count = HELD, record.count + 1
                record.member, record.token = request.member, request.token
                record.deadline_us = now_us + self.limits.lock_us
        self.used = self.used or bool(given)
        self._advance()

    def _wanted(
        self, request: Request, read_from: int, batches: Sequence[tuple[int, int]], read_end: int, got: dict[int, int]
    ) -> list[int]:
        position = max(read_from, self.start)
        wanted: list[int] = []
        if position > self.end:
            return wanted
        for first, last in batches:
            self._absent(position, first)
            if len(wanted) >= request.records_max:
                return wanted
            for offset in range(max(first, self.start, position), last + 1):
                if offset == self.end:
                    room = self.limits.locks_max - (self.end - self.start)
                    if room <= 0:
                        return wanted
                    count = last - offset + 1
                    if request.strict:
                        count = min(count, room, request.records_max - len(wanted))
                    for new in range(offset, offset + count):
                        self.records[new] = Record()
                    self.end += count
                elif offset > self.end:
                    return wanted
                record = self.records[offset]
                if record.state is not FREE:
                    continue
                if record.count >= self.limits.deliveries_max:
                    record.free(DROPPED)
                    record.changed, record.sent = True, False
                    continue
                part = self._part(record)
                if part:
                    return wanted or self._alone(offset, part, got)
                wanted.append(offset)
                if request.strict and len(wanted) >= request.records_max:
                    return wanted
            position = max(position, last + 1)
        self._absent(position, read_end)
        return wanted

    def _alone(self, offset: int, part: int, got: dict[int, int]) -> list[int]:
        """Any number of records up to ``part`` that have the count of the first."""
        if not 0 < len(got) <= part or sorted(got) != list(range(offset, offset + len(got))):
            raise Violation(f"model: {sorted(got)} were given, where {part} from {offset} on come alone")
        return sorted(got)

    def _part(self, record: Record) -> int:
        limit = self.limits.deliveries_max
        begin = max(2, (limit + 1) // 2)
        if limit <= 2 or record.count < min(begin, limit - 1):
            return 0
        return 1 if record.count >= limit - 1 else max(1, record.whole >> (record.count - begin + 1))

    def _absent(self, first: int, end: int) -> None:
        for offset in range(max(first, self.start), min(end, self.end)):
            record = self.records[offset]
            if record.state is FREE:
                record.free(DROPPED)
                record.changed, record.sent = True, False
        if first <= self.end < end and self.end - self.start < self.limits.locks_max:
            for offset in range(self.end, end):
                self.records[offset] = Record(DROPPED, changed=True)
            self.end = end

    def acknowledge(self, member: str, given: Sequence[Acknowledgement], now_us: int) -> ErrorCode | None:
        """As the real one."""
        self.expire(now_us)
        if any(one.last >= self.end for one in given):
            return ErrorCode.INVALID_REQUEST
        said = {
            offset: one.types[0 if len(one.types) == 1 else offset - one.first]
            for one in given
            for offset in range(max(one.first, self.start), one.last + 1)
        }
        for offset, kind in said.items():
            record = self.records[offset]
            if record.state is not HELD or record.member != member or record.pending is not None:
                return ErrorCode.INVALID_RECORD_STATE
            if kind == RENEW and not self.limits.renews:
                return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in said.items():
            record = self.records[offset]
            if kind == RENEW:
                record.deadline_us = now_us + self.limits.lock_us
            else:
                again = DROPPED if record.count >= self.limits.deliveries_max else FREE
                record.pending = {ACCEPT: DONE, RELEASE: again}.get(kind, DROPPED)
                record.sent = False
        return None if any(kind != RENEW for kind in said.values()) else ErrorCode.NONE

    def end_session(self, token: int) -> None:
        """As the real one."""
        for record in self.records.values():
            if record.state is HELD and record.token == token:
                if record.pending is None:
                    self._lapse(record)
                else:
                    record.deadline_us = 1
        self._advance()

    def replace_session(self, member: str, token: int) -> None:
        """As the real one."""
        for record in self.records.values():
            if record.state is HELD and record.member == member:
                record.token = token

    def move_log_start(self, start: int) -> None:
        """As the real one."""
        for offset in range(self.start, min(start, self.end)):
            del self.records[offset]
        self.start = max(self.start, start)
        self.end = max(self.end, self.start)
        self._advance()

    def take_write(self, write: Write | None) -> None:
        """Compare a write."""
        told = {offset: one for offset, one in self.records.items() if one.changed or one.pending is not None}
        if not told and (not self.used or self.start == self.stored_start):
            if write is not None:
                raise Violation("model: a write of nothing")
            return
        if write is None:
            raise Violation(f"model: no write of {sorted(told)}, start {self.start}")
        start = self.start
        while start < self.end and self.records[start].will_be() >= DONE:
            start += 1
        complete = sum(one.will_be() >= DONE for offset, one in self.records.items() if offset >= start)
        expected = {
            offset: (FREE, one.count - 1) if one.state is HELD and one.pending is None else (one.will_be(), one.count)
            for offset, one in told.items()
            if offset >= start
        }
        wrote = {
            offset: (batch.state, batch.count)
            for batch in write.batches
            for offset in range(batch.first, batch.last + 1)
        }
        if (wrote, write.start, write.complete) != (expected, start, complete):
            raise Violation(f"model: {write} was written, not {expected} from {start} on with {complete} done")
        for record in told.values():
            record.changed, record.sent = False, True
        self.sent_start = start

    def written(self, error: ErrorCode, now_us: int) -> None:
        """As the real one."""
        if error is ErrorCode.NONE:
            self.stored_start = self.sent_start
        for record in self.records.values():
            if not record.sent:
                continue
            record.sent = False
            if error is not ErrorCode.NONE:
                record.pending = None
                record.changed = record.state is not HELD or record.count > 1
            elif record.pending is not None:
                record.free(record.pending)
        self._advance()
        self.expire(now_us)

    @staticmethod
    def agree(real: ErrorCode | None, mine: ErrorCode | None) -> None:
        """Both answer the same."""
        if real is not mine:
            raise Violation(f"model: the answer is {real}, not {mine}")

    def compare(self, real: SharePartition) -> None:
        """Both are in the same state."""
        if (real.start, real.end) != (self.start, self.end):
            raise Violation(f"model: the window is [{real.start}, {real.end}), not [{self.start}, {self.end})")
        place = real.start
        for run in real.runs.all:
            if run.first != place or run.last < run.first:
                raise Violation(f"model: a run begins at {run.first}, not at {place}")
            place = run.last + 1
            one: Any = (run.state, run.count, run.member, run.token, run.deadline_us, run.pending)
            for offset in range(run.first, run.last + 1):
                record = self.records[offset]
                mine = (record.state, record.count, record.member, record.token, record.deadline_us, record.pending)
                if one != mine:
                    raise Violation(f"model: offset {offset} is {one}, not {mine}")
                record.whole = record.whole or run.whole
        if place != real.end:
            raise Violation(f"model: the runs end at {place}, not at {real.end}")
