"""SharePartition: what one group has taken of one partition, on the shard that leads the partition (KIP-932).

::

                 acquire                       written               the start passes
    Available ────────────► Acquired ─ ─ ─ ─ ─ ─ ─ ─ ─► Acknowledged ──┐
        ▲                   │      acknowledge: pending ► Archived ────┴──► forgotten
        └───────────────────┘
          release, end of the session, deadline: Archived instead, once the count has reached its limit

**What it promises.** A record has one holder at a time. A record whose acknowledgement was answered is never delivered
again. A record below the start was acknowledged, archived for a reason (rejected, a gap, delivered too often, aborted),
or deleted from its log. The delivery count of a record never exceeds the limit within one leadership. An
acknowledgement takes effect on all records that it names or on none.

**Writes.** An acknowledgement is answered when the write that holds it is done. Until then its records are *pending*:
they can neither be acquired nor acknowledged. At most one write is in flight; the next one holds everything that has
changed since, so no write overtakes another. A failed write gives its records back to their holders. Those whose
deadline has passed, or whose session has ended, are released; those that the log has lost are forgotten. The
caller waits before it takes the next write after a failure. Acquiring writes nothing, and what is released without an
acknowledgement is written, but no answer waits for it.

**Bad input.** Acknowledging below the start is answered with NONE, beyond the window with INVALID_REQUEST, and what the
member does not hold with INVALID_RECORD_STATE.

**Crash.** The next leader starts with what is stored. It delivers again what was held, and what was released and not
yet written with its former count. Offsets in the window of which nothing is stored are available again.

**Overload.** The window has at most ``locks_max`` offsets from its start to its end, or one batch more where whole
batches are taken. A full window gives out again only what was released in it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from millstream.core.share.batches import Batch, RecordState, merge
from millstream.core.share.runs import Run, Runs, SessionToken
from millstream.core.share.tally import Tally
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset

AVAILABLE: Final = RecordState.AVAILABLE
ACQUIRED: Final = RecordState.ACQUIRED
ACKNOWLEDGED: Final = RecordState.ACKNOWLEDGED
ARCHIVED: Final = RecordState.ARCHIVED

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""Types of acknowledgement, as in a request."""

_SPLIT_FROM: Final = 2
"""Records are delivered in parts after this many deliveries at the earliest."""

COMPLETE_MAX: Final = 2**31 - 1
"""Largest number of records that is stored as done with: Kafka's records have 32 bits for it. A gap of a compacted log
may be larger.
"""


class Limits(msgspec.Struct):
    """What the group's properties say; they may change at any time."""

    lock_us: int = 30_000_000
    """Until an acquired record is released automatically."""
    deliveries_max: int = 5
    locks_max: int = 2000
    renews: bool = True
    """Whether a holder may ask for more time."""


