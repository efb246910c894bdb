"""Reference-counted, fragmented buffers within a fixed memory budget. ``arena`` is the memory, ``buf`` the chain."""

from millstream.iobuf.arena import Arena, ArenaFull, ArenaUsage, MemoryClass
from millstream.iobuf.buf import EndOfBuffer, IoBuf
from millstream.iobuf.foreign import ForeignFragment
from millstream.iobuf.fragment import Fragment, Piece, Releasable
from millstream.iobuf.receive import receive_buffer
from millstream.iobuf.sizes import ALLOC_TABLE, BLOCK_BYTES, MAX_FRAGMENT_BYTES, next_allocation_size

__all__ = [
    "ALLOC_TABLE",
    "BLOCK_BYTES",
    "MAX_FRAGMENT_BYTES",
    "Arena",
    "ArenaFull",
    "ArenaUsage",
    "EndOfBuffer",
    "ForeignFragment",
    "Fragment",
    "IoBuf",
    "MemoryClass",
    "Piece",
    "Releasable",
    "next_allocation_size",
    "receive_buffer",
]
