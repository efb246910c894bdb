"""StoredStates: the share partitions of one partition of ``__share_group_state``, as their coordinator keeps them.

::

    Initialize ──► snapshot (of a new state epoch)           a share partition is its newest snapshot
    Write ───────► update, every 500th one a snapshot        and the updates after it, in order
    Read ────────► update, if its leader is a newer one
    Delete ──────► tombstone of the snapshot

Requests are checked against everything that was decided before, written or in flight, and are answered when their
record is in the log. A record that could not be written is taken back; those after it stay, for an update says only
what changed, and a snapshot that holds the change makes it true after all: its writer knows that the outcome of its
write is unknown.

**Who may write.** The group coordinator sets the state epoch with Initialize; the leader of the data partition sets the
leader epoch with Read. A request with an older epoch is fenced, so that a leader that was replaced, or one whose start
was reset, stores nothing any longer. Newer epochs of a Write are accepted and change nothing. A start never moves back
but by Initialize. One that names no start and the state epoch that there is has come twice, and changes nothing.

**Bad input.** Write and Read of what was never initialised are INVALID_REQUEST; Summary and Delete of it have nothing
to say, and are NONE.

**Pruning.** What lies before the oldest of the newest snapshots is of no use (`oldest_needed`). Quiet share partitions
get a snapshot, too, so that they do not keep a long log.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NewType, TypeAlias

import msgspec

from millstream.core.share.batches import Batch, merge
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import LeaderEpoch, Offset

Receipt = NewType("Receipt", int)
"""Number of a write."""

Key: TypeAlias = tuple[str, bytes, int]
"""Group id, topic id and partition."""

UNKNOWN: Final = -1
"""A start that no leader has resolved, a leader epoch or a count that is unknown."""

UPDATES_MAX: Final = 500
"""Updates after a snapshot; the next write is a snapshot again. Kafka's default."""
QUIET_US: Final = 300_000_000
"""A share partition with updates gets a snapshot after so long without a write."""
BEHIND_MAX: Final = 10_000
"""Records between a snapshot and the end of the log; an older snapshot is written again."""
_TICK_US: Final = 60_000_000

_NONE: Final = ErrorCode.NONE


