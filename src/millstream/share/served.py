"""ServedPartition: one share partition over its log, on the log's home shard.

::

    loading ──► serving ──► closed      (the log has another leader, the state was reset, or all sessions have ended)
       └── the coordinator is away: again after `AGAIN_US`

A group may be deleted and made again, or given other offsets, while its old state is served. So a new session takes
nothing before the state that is served has been compared with the one that is stored.

A fetch reads the log where the core says, and acquires of what was read. It is answered at once, maybe with nothing;
then its session is woken once, when there may be something: records, a release, an end of a lock, room in the window.
Every request looks at what time, the log's start and the limits have changed, and wakes all that wait (`_refresh`).

**Writes.** What changed in a turn is reported at its end, in one write; while one is in flight the next waits. A write
that finds no coordinator is sent again every `AGAIN_US`, as the same report, until `PATIENCE_US` have passed; then its
acknowledgements fail. An answer that another leader or another state has taken over closes the share partition: the
next fetch loads it again. **Crash.** The next leader loads what is stored. **Overload.** A log without memory for a
read from its files gives nothing now. A session that has ended, or was replaced, while its log was read from files gets
nothing of it.

**Slow files.** A fetch that has acquired records of another share partition reads nothing from files or from the object
store, which may take as long as the lock of those records. It reads there when this share partition has its turn. The
object store gets `STORE_PATIENCE_US`; then the others have their turn, and the fetch joins the read that is on its way.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from millstream.config.group_properties import EARLIEST
from millstream.coordinator.share_states import READ, WRITE, Answered, Ask, ShareStates
from millstream.core.share.partition import Acknowledgement, Acquired, Limits, Request, SharePartition
from millstream.core.share.runs import NO_SESSION, SessionToken
from millstream.core.share.stored import UNKNOWN, Image, Key
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ProducerId
from millstream.partition.partition import Partition
from millstream.partition.read.batches import Aborted, FetchResult, read_here, read_older
from millstream.partition.read.headers import batch_headers
from millstream.partition.read.list_offsets import READ_UNCOMMITTED, Found, list_offset
from millstream.partition.read.request import STORE_PATIENCE_US, ReadRequest
from millstream.share.meters import ShareMeters
from millstream.wire.batch import CONTROL, OVERHEAD_BYTES, TRANSACTIONAL

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor, Timer

AGAIN_US: Final = 200_000
PATIENCE_US: Final = 5_000_000
_READS_MAX: Final = 8
"""Reads of one fetch, while what is read has nothing for it."""

_LOST: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST})
"""Answers to a write after which the share partition is loaded again."""

Waiter: TypeAlias = tuple[int, SessionToken]
"""Shard and session of a member that waits."""


class Owner(Protocol):
    """What a share partition needs of its shard (``share.home``)."""

    reactor: "Reactor"
    states: ShareStates
    meters: ShareMeters

    def wake(self, waiter: Waiter) -> None:
        """A session may find something."""
        ...

    def forget(self, served: "ServedPartition") -> None:
        """A share partition has closed by itself."""
        ...

    def limits_of(self, group_id: str) -> Limits: ...

    def reads_committed(self, group_id: str) -> bool: ...

    def reset_of(self, group_id: str) -> int:
        """Where a group starts: `LATEST`, `EARLIEST`, or a duration before now in ms."""
        ...


class Taken(msgspec.Struct, frozen=True):
    """What a fetch took of one share partition. ``data`` holds the batches of the records, which the taker releases."""

    error: ErrorCode
    acquired: list[Acquired] = []
    data: IoBuf | None = None
    late: bool = False
    """The object store has not answered in time."""


Done: TypeAlias = Callable[[Taken], None]


class Span(msgspec.Struct, frozen=True):
    """A batch that was read: its offsets (inclusive), its bytes in the data, and its transaction."""

    first: Offset
    last: Offset
    position: int
    end: int
    producer_id: ProducerId
    is_transactional: bool
    is_control: bool


class ServedPartition:
    """One share partition.

    Lifecycle: made by the first fetch that names it; `close` when the log goes or has another leader. Shard: the log's
    home.
    Invariant: ``core`` is set once it is loaded; a closed one is never used again.
    """

    def __init__(self, key: Key, partition: Partition, owner: "Owner") -> None:
        self.key = key
        self.partition = partition
        self.core: SharePartition | None = None
        self.error = ErrorCode.NONE
        """Why it is closed; NONE while it is not."""
        self._owner = owner
        self._leader_epoch = partition.leader_epoch
        self._identity = UNKNOWN, UNKNOWN
        """Epoch and creation time of the state that is served; every write names them."""
        self._waiters: set[Waiter] = set()
        self._members = KnownMembers()
        """Whose sessions have fetched. After the last one the share partition is closed."""
        self._is_reading = False
        """What is stored is being read."""
        self._timer: Timer | None = None
        """Set for the core's next deadline, or an earlier one."""
        self._is_storing = False
        """A write is prepared at the end of this turn, or waits after a failure."""

    @property
    def closed(self) -> bool:
        """Whether it serves nothing any longer."""
        return self.error is not ErrorCode.NONE

    # Loading

    def _load(self) -> None:
        """Read what is stored, for the sessions that are there now."""
        self._is_reading = False
        if self.core is None and not self._members.sessions:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # who comes later loads it again
        if not self.closed and (self._members.unproved or self.core is None):
            self._is_reading = True
            kind = UNKNOWN if self.core is not None else self._leader_epoch
            waiting = frozenset(self._members.unproved)
            self._owner.states.ask_all(
                [Ask(READ, self.key, leader_epoch=kind)], lambda answers: self._read(answers, waiting)
            )

    def _read(self, answers: Sequence[Answered], waiting: frozenset[SessionToken]) -> None:
        if self.closed:
            return
        code, image = answers[0]
        error = ErrorCode(code)
        if error is ErrorCode.NONE and image is not None:
            self._members.unproved -= waiting
            self._state_read(image)
        elif error in _LOST:
            if self.core is None and error is not ErrorCode.FENCED_LEADER_EPOCH:
                self.close(ErrorCode.UNKNOWN_SERVER_ERROR)  # it stays in the table until a fetch has got this answer
            else:
                self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._owner.reactor.call_later(AGAIN_US, self._load)

    def _state_read(self, image: Image) -> None:
        """Serve from the stored start on, or from where the group is to start."""
        log, identity = self.partition, (image.state_epoch, image.created_ms)
        if self.core is not None:
            if identity != self._identity or image.leader_epoch != self._leader_epoch:
                self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            self._load()
            self._wake_all()
            return
        self._identity = identity
        reset = self._owner.reset_of(self.key[0])
        if image.start != UNKNOWN:
            self._serve(image, max(image.start, log.log_start_offset))
        elif reset < 0:
            self._serve(image, log.log_start_offset if reset == EARLIEST else log.high_watermark)
        else:

            def found(result: Found) -> None:
                error, _, offset, _ = result
                if error:
                    self._owner.reactor.call_later(AGAIN_US, self._load)
                else:
                    self._serve(image, log.high_watermark if offset < 0 else offset)

            since_ms = max(self._owner.reactor.wall_ms() - reset, 0)  # negative numbers name places, not times
            list_offset(log, since_ms, -1, READ_UNCOMMITTED, found)

    def _serve(self, image: Image, start: int) -> None:
        if not self.closed:
            limits = self._owner.limits_of(self.key[0])
            is_stored = image.start != UNKNOWN
            self.core = SharePartition(
                Offset(start), image.batches, limits=limits, is_stored=is_stored, tally=self._owner.meters.tally
            )
            self._load()
            self._changed()
            self._wake_all()

    # Requests

    def fetch(self, request: Request, max_bytes: int, waiter: Waiter, done: Done, *, may_wait: bool = True) -> None:
        """Take records for a member; ``done`` is called once, maybe before this returns. Without ``may_wait`` it is
        called with what is in memory: the fetch holds records already.
        """
        if self.closed:
            self._owner.forget(self)
            done(Taken(self.error))
            return
        self._waiters.add(waiter)
        if not self._members.has(request.member, request.token):
            self._has(request.member, request.token)
            if self.closed:
                self._owner.wake(waiter)  # the next one is loaded again, or learns why not
                done(Taken(ErrorCode.NONE))
                return
        self._fetch(request, max_bytes, done, _READS_MAX, may_wait=may_wait)

    def _has(self, member: str, token: SessionToken) -> None:
        """A member has a session that was not known."""
        self._members.put(member, token)
        if not self._is_reading:
            self._load()

    def _fetch(self, request: Request, max_bytes: int, done: Done, reads: int, *, may_wait: bool) -> None:
        core, log = self.core, self.partition
        if self.closed or core is None or reads == 0 or request.token in self._members.unproved:
            if reads == 0:
                self._wake_all()  # there is more to read
            done(Taken(self.error))
            return
        self._refresh()
        offset = core.next_offset()
        if offset is None:
            self.arm(log)  # the window has room when the log start passes what is held
            done(Taken(ErrorCode.NONE))
            return

        def take(result: FetchResult) -> None:
            again = partial(self._fetch, request, max_bytes, done, reads - 1, may_wait=may_wait)
            self._take(request, offset, result, done, again)

        committed = self._owner.reads_committed(self.key[0])
        asked = ReadRequest(offset, max_bytes, committed=committed, patience_us=STORE_PATIENCE_US)
        result = read_here(log, asked, self)
        if result is not None:
            take(result)
        elif may_wait:
            read_older(log, asked, take)
        else:
            done(Taken(ErrorCode.NONE))

    def _take(
        self, request: Request, offset: Offset, result: FetchResult, done: Done, again: Callable[[], None]
    ) -> None:
        """Acquire of what was read from ``offset`` on; ``again`` reads after it if there was nothing to acquire."""
        core, data = self.core, result.data
        has_gone = not self._members.has(request.member, request.token)
        if self.closed or core is None or data is None or has_gone:
            if data is not None:
                data.release()
            elif not self.closed:
                self._nothing_read(result)
            out_of_range = result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            error = ErrorCode.NONE if out_of_range else ErrorCode(result.error_code)
            done(Taken(self.error if self.closed else error, late=result.late))
            return
        self._refresh()
        spans = _spans(data)
        end = Offset(spans[-1].last + 1)
        there = [(one.first, one.last) for one in not_aborted(spans, result.aborted or [])]
        given = core.acquire(request, offset, there, end, self._owner.reactor.now_us())
        self._changed()
        if given:
            done(Taken(ErrorCode.NONE, given, _part_of(data, spans, given)))
            return
        data.release()
        if core.next_offset() in (offset, None):
            done(Taken(ErrorCode.NONE))
        else:
            again()

    def _nothing_read(self, result: FetchResult) -> None:
        """A read has brought no batches: wake who waits when another one may."""
        if result.late:
            self._wake_all()
        elif result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.arm(self.partition)  # the log has to reach the start first

    def acknowledge(self, member: str, given: Sequence[Acknowledgement], done: Callable[[ErrorCode], None]) -> None:
        """A member acknowledges; ``done`` is called when that is stored or refused."""
        if self.closed or self.core is None:
            done(self.error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._refresh()
        error = self.core.acknowledge(member, given, done, self._owner.reactor.now_us())
        self._changed()
        if error is not None:
            done(error)

    def end_session(self, token: SessionToken) -> None:
        """A session has ended: no fetch waits in it, and what was acquired in it is released."""
        self._waiters = {waiter for waiter in self._waiters if waiter[1] != token}
        self._members.end(token)
        if self.closed and not self._members.sessions:
            self._owner.forget(self)
        if self.core is not None and not self.closed:
            was_full = self.core.is_full
            freed = self.core.end_session(token)
            self._changed()
            self._wake_for(freed=freed, was_full=was_full)

    def replace_session(self, member: str, token: SessionToken) -> None:
        """A member has a new session, which takes over what it holds."""
        if member in self._members.sessions:
            self._has(member, token)
        if self.core is not None and not self.closed:
            self.core.replace_session(member, token)

    # Waking

    def arm(self, partition: Partition) -> None:
        """As ``partition.read.watch``: a read has found nothing."""
        partition.waiters.readers.add(self)

    def wake(self) -> None:
        """The log has changed: there are records, or its start has moved."""
        if self.closed:
            return
        if self.core is not None:
            self._refresh()
            if self.core.is_full:
                self.arm(self.partition)
                return
        self._wake_all()

    def _refresh(self) -> None:
        """Take up what time, the log's start and the group's limits have changed, and wake who may find more."""
        core = self.core
        assert core is not None
        was_full = core.is_full
        core.limits = self._owner.limits_of(self.key[0])
        freed = core.expire(self._owner.reactor.now_us())
        core.move_log_start(self.partition.log.start_offset)
        self._changed()
        self._wake_for(freed=freed, was_full=was_full)

    def _wake_for(self, *, freed: bool, was_full: bool) -> None:
        """Wake who waits if something was released, or if the window was full and is no longer."""
        assert self.core is not None
        if freed or (was_full and not self.core.is_full):
            self._wake_all()

    def _wake_all(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            self._owner.wake(waiter)

    # Time and writes

    def _changed(self) -> None:
        """The core may have a new deadline, and something to store."""
        assert self.core is not None
        deadline_us = self.core.next_deadline_us
        if deadline_us is not None and (self._timer is None or deadline_us < self._timer.deadline_us):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._owner.reactor.call_at(deadline_us, self._time_passed)
        if not self._is_storing:
            self._is_storing = True
            self._owner.reactor.end_of_turn(self._store)

    def _time_passed(self) -> None:
        self._timer = None
        if self.core is not None and not self.closed:
            self._refresh()

    def _store(self) -> None:
        self._is_storing = False
        self._owner.meters.show()
        if self.closed or self.core is None:
            return
        write = self.core.take_write()
        if write is not None:
            state_epoch, created_ms = self._identity
            ask = Ask(
                WRITE,
                self.key,
                state_epoch,
                self._leader_epoch,
                write.start,
                write.complete,
                write.batches,
                created_ms,
            )
            self._write(ask, self._owner.reactor.now_us() + PATIENCE_US)
        elif not self._members.sessions and not self.core.is_writing:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # who comes later finds what is stored then

    def _write(self, ask: Ask, until_us: int) -> None:
        if not self.closed:
            self._owner.meters.writes.inc()
            self._owner.states.ask_all([ask], lambda answers: self._written(ErrorCode(answers[0][0]), ask, until_us))

    def _written(self, error: ErrorCode, ask: Ask, until_us: int) -> None:
        core = self.core
        if self.closed or core is None:
            return
        if error is not ErrorCode.NONE:
            self._owner.meters.failed_writes.inc()
        if error in _LOST:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if error is not ErrorCode.NONE and self._owner.reactor.now_us() < until_us:
            self._owner.reactor.call_later(AGAIN_US, lambda: self._write(ask, until_us))
            return
        for one in core.written(error, self._owner.reactor.now_us()):
            assert callable(one.request)
            one.request(error)
        if error is not ErrorCode.NONE:
            self._is_storing = True
            self._owner.reactor.call_later(AGAIN_US, self._store)
        self._changed()
        offset = core.next_offset()
        if offset is not None and offset < self.partition.high_watermark:
            self._wake_all()

    # The end

    def _end(self, error: ErrorCode) -> None:
        """It can serve nothing any longer: who waits learns it by asking again."""
        self.close(error)
        self._owner.forget(self)

    def close(self, error: ErrorCode) -> None:
        """Answer what waits with ``error``, and serve nothing any longer."""
        self.error = error
        self.partition.waiters.readers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.core is not None:
            for request in self.core.close():
                assert callable(request)
                request(error)
        self._wake_all()


def _spans(data: IoBuf) -> list[Span]:
    """The batches of what was read."""
    spans: list[Span] = []
    for position, header in batch_headers(data):
        attributes = header[5]
        spans.append(
            Span(
                Offset(header[0]),
                Offset(header[0] + header[6]),
                position,
                position + header[1] + OVERHEAD_BYTES,
                header[9],
                bool(attributes & TRANSACTIONAL),
                bool(attributes & CONTROL),
            )
        )
    return spans


def not_aborted(spans: Iterable[Span], aborted: Aborted) -> list[Span]:
    """The batches that a read_committed reader gets: as consumers do, an aborted transaction lasts from its first
    offset to the next marker of its producer. Markers stay; members answer that they are gaps.
    """
    kept: list[Span] = []
    left = sorted(aborted, key=_first_offset)
    running: set[ProducerId] = set()
    for one in spans:
        while left and left[0][1] <= one.last:
            running.add(left.pop(0)[0])
        if one.is_control:
            running.discard(one.producer_id)
        if not (one.is_transactional and not one.is_control and one.producer_id in running):
            kept.append(one)
    return kept


def _first_offset(transaction: tuple[int, int]) -> int:
    return transaction[1]


def _part_of(data: IoBuf, spans: list[Span], given: list[Acquired]) -> IoBuf:
    """The batches from the first that has an acquired record to the last; ``data`` is released."""
    needed = [one for one in spans if one.last >= given[0].first and one.first <= given[-1].last]
    part = data.share(needed[0].position, needed[-1].end - needed[0].position)
    data.release()
    return part


class KnownMembers:
    """The sessions of one share partition; a member has one.

    Lifecycle: the share partition's. Invariant: ``unproved`` are sessions in ``sessions``.
    """

    __slots__ = ("sessions", "unproved")

    def __init__(self) -> None:
        self.sessions: dict[str, SessionToken] = {}
        """By member."""
        self.unproved: set[SessionToken] = set()
        """Sessions that are newer than the last look at what is stored."""

    def has(self, member: str, token: SessionToken) -> bool:
        """Whether this is the session of the member."""
        return self.sessions.get(member) == token

    def put(self, member: str, token: SessionToken) -> None:
        """A member has a session that was not known."""
        self.unproved.discard(self.sessions.get(member, NO_SESSION))
        self.sessions[member] = token
        self.unproved.add(token)

    def end(self, token: SessionToken) -> None:
        """A session has ended."""
        self.sessions = {member: one for member, one in self.sessions.items() if one != token}
        self.unproved.discard(token)
