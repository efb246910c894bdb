"""Moves: a session follows its member to the shard of another connection.

A member may send the requests of one session over any connection to the broker. So a shard that does not have a session
asks the keeper of the seats (``share.seats``), which has the shard that has it give it away. The session still belongs
to the connection that opened it: the end of that connection ends it, wherever it is.

::

    shard of the request ──MOVE──► keeper ──GIVE──► shard of the session, which notes that it is away
             ▲                       │ ◄────────────────┘
             └─────── session ───────┘
    the connection that opened it ends: ──CLOSE──► keeper ──CLOSE──► shard of the session

**Order.** What the keeper says to one shard arrives in order, and it holds a CLOSE back while the session is on its
way. **Lost messages.** A session whose answer is lost is lost: its member gets SHARE_SESSION_NOT_FOUND and opens
another, and what it held is released by the end of its connection or at the deadline.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from millstream.core.share.runs import SessionToken
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.share.seats import KEEPER, Key, Seats

MOVE, GIVE, CLOSE, FORGET = range(100, 104)
"""Methods of the mailbox."""


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A session on its way, or why it is not given: ``error`` is not 0."""

    error: int
    token: SessionToken = SessionToken(0)
    epoch: int = 0
    """That its next request has to have."""
    partitions: list[tuple[bytes, int]] = []


Give: TypeAlias = Callable[[Key, int], Given]
NOT_FOUND = Given(int(ErrorCode.SHARE_SESSION_NOT_FOUND))

_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(tuple[Key, int]).decode
_decode_given = msgspec.msgpack.Decoder(Given).decode
_decode_close = msgspec.msgpack.Decoder(tuple[Key, SessionToken]).decode
_decode_token = msgspec.msgpack.Decoder(SessionToken).decode


class Moves:
    """Moves of sessions, as one shard sees them. Lifecycle: one per shard, built before its mailbox runs; the callbacks
    are set before the first request.
    """

    def __init__(self, shard: Shard, seats: Seats) -> None:
        self._shard = shard
        self._seats = seats
        self._moving: dict[Key, list[SessionToken]] = {}
        """The keeper's: members whose session is on its way, with the ends of connections that wait for that."""
        self.on_give: Give = _nothing_there
        """Called with a member and the epoch of its request: the session leaves this shard."""
        self.on_close: Callable[[SessionToken], None] = _nothing
        """Called when the connection that opened a session has ended."""
        self.on_forget: Callable[[SessionToken], None] = _nothing
        """Called when a session that was given away has ended."""
        mailbox = shard.mailbox
        mailbox.serve(MOVE, self._serve_move)
        mailbox.serve(GIVE, self._serve_give)
        mailbox.serve(CLOSE, self._serve_close)
        mailbox.serve(FORGET, self._serve_forget)

    @property
    def has_others(self) -> bool:
        """Whether a session may be on another shard."""
        return self._shard.count > 1

    def ask(self, key: Key, epoch: int, done: Callable[[Given], None]) -> None:
        """Have the session of a member given to this shard, for a request with ``epoch``."""
        if self._shard.id == KEEPER:
            self._move(key, epoch, KEEPER, done)
        else:
            self._call(KEEPER, MOVE, key, epoch, done)

    def close(self, key: Key, token: SessionToken) -> None:
        """The connection that opened a session, which is elsewhere, has ended."""
        if self._shard.id == KEEPER:
            self._close(key, token)
        else:
            self._shard.mailbox.tell(KEEPER, CLOSE, _encode((key, token)))

    def forget(self, token: SessionToken) -> None:
        """A session that another shard has opened has ended here."""
        self._shard.mailbox.tell(ShardId(token % self._shard.count), FORGET, _encode(token))

    def _call(self, to: ShardId, method: int, key: Key, epoch: int, done: Callable[[Given], None]) -> None:
        def answered(answer: bytes | MillstreamError) -> None:
            done(NOT_FOUND if isinstance(answer, MillstreamError) else _decode_given(answer))

        self._shard.mailbox.call(to, method, _encode((key, epoch)), answered, TIMEOUT_US)

    # On the keeper

    def _move(self, key: Key, epoch: int, to: int, done: Callable[[Given], None]) -> None:
        holder = self._seats.holder(key)
        if holder is None or holder == to or key in self._moving:
            done(NOT_FOUND)
            return
        self._moving[key] = []

        def given(one: Given) -> None:
            closes = self._moving.pop(key)
            if not one.error and not self._seats.pass_on(key, holder, ShardId(to)):
                one = NOT_FOUND  # another session has replaced it
            done(one)
            for token in closes:
                self._close(key, token)

        if holder == KEEPER:
            given(self.on_give(key, epoch))
        else:
            self._call(holder, GIVE, key, epoch, given)

    def _close(self, key: Key, token: SessionToken) -> None:
        if key in self._moving:
            self._moving[key].append(token)
            return
        holder = self._seats.holder(key)
        if holder == KEEPER:
            self.on_close(token)
        elif holder is not None:
            self._shard.mailbox.tell(holder, CLOSE, _encode((key, token)))

    # For other shards

    def _serve_move(self, sender: int, payload: bytes, reply: Reply) -> None:
        self._move(*_decode_asked(payload), sender, lambda given: reply.send(_encode(given)))

    def _serve_give(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        reply.send(_encode(self.on_give(*_decode_asked(payload))))

    def _serve_close(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        key, token = _decode_close(payload)
        if self._shard.id == KEEPER:
            self._close(key, token)
        else:
            self.on_close(token)

    def _serve_forget(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.on_forget(_decode_token(payload))


def _nothing_there(*_: object) -> Given:
    return NOT_FOUND


def _nothing(*_: object) -> None:
    """No session is open."""