class Image(msgspec.Struct, frozen=True):
    """A share partition as it is stored. Times are wall clock, in ms."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: LeaderEpoch
    start: Offset
    complete: int
    """Records from the start on that are done with; -1 for unknown."""
    batches: list[Batch]
    created_ms: int
    written_ms: int


class Update(msgspec.Struct, frozen=True):
    """What changed since the snapshot of this epoch. A start of -1 leaves it as it is."""

    snapshot_epoch: int
    leader_epoch: LeaderEpoch
    start: Offset
    complete: int
    batches: list[Batch]


Change: TypeAlias = Image | Update | None
"""What a record makes of a share partition: None deletes it."""


def changed(image: Image | None, change: Change) -> Image | None:
    """A share partition after a record. An update without a snapshot before it says nothing."""
    if not isinstance(change, Update):
        return change
    if image is None:
        return None
    start = image.start if change.start == UNKNOWN else change.start
    return msgspec.structs.replace(
        image,
        leader_epoch=change.leader_epoch,
        start=start,
        complete=change.complete,
        batches=merge(image.batches, change.batches, start),
    )


class Initialize(msgspec.Struct, frozen=True):
    """Start at ``start``, with nothing else, in a newer state epoch."""

    token: object
    key: Key
    state_epoch: int
    start: Offset


class Read(msgspec.Struct, frozen=True):
    """The leader of ``leader_epoch`` takes over the share partition; -1 only looks."""

    token: object
    key: Key
    leader_epoch: LeaderEpoch


class Report(msgspec.Struct, frozen=True):
    """A Write: what changed, as the leader says."""

    token: object
    key: Key
    state_epoch: int
    leader_epoch: LeaderEpoch
    start: Offset
    complete: int
    batches: list[Batch]
    created_ms: int = UNKNOWN
    """Creation time of the state that the leader has read. It tells a group from an earlier one of the same name."""


class Delete(msgspec.Struct, frozen=True):
    """Forget the share partition."""

    token: object
    key: Key


class Summary(msgspec.Struct, frozen=True):
    """How far the share partition has come."""

    token: object
    key: Key


Request: TypeAlias = Initialize | Read | Report | Delete | Summary


class Answer(msgspec.Struct, frozen=True):
    """Answer to a request; ``image`` for Read and Summary, None of one that there is not."""

    error: ErrorCode
    image: Image | None = None


class Write(msgspec.Struct, frozen=True):
    """A record to write. Its fate goes to `StoredStates.persisted`, in the order of the writes."""

    receipt: Receipt
    key: Key
    change: Change


class Outputs(msgspec.Struct):
    """What is to be done, in this order."""

    writes: list[Write] = msgspec.field(default_factory=list)
    answers: list[tuple[object, Answer]] = msgspec.field(default_factory=list)


class _Pending(msgspec.Struct):
    """A record on its way, and who waits for it."""

    receipt: Receipt
    change: Change
    token: object | None
    readers: list[object] = msgspec.field(default_factory=list)


class _Kept:
    """One share partition. ``latest`` is ``committed`` with all that is on its way."""

    __slots__ = ("committed", "latest", "pending", "snapshot_at", "turns", "updates", "waiting", "written_us")

    def __init__(self) -> None:
        self.committed: Image | None = None
        self.latest: Image | None = None
        self.pending: deque[_Pending] = deque()
        self.turns: Receipt | None = None
        """Receipt of an Initialize or a Delete that is on its way: what comes after it has to know its fate."""
        self.waiting: deque[Request] = deque()
        """Requests after it."""
        self.snapshot_at = Offset(0)
        """The newest snapshot in the log is at this offset or after it."""
        self.updates = 0
        """After the newest snapshot, those on their way included."""
        self.written_us = 0

    def commit(self, change: Change, at: Offset) -> None:
        """A record is in the log."""
        self.committed = changed(self.committed, change)
        if isinstance(change, Image):
            self.snapshot_at = at


class StoredStates:
    """The share partitions of one partition of the state topic.

    Lifecycle: built, ``replay`` for each record of the log in order, ``loaded``, then requests until ``unload``.
    """

    def __init__(self, updates_max: int = UPDATES_MAX) -> None:
        """A write is a snapshot after ``updates_max`` updates."""
        self._updates_max = updates_max
        self._kept: dict[Key, _Kept] = {}
        self._of_receipt: dict[Receipt, tuple[Key, _Kept]] = {}
        self._receipt = Receipt(0)
        self._deadline_us: int | None = None
        self._end = Offset(0)
        """Offset of the newest record that is known, or one before it."""

    @property
    def deadline_us(self) -> int | None:
        """When `time_passed` is due."""
        return self._deadline_us

    @property
    def images(self) -> dict[Key, Image]:
        """What is stored."""
        return {key: kept.committed for key, kept in self._kept.items() if kept.committed is not None}

    @property
    def oldest_needed(self) -> Offset | None:
        """Records before this offset are of no use; None: nothing is stored, and none of them are."""
        return min((kept.snapshot_at for kept in self._kept.values()), default=None)

    # Loading

    def replay(self, key: Key, change: Change, at: Offset) -> None:
        """The next record of the log."""
        self._end = at
        kept = self._kept.setdefault(key, _Kept())
        kept.commit(change, at)
        kept.updates = kept.updates + 1 if isinstance(change, Update) else 0
        kept.latest = kept.committed
        if kept.committed is None:
            del self._kept[key]

    def loaded(self, now_us: int) -> None:
        """The log has no more records."""
        for kept in self._kept.values():
            kept.written_us = now_us
        self._deadline_us = now_us + _TICK_US

    def unload(self) -> Iterable[object]:
        """Forget everything. The requests that wait."""
        waiting: list[object] = []
        for kept in self._kept.values():
            for one in kept.pending:
                waiting += ([] if one.token is None else [one.token]) + one.readers
            waiting += [request.token for request in kept.waiting]
        self._kept, self._of_receipt = {}, {}
        self._deadline_us = None
        return waiting

    # Requests

    def ask(self, request: Request, now_us: int, wall_ms: int) -> Outputs:
        """Process one request."""
        out = Outputs()
        kept = self._kept.get(request.key)
        if kept is not None and kept.turns is not None:
            kept.waiting.append(request)
        else:
            self._process(request, out, now_us, wall_ms)
        return out

    def _process(self, request: Request, out: Outputs, now_us: int, wall_ms: int) -> None:
        kept = self._kept.get(request.key)
        image = None if kept is None else kept.latest
        error = _refusal(request, image)
        if error is not _NONE:
            out.answers.append((request.token, Answer(error)))
        elif isinstance(request, Summary):
            out.answers.append((request.token, Answer(_NONE, None if kept is None else kept.committed)))
        elif isinstance(request, Initialize) and image is not None and _is_repeated(request, image):
            self._await(out, kept, request.token)
        elif isinstance(request, Initialize):
            self._turn(out, request, _anew(request, image, wall_ms), now_us)
        elif image is None:
            self._await(out, kept, request.token)  # Delete: nothing is there
        elif isinstance(request, Delete):
            self._turn(out, request, None, now_us)
        elif isinstance(request, Read):
            if request.leader_epoch > image.leader_epoch:
                update = Update(image.snapshot_epoch, request.leader_epoch, image.start, image.complete, [])
                self._write(out, request.key, update, request.token, now_us)
                assert kept is not None
                kept.pending[-1].token = None
                kept.pending[-1].readers.append(request.token)
            else:
                self._await(out, kept, request.token)
        else:
            self._write(out, request.key, self._report(request, image, wall_ms), request.token, now_us)

    def _report(self, request: Report, image: Image, wall_ms: int) -> Change:
        start = max(image.start, request.start)
        batches = merge([], request.batches, start)
        update = Update(image.snapshot_epoch, image.leader_epoch, start, request.complete, batches)
        if self._kept[request.key].updates < self._updates_max:
            return update
        after = changed(image, update)
        assert after is not None
        return _snapshot(after, wall_ms)

    def _turn(self, out: Outputs, request: Initialize | Delete, change: Image | None, now_us: int) -> None:
        """What comes after this change is processed when its fate is known."""
        self._write(out, request.key, change, request.token, now_us)
        self._kept[request.key].turns = self._receipt

    def _await(self, out: Outputs, kept: _Kept | None, token: object) -> None:
        """Answer when all that is on its way has arrived."""
        if kept is None or not kept.pending:
            out.answers.append((token, Answer(_NONE, None if kept is None else kept.committed)))
        else:
            kept.pending[-1].readers.append(token)

    def _write(self, out: Outputs, key: Key, change: Change, token: object | None, now_us: int) -> None:
        kept = self._kept.setdefault(key, _Kept())
        self._receipt = Receipt(self._receipt + 1)
        self._of_receipt[self._receipt] = key, kept
        kept.pending.append(_Pending(self._receipt, change, token))
        kept.latest = changed(kept.latest, change)
        kept.updates = kept.updates + 1 if isinstance(change, Update) else 0
        kept.written_us = now_us
        out.writes.append(Write(self._receipt, key, change))

    def persisted(self, receipt: Receipt, error: ErrorCode, at: Offset, now_us: int, wall_ms: int) -> Outputs:
        """A record is in the log, at offset ``at`` or after it, or (``error``) is not."""
        out = Outputs()
        key, kept = self._of_receipt.pop(receipt)
        one = kept.pending.popleft()
        assert one.receipt == receipt, "fates come in the order of the writes"
        if error is _NONE:
            self._end = max(self._end, at)
            kept.commit(one.change, at)
        else:
            kept.latest = kept.committed
            for later in kept.pending:
                kept.latest = changed(kept.latest, later.change)
            if isinstance(one.change, Image):
                kept.updates = self._updates_max  # a snapshot is still due
        if one.token is not None:
            out.answers.append((one.token, Answer(error)))
        answer = Answer(error, None if error is not _NONE else kept.committed)
        out.answers += [(reader, answer) for reader in one.readers]
        if kept.turns == receipt:
            kept.turns = None
        if kept.committed is None and not kept.pending:
            del self._kept[key]
        while kept.waiting and kept.turns is None:
            self._process(kept.waiting.popleft(), out, now_us, wall_ms)
            self._move_waiting(key, kept)
        return out

    def _move_waiting(self, key: Key, kept: _Kept) -> None:
        """A share partition that was deleted may have been initialised again: the rest waits for that."""
        again = self._kept.get(key)
        if again is not None and again is not kept:
            again.waiting, kept.waiting = kept.waiting, deque()

    def delete_topic(self, topic_id: bytes, now_us: int, wall_ms: int) -> Outputs:
        """Delete the share partitions of a topic; no one waits for it."""
        out = Outputs()
        for key, kept in list(self._kept.items()):
            if key[1] == topic_id and kept.turns is None and kept.latest is not None:
                self._process(Delete(None, key), out, now_us, wall_ms)
        return out

    # Time

    def time_passed(self, now_us: int, wall_ms: int) -> Outputs:
        """Write the snapshots that are due."""
        out = Outputs()
        self._deadline_us = now_us + _TICK_US
        for key, kept in list(self._kept.items()):
            if kept.latest is None or kept.pending:
                continue
            is_quiet = kept.updates > 0 and now_us - kept.written_us >= QUIET_US
            if is_quiet or self._end - kept.snapshot_at > BEHIND_MAX:
                self._write(out, key, _snapshot(kept.latest, wall_ms), None, now_us)
        return out


def _refusal(request: Request, image: Image | None) -> ErrorCode:
    if isinstance(request, Delete | Summary):
        return _NONE
    if image is None:
        return _NONE if isinstance(request, Initialize) else ErrorCode.INVALID_REQUEST
    if not isinstance(request, Read) and request.state_epoch < image.state_epoch:
        return ErrorCode.FENCED_STATE_EPOCH
    if isinstance(request, Initialize):
        return _NONE
    if isinstance(request, Report) and request.created_ms not in (UNKNOWN, image.created_ms):
        return ErrorCode.FENCED_STATE_EPOCH
    if request.leader_epoch != UNKNOWN and request.leader_epoch < image.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if isinstance(request, Report) and any(batch.first > batch.last for batch in request.batches):
        return ErrorCode.INVALID_REQUEST
    return _NONE


def _is_repeated(request: Initialize, image: Image) -> bool:
    """Whether a request only makes sure that there is a state: one that is in use must not be reset by it."""
    return request.start == UNKNOWN and request.state_epoch == image.state_epoch


def _anew(request: Initialize, image: Image | None, wall_ms: int) -> Image:
    epoch = 0 if image is None else image.snapshot_epoch + 1
    created_ms = wall_ms if image is None else image.created_ms
    complete = UNKNOWN if request.start == UNKNOWN else 0
    return Image(epoch, request.state_epoch, 0, request.start, complete, [], created_ms, wall_ms)


def _snapshot(image: Image, wall_ms: int) -> Image:
    return msgspec.structs.replace(image, snapshot_epoch=image.snapshot_epoch + 1, written_ms=wall_ms)