class Acquired(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The offsets ``first`` to ``last`` (inclusive) were given to a member, for the ``count``-th time."""

    first: Offset
    last: Offset
    count: int


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of ``first`` to ``last`` (inclusive): one type for all of them, or one for each."""

    first: Offset
    last: Offset
    types: list[int]


class Request(msgspec.Struct, frozen=True):
    """What a fetch of a member may take."""

    member: str
    token: SessionToken
    """Token of the member's session, whose end releases what the member holds."""
    records_max: int
    strict: bool = False
    """``records_max`` is exact. Otherwise whole batches are taken until there are so many records."""
    batch_size: int = 500
    """Records in one `Acquired` at most, except in a batch that is larger."""


class Write(msgspec.Struct, frozen=True):
    """What is to be stored: the start, what changed from the start on, and how many records from the start on are done
    with (`COMPLETE_MAX` at most).
    """

    start: Offset
    complete: int
    batches: list[Batch]


class Answer(msgspec.Struct, frozen=True):
    """The fate of an acknowledgement: ``request`` is what its caller gave."""

    request: object
    error: ErrorCode


class SharePartition:
    """One share partition.

    Lifecycle: made with its start and what is stored of it; `close` when another shard or broker takes over.
    Invariants: no acquired record that is not pending has a deadline below ``_next_deadline_us``. At most one write is
    in flight.
    """

    def __init__(
        self,
        start: Offset,
        stored: Sequence[Batch] = (),
        *,
        limits: Limits,
        is_stored: bool,
        tally: Tally | None = None,
    ) -> None:
        """``stored`` may reach below ``start``, which is the log's if that has moved. ``is_stored``: a start is stored,
        too; otherwise it is written with the first acquisition.
        """
        self.limits = limits
        self.tally = tally or Tally()
        self.runs = Runs(start)
        self._stored_start = start if is_stored else None
        self._is_used = is_stored
        self._next_deadline_us = 0
        """A lower bound; 0 for none."""
        self._waiting: list[object] = []
        """Requests whose acknowledgements the next write holds."""
        self._in_flight: tuple[Offset, list[object]] | None = None
        """The start in the write in flight, and the requests that wait for it."""
        for batch in merge((), stored, start):
            if batch.first > self.runs.end:
                self.runs.append(Offset(batch.first - 1), AVAILABLE)  # held before, and never given back
            state = AVAILABLE if batch.state is ACQUIRED else batch.state
            self.runs.append(batch.last, state, batch.count)
            self.runs.all[-1].whole = self.runs.all[-1].size
        self.runs.pass_final()
        self.runs.join()

    # What can be seen

    @property
    def start(self) -> Offset:
        """Every record below was acknowledged, archived, or deleted from the log (SPSO)."""
        return self.runs.start

    @property
    def end(self) -> Offset:
        """No record from here on was ever acquired."""
        return self.runs.end

    @property
    def next_deadline_us(self) -> int | None:
        """When `expire` may have something to do; None: no record is held."""
        return self._next_deadline_us or None

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight."""
        return self._in_flight is not None

    @property
    def held(self) -> int:
        """Records that members hold, those included whose acknowledgement is pending."""
        return sum(run.size for run in self.runs.all if run.state is ACQUIRED)

    def next_offset(self) -> Offset | None:
        """From where the log is to be read for the next `acquire`; None if the window is full and nothing in it is
        available. What is held beyond its deadline counts as held until `expire`.
        """
        for run in self.runs.all:
            if run.state is AVAILABLE:
                return run.first
        return self.runs.end if self.room > 0 else None

    @property
    def is_full(self) -> bool:
        """Whether the window cannot grow and nothing in it is available: `next_offset` is None."""
        return self.room <= 0 and all(run.state is not AVAILABLE for run in self.runs.all)

    @property
    def room(self) -> int:
        """Offsets by which the window may still grow; 0 or less if it is full."""
        return self.limits.locks_max - (self.runs.end - self.runs.start)

    # Acquire

    def acquire(
        self,
        request: Request,
        read_from: Offset,
        batches: Iterable[tuple[Offset, Offset]],
        read_end: Offset,
        now_us: int,
    ) -> list[Acquired]:
        """Give records to a member. ``batches`` are the first and last offsets (inclusive) of the batches that the log
        has from ``read_from`` up to ``read_end`` (exclusive), by offset; the first may start before ``read_from``.
        Offsets between them have no record: they were compacted away, or belong to aborted transactions.
        """
        self.expire(now_us)
        taking = _Taking(self, request, now_us)
        position = max(read_from, self.runs.start)
        if position <= self.runs.end:
            for first, last in batches:
                self._nothing_between(position, first)
                if not taking.take(max(first, self.runs.start, position), last):
                    break
                position = max(position, Offset(last + 1))
            else:
                self._nothing_between(position, read_end)
        if taking.given:
            self._is_used = True
            deadline_us = now_us + self.limits.lock_us
            self._next_deadline_us = min(self._next_deadline_us or deadline_us, deadline_us)
        self.runs.pass_final()
        self.runs.join()
        return taking.given

    def _nothing_between(self, first: Offset, end: Offset) -> None:
        """The log has no record from ``first`` up to ``end`` (exclusive), so none that is available either."""
        first = max(first, self.runs.start)
        if first >= end:
            return
        for run in self.runs.touched(first, Offset(min(end, self.runs.end) - 1)):
            if run.state is AVAILABLE:
                for part in self.runs.between(max(first, run.first), Offset(min(end - 1, run.last))):
                    part.settle_as(ARCHIVED)
        if first <= self.runs.end < end and self.room > 0:
            self.runs.append(Offset(end - 1), ARCHIVED)
            self.runs.all[-1].changed = True

    def _after_delivery(self, run: Run) -> RecordState:
        if run.count < self.limits.deliveries_max:
            return AVAILABLE
        self.tally.exhausted += run.size
        return ARCHIVED

    # Acknowledge

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], request: object, now_us: int
    ) -> ErrorCode | None:
        """What a member says of records that it holds. None: ``request`` is answered with the write that stores it."""
        self.expire(now_us)
        spans: list[tuple[Offset, Offset, int]] = []
        for one in acknowledgements:
            if one.last >= self.runs.end:
                return ErrorCode.INVALID_REQUEST
            if one.last >= self.runs.start:
                spans += _spans(one, self.runs.start)
        for first, last, kind in spans:
            if kind == RENEW and not self.limits.renews:
                return ErrorCode.INVALID_RECORD_STATE
            if not all(_is_held(run, member) for run in self.runs.touched(first, last)):
                return ErrorCode.INVALID_RECORD_STATE
        waits = False
        for first, last, kind in spans:
            self.tally.acknowledged[kind] += last - first + 1
            for run in self.runs.between(first, last):
                if kind == RENEW:
                    run.deadline_us = now_us + self.limits.lock_us
                else:
                    waits = True
                    run.pending = self._after_delivery(run) if kind == RELEASE else _FINAL[kind]
                    run.in_write = False
        self.runs.join()
        if not waits:
            return ErrorCode.NONE
        self._waiting.append(request)
        return None

    # Release

    def expire(self, now_us: int) -> bool:
        """Release what is held beyond its deadline. Whether something has become available."""
        if not self._next_deadline_us or now_us < self._next_deadline_us:
            return False
        held = self.held
        freed = self._release(lambda run: run.deadline_us <= now_us)
        self.tally.timed_out += held - self.held
        return freed

    def end_session(self, token: SessionToken) -> bool:
        """Release what was acquired in a session. Whether something has become available."""
        for run in self.runs.all:
            if run.pending is not None and run.token == token:
                run.deadline_us = 1  # released at once if its write fails
        held = self.held
        freed = self._release(lambda run: run.token == token)
        self.tally.released += held - self.held
        return freed

    def _release(self, is_over: Callable[[Run], bool]) -> bool:
        freed, next_us = False, 0
        for run in self.runs.all:
            if run.state is not ACQUIRED or run.pending is not None:
                continue
            if is_over(run):
                state = self._after_delivery(run)
                run.settle_as(state)
                freed = freed or state is AVAILABLE
            else:
                next_us = min(next_us or run.deadline_us, run.deadline_us)
        self._next_deadline_us = next_us
        self.runs.pass_final()
        self.runs.join()
        return freed

    def replace_session(self, member: str, token: SessionToken) -> None:
        """A member has a new session: what it holds is released at the end of this one."""
        for run in self.runs.all:
            if run.state is ACQUIRED and run.member == member:
                run.token = token
        self.runs.join()

    def move_log_start(self, start: Offset) -> None:
        """The log starts at ``start`` or later: what was before is forgotten, held or not."""
        self.runs.drop_before(start)
        self.runs.pass_final()

    # Write

    def take_write(self) -> Write | None:
        """What is to be stored now; None while a write is in flight or nothing has changed. The caller calls `written`
        when it is done.
        """
        if self._in_flight is not None:
            return None
        reported = [run for run in self.runs.all if run.changed or run.pending is not None]
        if not reported and (not self._is_used or self.runs.start == self._stored_start):
            return None
        start = self.runs.start
        for run in self.runs.all:
            if not run.is_done:
                break
            start = Offset(run.last + 1)
        complete = sum(run.size for run in self.runs.all if run.first >= start and run.is_done)
        batches: list[Batch] = []
        for run in reported:
            run.changed, run.in_write = False, True
            report = run.report()
            if report is not None and run.first >= start:
                batches.append(report)
        self._in_flight = start, self._waiting
        self._waiting = []
        return Write(start, min(complete, COMPLETE_MAX), batches)

    def written(self, error: ErrorCode, now_us: int) -> list[Answer]:
        """The write in flight is done, or has failed. The answers of its acknowledgements."""
        assert self._in_flight is not None, "no write is in flight"
        (start, waiting), self._in_flight = self._in_flight, None
        if error is ErrorCode.NONE:
            self._stored_start = start
        deadlines: list[int] = []
        for run in self.runs.all:
            if not run.in_write:
                continue
            run.in_write = False
            if error is not ErrorCode.NONE:
                if run.pending is not None:
                    run.pending = None
                    deadlines.append(run.deadline_us)
                run.changed = run.report() is not None
            elif run.pending is not None:
                run.lapse(run.pending)
        if deadlines:
            self._next_deadline_us = min([*deadlines, self._next_deadline_us or deadlines[0]])
        self.expire(now_us)
        self.runs.pass_final()
        self.runs.join()
        return [Answer(request, error) for request in waiting]

    def close(self) -> list[object]:
        """Nothing is given out any longer: the requests that wait for a write, whose outcome is unknown."""
        waiting = self._waiting if self._in_flight is None else [*self._in_flight[1], *self._waiting]
        self._waiting, self._in_flight = [], None
        return waiting


class _Taking:
    """One `acquire`: what was given so far."""

    __slots__ = ("_now_us", "_of", "_request", "_taken", "given")

    def __init__(self, partition: SharePartition, request: Request, now_us: int) -> None:
        self._of = partition
        self._request = request
        self._now_us = now_us
        self._taken = 0
        self.given: list[Acquired] = []

    def take(self, first: Offset, last: Offset) -> bool:
        """Take what is available of a batch. False: nothing more is to be taken."""
        runs = self._of.runs
        if self._taken >= self._request.records_max:
            return False
        for run in runs.touched(first, Offset(min(last, runs.end - 1))):
            if run.state is AVAILABLE and not self._take_run(run, max(first, run.first), min(last, run.last)):
                return False
        return last < runs.end or self._take_new(max(first, runs.end), last)

    def _take_run(self, run: Run, first: Offset, last: Offset) -> bool:
        """Take of a run that is available. False: nothing more is to be taken."""
        if run.count >= self._of.limits.deliveries_max:
            self._of.tally.exhausted += last - first + 1
            for part in self._of.runs.between(first, last):
                part.settle_as(ARCHIVED)
            return True
        alone = _part(run, self._of.limits.deliveries_max)
        if alone:
            if not self.given:
                self._give(first, min(last, Offset(first + alone - 1)), run.whole)
            return False
        return self._give_within(first, last)

    def _take_new(self, first: Offset, last: Offset) -> bool:
        runs = self._of.runs
        room = self._of.room
        if room <= 0:
            return False
        if self._request.strict:
            last = min(last, Offset(runs.end + room - 1), Offset(first + self._request.records_max - self._taken - 1))
            if last < first:
                return False
        assert first == runs.end, "what lies before a batch has no record"
        runs.append(last, AVAILABLE)
        return self._give_within(first, last)

    def _give_within(self, first: Offset, last: Offset) -> bool:
        """Give what the request has room for. False: its room is used up."""
        request = self._request
        if request.strict:
            last = min(last, Offset(first + request.records_max - self._taken - 1))
        self._give(first, last, 0)
        return not request.strict or self._taken < request.records_max

    def _give(self, first: Offset, last: Offset, whole: int) -> None:
        """``whole`` is the size that parts are counted from; 0: this delivery."""
        request = self._request
        deadline_us = self._now_us + self._of.limits.lock_us
        self._taken += last - first + 1
        self._of.tally.acquired += last - first + 1
        for run in self._of.runs.between(first, last):
            run.changed = run.changed or run.in_write
            run.in_write = False
            run.state = ACQUIRED
            run.count += 1
            run.member, run.token, run.deadline_us = request.member, request.token, deadline_us
            run.whole = whole or last - first + 1
            self._add(Acquired(run.first, run.last, run.count))

    def _add(self, one: Acquired) -> None:
        before = self.given[-1] if self.given else None
        joins = before is not None and before.last + 1 == one.first and before.count == one.count
        if before is not None and joins and one.last - before.first < self._request.batch_size:
            self.given[-1] = Acquired(before.first, one.last, one.count)
        else:
            self.given.append(one)


def _part(run: Run, deliveries_max: int) -> int:
    """How many records of a run, which may contain one that cannot be processed, are delivered alone; 0: it is not
    divided. Parts shrink with the deliveries, down to one record in its last.
    """
    if deliveries_max <= _SPLIT_FROM:
        return 0
    if run.count >= deliveries_max - 1:
        return 1
    begin = max(_SPLIT_FROM, -(-deliveries_max // 2))
    return max(1, run.whole >> (run.count - begin + 1)) if run.count >= begin else 0


_FINAL: Final = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, REJECT: ARCHIVED}


def _is_held(run: Run, member: str) -> bool:
    """Whether a member holds a run and has not yet said what becomes of it."""
    return run.state is ACQUIRED and run.member == member and run.pending is None


def _spans(one: Acknowledgement, start: Offset) -> list[tuple[Offset, Offset, int]]:
    """(first, last, type) of the offsets from ``start`` on."""
    begin = max(one.first, start)
    if len(one.types) == 1:
        return [(begin, one.last, one.types[0])]
    spans: list[tuple[Offset, Offset, int]] = []
    for offset in range(begin, one.last + 1):
        kind = one.types[offset - one.first]
        if spans and spans[-1][2] == kind:
            spans[-1] = spans[-1][0], Offset(offset), kind
        else:
            spans.append((Offset(offset), Offset(offset), kind))
    return spans
