"""Seats: how many share sessions a broker takes (``group.share.max.share.sessions``).

The sessions of a broker are on the shards of their connections, and the limit is the broker's: shard 0 keeps the table
of all seats, and the other shards ask it before they open a session. A member has one seat on a broker, as in Kafka. A
session of the same member on another connection takes it over, and the shard of the older session ends that one.

**Lost messages.** A question that is not answered in time is a refusal, and the seat is given back: messages to shard 0
keep their order, so a seat that was granted nevertheless is free again. **Crash.** A shard that dies ends the broker,
and all sessions with it.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.errors import MillstreamError
from millstream.model.quantities import ShardId
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply

TAKE, RETURN, LOST = range(75, 78)
"""Methods of the mailbox."""

KEEPER: Final = ShardId(0)
"""The shard that keeps the table."""

_YES, _NO = b"1", b"0"
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str]).decode

Key = tuple[str, str]
"""Group and member."""


class Seats:
    """The seats of a broker, as one shard sees them. Lifecycle: one per shard, built before its mailbox runs.

    ``_taken`` is the keeper's: the shard of each session.
    """

    def __init__(self, shard: Shard, seats_max: int) -> None:
        self._shard = shard
        self._seats_max = seats_max
        self._taken: dict[Key, int] = {}
        self.on_lost: Callable[[str, str], None] = _nothing
        """Called when a session on another shard has taken a member's seat over."""
        shard.mailbox.serve(TAKE, self._serve_take)
        shard.mailbox.serve(RETURN, self._serve_return)
        shard.mailbox.serve(LOST, self._serve_lost)

    def take(self, group_id: str, member_id: str, done: Callable[[bool], None]) -> None:
        """Ask for a member's seat; ``done`` gets whether there is one, maybe before this returns."""
        if self._shard.id == KEEPER:
            done(self._take((group_id, member_id), KEEPER))
            return

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                self.give_back(group_id, member_id)
            done(answer == _YES)

        self._shard.mailbox.call(KEEPER, TAKE, _encode((group_id, member_id)), answered, TIMEOUT_US)

    def give_back(self, group_id: str, member_id: str) -> None:
        """A session has ended."""
        if self._shard.id == KEEPER:
            self._give_back((group_id, member_id), KEEPER)
        else:
            self._shard.mailbox.tell(KEEPER, RETURN, _encode((group_id, member_id)))

    # On the keeper

    def _take(self, key: Key, shard: int) -> bool:
        before = self._taken.get(key)
        if before is None and len(self._taken) >= self._seats_max:
            return False
        self._taken[key] = shard
        if before not in (None, shard):
            if before == KEEPER:
                self.on_lost(*key)
            else:
                self._shard.mailbox.tell(ShardId(before or 0), LOST, _encode(key))
        return True

    def _give_back(self, key: Key, shard: int) -> None:
        if self._taken.get(key) == shard:
            del self._taken[key]

    def holder(self, key: Key) -> ShardId | None:
        """The shard that has the session of a member."""
        found = self._taken.get(key)
        return None if found is None else ShardId(found)

    def pass_on(self, key: Key, holder: ShardId, to: ShardId) -> bool:
        """The session of a member is on shard ``to`` from now on; False: it is not on shard ``holder`` any longer."""
        if self._taken.get(key) != holder:
            return False
        self._taken[key] = to
        return True

    # For other shards

    def _serve_take(self, sender: int, payload: bytes, reply: Reply) -> None:
        reply.send(_YES if self._take(_decode_key(payload), sender) else _NO)

    def _serve_return(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = reply
        self._give_back(_decode_key(payload), sender)

    def _serve_lost(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.on_lost(*_decode_key(payload))


def _nothing(*_: str) -> None:
    """No session is open."""
