"""Bytes of a sibling's arena: looked at here, freed there.

Memory allocated on a core is freed on that core (thread-per-core buffer management calls it "deferred deletes"). A
shard that lends a fragment keeps it alive under a *token*; the descriptor (offset, length, token) travels over a ring
and becomes a `ForeignFragment`, whose view points straight into the sibling's mapping. Its last `release` puts the
token on a list, and the mailbox takes the list home in one message.

Read only by agreement: the lender may have lent the same bytes to others. There is no time limit on a loan; a process
that dies takes the broker with it, so no loan outlives its holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ForeignFragment:
    """`length` bytes of another shard's arena. Holds the loan until `release` was called once more than `share`."""

    __slots__ = ("_give_back", "length", "offset", "owner_shard", "refs", "token", "view")

    def __init__(
        self,
        owner_shard: int,
        offset: int,
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
        """One holder less; the last one sends the token home."""
        refs = self.refs = self.refs - 1
        if refs <= 0:
            if refs < 0:
                raise AssertionError(f"loan {self.token} of shard {self.owner_shard} given back twice")
            self._give_back(self.token)

    def __repr__(self) -> str:
        return (
            f"ForeignFragment(shard={self.owner_shard}, offset={self.offset}, length={self.length}, refs={self.refs})"
        )
