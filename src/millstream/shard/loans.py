"""Loans of memory between shards: one shard lends, another reads the bytes in place, and the token returns.

::

    lender                              borrower
    token = lend(fragment)  ──token──►  fragment = borrow(lender, offset, length, token)
    end(tokens)             ◄──token──  give_back(lender, token), with the fragment's last release

``lend`` keeps one reference of a fragment under a token. The borrower makes a ``ForeignFragment`` of (lender, offset,
length, token). Its last release returns the token, with the next messages or within ``RETURN_US``.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.iobuf import ForeignFragment
from millstream.model.quantities import ShardId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import Arena, Releasable
    from millstream.model.quantities import ArenaOffset
    from millstream.shard.messages import Peer
    from millstream.shard.reactor import Reactor, Timer

RETURN_US: Final = 2_000
RETURNS_AT_ONCE: Final = 32


class Loans:
    """What one shard has lent to the others, and what it returns to them.

    Lifecycle and shard: the mailbox's. Invariant: ``_lent`` has each token from ``lend`` until it returns.
    """

    __slots__ = ("_arenas", "_gauge", "_lent", "_next_token", "_reactor", "_returners", "_timer", "peers")

    def __init__(self, reactor: Reactor, arenas: Sequence[Arena]) -> None:
        """``arenas`` are those of all shards, by shard."""
        self.peers: Sequence[Peer] = ()
        """Where returned tokens leave, by shard; set by the mailbox."""
        self._reactor = reactor
        self._arenas = arenas
        self._lent: dict[int, Releasable] = {}
        self._next_token = 1
        self._timer: Timer | None = None
        self._returners = [partial(self.give_back, ShardId(shard)) for shard in range(len(arenas))]
        self._gauge = reactor.stats.gauge("mailbox_lent_fragments")

    def __len__(self) -> int:
        return len(self._lent)

    # -- the lender's side

    def lend(self, piece: Releasable) -> int:
        """Keep the caller's reference of this shard's fragment, or a lease, until its token returns."""
        assert piece.__class__ is not ForeignFragment, "only the owner of a fragment lends it"
        token = self._next_token
        self._next_token = token + 1
        lent = self._lent
        lent[token] = piece
        self._gauge.set(len(lent))
        return token

    def take_back(self, token: int) -> None:
        """End a loan that was never sent."""
        self._lent.pop(token).release()

    def end(self, tokens: bytes) -> None:
        """End the loans whose tokens have returned."""
        returned: array[int] = array("Q")
        returned.frombytes(tokens)
        lent = self._lent
        for token in returned:
            lent.pop(token).release()
        self._gauge.set(len(lent))

    # -- the borrower's side

    def borrow(self, lender: ShardId, offset: ArenaOffset, length: int, token: int) -> ForeignFragment:
        """The bytes of a descriptor, in the lender's memory. The caller releases the fragment."""
        return ForeignFragment(lender, offset, length, token, self._arenas[lender].view, self._returners[lender])

    def give_back(self, lender: ShardId, token: int) -> None:
        """Return a token soon, with other messages to the lender."""
        peer = self.peers[lender]
        returns = peer.returns
        returns.append(token)
        if peer.dirty:
            return
        if len(returns) >= RETURNS_AT_ONCE:
            peer.schedule(peer)
        elif self._timer is None:
            self._timer = self._reactor.call_later(RETURN_US, self._return_all)

    def decline(self, peer: Peer, tokens: bytes) -> None:
        """Return loans that no code will use."""
        for token in array("Q", tokens):
            self.give_back(peer.shard, token)

    def _return_all(self) -> None:
        self._timer = None
        for peer in self.peers:
            if peer.returns and not peer.dirty:
                peer.schedule(peer)
