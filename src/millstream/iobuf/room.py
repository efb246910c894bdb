"""Memory that another process fills: a list of fragments, where they lie in the arena, and the chain once it is filled.

The holder of the list owns its fragments: it gives them to ``chain_of`` or to ``release_all``, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.iobuf.arena import ArenaFull
from millstream.iobuf.buf import IoBuf
from millstream.iobuf.sizes import MAX_FRAGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf.arena import Arena
    from millstream.iobuf.fragment import Fragment


def allocate_room(arena: Arena, size_bytes: int) -> list[Fragment] | None:
    """Fragments of ``size_bytes`` or more in all; None, with nothing allocated, if there is no memory now."""
    fragments: list[Fragment] = []
    try:
        while size_bytes > 0:
            fragments.append(arena.allocate(min(size_bytes, MAX_FRAGMENT_BYTES)))
            size_bytes -= fragments[-1].capacity
    except ArenaFull:
        release_all(fragments)
        return None
    return fragments


def spans_of(fragments: Sequence[Fragment]) -> list[int]:
    """Start and end (exclusive) of each fragment in the arena, in one list."""
    spans: list[int] = []
    for fragment in fragments:
        spans += (fragment.offset, fragment.offset + fragment.capacity)
    return spans


def chain_of(fragments: Sequence[Fragment], size_bytes: int) -> IoBuf:
    """The first ``size_bytes`` of the fragments. The caller releases the chain; what is left over is released here."""
    chain = IoBuf()
    for fragment in fragments:
        size = min(size_bytes, fragment.capacity)
        chain.append(fragment, 0, size)
        size_bytes -= size
    return chain


def release_all(fragments: Sequence[Fragment]) -> None:
    """Give the fragments back."""
    for fragment in fragments:
        fragment.release()
