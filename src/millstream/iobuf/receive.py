"""Memory for bytes that are about to be received: reserved in the *receive* share of the arena, then allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.iobuf.arena import ArenaFull, MemoryClass
from millstream.iobuf.buf import IoBuf
from millstream.iobuf.sizes import MAX_FRAGMENT_BYTES

if TYPE_CHECKING:
    from millstream.iobuf.arena import Arena


def receive_buffer(arena: Arena, size_bytes: int) -> IoBuf | None:
    """A chain of ``size_bytes`` with undefined content; None, with nothing changed, if there is no memory for it now.

    The caller owns both: it releases the chain, and gives the reservation of ``MemoryClass.RECEIVE`` back.
    """
    if not arena.reserve(MemoryClass.RECEIVE, size_bytes):
        return None
    try:
        return _chain(arena, size_bytes)
    except ArenaFull:
        arena.unreserve(MemoryClass.RECEIVE, size_bytes)
        return None


def copied(arena: Arena, views: Sequence[memoryview]) -> IoBuf:
    """A chain with the bytes of ``views``, which the caller releases. Nothing is reserved.

    Raises:
        ArenaFull: no memory now; nothing is taken.
    """
    chain = _chain(arena, sum(map(len, views)))
    rest = [view for view in views if len(view)]
    for target in chain.views():
        at = 0
        while at < len(target):
            count = min(len(rest[0]), len(target) - at)
            target[at : at + count] = rest[0][:count]
            at += count
            rest[0] = rest[0][count:]
            if not len(rest[0]):
                rest.pop(0)
    return chain


def _chain(arena: Arena, size_bytes: int) -> IoBuf:
    """A chain with undefined content. Raises ArenaFull; nothing is taken then."""
    chain = IoBuf()
    try:
        while size_bytes:
            part = min(size_bytes, MAX_FRAGMENT_BYTES)
            chain.append(arena.allocate(part), 0, part)
            size_bytes -= part
    except ArenaFull:
        chain.release()
        raise
    return chain
