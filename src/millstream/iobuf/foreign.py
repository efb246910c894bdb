"""Bytes in another shard's arena: read here, freed there.

Memory is freed on the core that allocated it ("deferred deletes" in thread-per-core buffer management). A shard that
lends a fragment keeps it alive under a *token*. The descriptor (offset, length, token) travels over a ring and becomes
a ``ForeignFragment``, whose view points into the other shard's mapping. The last ``release`` puts the token on a list;
the mailbox returns the list in one message.

A foreign fragment is read-only, because the lender may have lent the same bytes to other shards. A loan has no time
limit. It cannot outlive its holder, because a process that dies takes the whole broker down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.quantities import ArenaOffset, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable


class ForeignFragment:
    """``length`` bytes of another shard's arena. The loan ends when every holder has released it."""

    __slots__ = ("_give_back", "length", "offset", "owner_shard", "refs", "token", "view")

    def __init__(
        self,
        owner_shard: ShardId,
        offset: ArenaOffset,
        length: int,
        token: int,
        arena_view: memoryview,
        give_back: Callable[[int], None],
    ) -> None:
        self.owner_shard = owner_shard
        self.offset = offset
        self.length = length
        self.token = token
        self.view: memoryview = arena_view[offset : offset + length]
        self.refs = 1
        self._give_back = give_back

    @property
    def capacity(self) -> int:
        return self.length

    def share(self) -> ForeignFragment:
        self.refs += 1
        return self

    def release(self) -> None:
        """Drop one reference. The last one returns the token to the lender."""
        refs = self.refs = self.refs - 1
        if refs <= 0:
            if refs < 0:
                raise AssertionError(f"loan {self.token} of shard {self.owner_shard} returned twice")
            self._give_back(self.token)

    def __repr__(self) -> str:
        return (
            f"ForeignFragment(shard={self.owner_shard}, offset={self.offset}, length={self.length}, refs={self.refs})"
        )
