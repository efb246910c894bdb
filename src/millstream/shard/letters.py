"""What shards say to each other, byte by byte, and what one shard keeps about another.

A *record* in a ring is a run of messages; a message is a header, a payload, and the tokens of the loans that the
payload describes::

    kind u8 │ method or error class u8 │ loans or error code i32 │ payload bytes u32 │ call id u64 │ deadline µs u64
    payload │ tokens u64 …

`Reply` is the answering end of a call: one is made for every call that arrives.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.shard.ring import Ring

_HEADER: Final = Struct("<BBxxiIQQ")
HEADER_BYTES: Final = _HEADER.size
pack = _HEADER.pack
unpack = _HEADER.unpack_from

ANSWER_BACKLOG_BYTES: Final = 32 << 20
"""An answer without loans is not sent where this much would wait for the other shard to read it: half of what stops a
shard (``post``)."""
_LARGE_BYTES: Final = 16 << 10

CALL, TELL, ANSWER, FAILURE, CANCEL, RETURNS = range(6)
"""Kinds of message. RETURNS: the payload is tokens that come home."""

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
    """Header and payload of a FAILURE; a class that is not of the taxonomy itself travels as the nearest one above
    it.
    """
    text = error.message.encode()
    kind = next(_ERRORS.index(known) for known in type(error).__mro__ if known in _ERRORS)
    return pack(FAILURE, kind, int(error.code), len(text), call_id, 0), text


def unpack_failure(kind: int, code: int, payload: bytes) -> MillstreamError:
    """The error of a FAILURE."""
    return _ERRORS[kind](payload.decode(), ErrorCode(code))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens as they follow a payload, and as they come home."""
    return array("Q", tokens).tobytes()


class Peer:
    """What one shard keeps about a sibling, or about itself (then without rings)."""

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "dirty",
        "inbound",
        "mark",
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
        shard: int,
        outbound: Ring | None,
        inbound: Ring | None,
        mark: Callable[[Peer], None],
        take_back: Callable[[int], None],
    ) -> None:
        self.shard = shard
        self.outbound = outbound
        self.inbound = inbound
        self.mark = mark  # call it when `out` has something and `dirty` is not set
        self.take_back = take_back  # ends a loan that was never sent
        self.out: list[bytes] = []  # what is said in this turn
        self.dirty = False
        self.backlog: deque[tuple[bytes, int]] = deque()  # records the ring had no room for, and their tags
        self.backlog_bytes = 0
        self.outstanding = 0  # calls to there that are not answered, also those nobody waits for any more
        self.open: dict[int, Reply] = {}  # calls from there that are not answered
        self.partial: list[bytes] = []  # of a message longer than a record
        self.returns: array[int] = array("Q")  # tokens to send home


class Reply:
    """Where a handler's answer goes: exactly one of `send` and `fail`, now or later. For a `tell` it goes nowhere.

    `on_cancel` may be set to a function that is called when the caller lost interest; answering after that is allowed
    and does nothing.
    """

    __slots__ = ("_call_id", "_peer", "_wanted", "on_cancel")

    def __init__(self, peer: Peer, call_id: int) -> None:
        self._peer = peer
        self._call_id = call_id
        self._wanted = call_id != 0
        self.on_cancel: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the answer."""
        return self._wanted

    def send(self, payload: bytes, loans: Sequence[int] = ()) -> None:
        """Answer; `loans` are the tokens of what the payload describes.

        An answer for which there is no room ends the call with OutcomeUnknown.
        """
        peer = self._peer
        size = len(payload)
        if not self._wanted:
            for token in loans:
                peer.take_back(token)
            return
        if size > _LARGE_BYTES:
            size += sum(map(len, peer.out))
        if size + peer.backlog_bytes > ANSWER_BACKLOG_BYTES and not loans:
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
            peer.mark(peer)

    def fail(self, error: MillstreamError) -> None:
        """Answer with an error, which arrives as the same class of the taxonomy."""
        peer = self._peer
        if not self._wanted:
            return
        self._wanted = False
        del peer.open[self._call_id]
        peer.out.extend(pack_failure(error, self._call_id))
        if not peer.dirty:
            peer.mark(peer)

    def cancelled(self) -> None:
        """The caller lost interest: give its credit back, then tell the handler."""
        self.fail(_CANCELLED)
        if self.on_cancel is not None:
            self.on_cancel()


_CANCELLED: Final = Retriable("cancelled")
_NO_ROOM: Final = OutcomeUnknown("there is no room for the answer")
