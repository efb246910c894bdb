"""Messages between shards in bytes, and the state that a shard keeps about another.

A *record* in a ring is a run of messages. A message is a header, a payload, and the tokens of the loans that the
payload describes::

    kind u8 │ method or error class u8 │ loans or error code i32 │ payload bytes u32 │ call id u64 │ deadline µs u64
    payload │ tokens u64 …

``Reply`` is the responding end of a call. One is created for every call that arrives.
"""

from __future__ import annotations

from array import array
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from millstream.errors import (
    Corruption,
    MillstreamError,
    OutcomeUnknown,
    Rejected,
    Retriable,
    ShuttingDown,
    Unavailable,
)
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.shard.ring import Ring

_HEADER: Final = Struct("<BBxxiIQQ")
HEADER_BYTES: Final = _HEADER.size
pack = _HEADER.pack
unpack = _HEADER.unpack_from

ANSWER_BACKLOG_BYTES: Final = 32 << 20
"""A response without loans is dropped if this many bytes already wait for the other shard: half of the amount that
stops a shard (``transfer``).
"""
_LARGE_BYTES: Final = 16 << 10

CALL, TELL, ANSWER, FAILURE, CANCEL, RETURNS = range(6)
"""Kinds of message. The payload of RETURNS is tokens of ended loans."""

_ERRORS: Final[tuple[type[MillstreamError], ...]] = (
    MillstreamError,
    Rejected,
    Retriable,
    OutcomeUnknown,
    Unavailable,
    Corruption,
    ShuttingDown,
)


def pack_failure(error: MillstreamError, call_id: int) -> tuple[bytes, bytes]:
    """Header and payload of a FAILURE. A class outside of the taxonomy travels as its nearest base class in it."""
    text = error.message.encode()
    kind = next(_ERRORS.index(known) for known in type(error).__mro__ if known in _ERRORS)
    return pack(FAILURE, kind, int(error.code), len(text), call_id, 0), text


def unpack_failure(kind: int, code: int, payload: bytes) -> MillstreamError:
    """The error in a FAILURE."""
    return _ERRORS[kind](payload.decode(), ErrorCode(code))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens in the form in which they follow a payload or make up a RETURNS."""
    return array("Q", tokens).tobytes()


class Backlog:
    """Records for one peer that its ring had no room for, with their tags, oldest first. ``bytes`` is their size."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.bytes = 0
        self.records: deque[tuple[bytes, int]] = deque()

    def append(self, record: bytes, tag: int) -> None:
        self.records.append((record, tag))
        self.bytes += len(record)

    def drop_first(self) -> None:
        """The ring has taken the oldest record."""
        record, _ = self.records.popleft()
        self.bytes -= len(record)


class Peer:
    """The state that one shard keeps about another shard, or about itself (then without rings)."""

    __slots__ = (
        "backlog",
        "dirty",
        "inbound",
        "schedule",
        "open",
        "out",
        "outbound",
        "outstanding",
        "partial",
        "returns",
        "shard",
        "take_back",
    )

    def __init__(
        self,
        shard: ShardId,
        outbound: Ring | None,
        inbound: Ring | None,
        schedule: Callable[[Peer], None],
        take_back: Callable[[int], None],
    ) -> None:
        self.shard = shard
        self.outbound = outbound
        self.inbound = inbound
        self.schedule = schedule  # to be called when ``out`` is not empty and ``dirty`` is not set
        self.take_back = take_back  # ends a loan that was never sent
        self.out: list[bytes] = []  # messages of this turn
        self.dirty = False
        self.backlog = Backlog()
        self.outstanding = 0  # calls to the peer without a response, cancelled and expired ones included
        self.open: dict[int, Reply] = {}  # calls from the peer without a response
        self.partial: list[bytes] = []  # received parts of a message longer than a record
        self.returns: array[int] = array("Q")  # tokens of ended loans, to be returned


class Reply:
    """The responding end of a call. The handler calls exactly one of ``send`` and ``fail``, now or later; for a
    ``tell`` they have no effect.

    ``on_cancel`` may be set to a function that is called when the caller cancels. A response after that is allowed and
    has no effect.
    """

    __slots__ = ("_call_id", "_peer", "_wanted", "on_cancel")

    def __init__(self, peer: Peer, call_id: int) -> None:
        self._peer = peer
        self._call_id = call_id
        self._wanted = call_id != 0
        self.on_cancel: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits for the response."""
        return self._wanted

    def send(self, payload: bytes, loans: Sequence[int] = ()) -> None:
        """Respond. ``loans`` are the tokens of the memory that the payload describes.

        If there is no room for the response, the call ends with OutcomeUnknown.
        """
        peer = self._peer
        size = len(payload)
        if not self._wanted:
            for token in loans:
                peer.take_back(token)
            return
        if size > _LARGE_BYTES:
            size += sum(map(len, peer.out))
        if size + peer.backlog.bytes > ANSWER_BACKLOG_BYTES and not loans:
            self.fail(_NO_ROOM)
            return
        self._wanted = False
        del peer.open[self._call_id]
        out = peer.out
        out.append(pack(ANSWER, 0, len(loans), len(payload), self._call_id, 0))
        out.append(payload)
        if loans:
            out.append(pack_tokens(loans))
        if not peer.dirty:
            peer.schedule(peer)

    def fail(self, error: MillstreamError) -> None:
        """Respond with an error, which arrives as the same class of the taxonomy."""
        peer = self._peer
        if not self._wanted:
            return
        self._wanted = False
        del peer.open[self._call_id]
        peer.out.extend(pack_failure(error, self._call_id))
        if not peer.dirty:
            peer.schedule(peer)

    def cancelled(self) -> None:
        """The caller has cancelled: return its credit, then notify the handler."""
        self.fail(_CANCELLED)
        if self.on_cancel is not None:
            self.on_cancel()


_CANCELLED: Final = Retriable("cancelled")
_NO_ROOM: Final = OutcomeUnknown("there is no room for the answer")
