"""Sizes of fragments: the allocation table, and tiers for pools with a fixed set of sizes.

Arbitrary allocation sizes fragment memory. Here every fragment has one of fifteen sizes, each about 1.5 times the one
before, so that a buffer wastes at most a third and freed memory fits the next request::

    512 768 1152 1728 2592 3888 5832 8748 13122 19683 29525 44288 66432 99648 131072

The table comes from thread-per-core buffer management (``io_allocation_size``). A larger buffer is a chain, or a
*block* of ``BLOCK_BYTES`` while memory is in one piece. Fragments are carved from slabs of ``SLAB_BYTES``. If the size
does not divide a slab, the slab's tail stays unused (never touched, so not resident): 29525 fits four times and 131072
once, but 44288, 66432 and 99648 leave a quarter or more of the *budget* unused. Long-lived buffers such as a log cache
therefore use 29525 and 131072.

A size beyond the table raises ``ValueError``; the caller must use a chain.
"""

from bisect import bisect_left

MIN_FRAGMENT_BYTES = 512
MAX_FRAGMENT_BYTES = 128 * 1024
SLAB_BYTES = MAX_FRAGMENT_BYTES
BLOCK_BYTES = 8 * SLAB_BYTES


def _allocation_table() -> tuple[int, ...]:
    """``io_allocation_size``: x ← ⌊(3x + 1) / 2⌋ from 512, closed by 131072."""
    sizes: list[int] = []
    size = MIN_FRAGMENT_BYTES
    while size < MAX_FRAGMENT_BYTES:
        sizes.append(size)
        size = (size * 3 + 1) // 2
    sizes.append(MAX_FRAGMENT_BYTES)
    return tuple(sizes)


ALLOC_TABLE = _allocation_table()


def next_allocation_size(size_bytes: int) -> int:
    """Smallest size of the table that holds ``size_bytes``; 0 and below count as 1."""
    if size_bytes > MAX_FRAGMENT_BYTES:
        raise ValueError(
            f"a fragment holds at most {MAX_FRAGMENT_BYTES} bytes, {size_bytes} were asked for; chain fragments instead"
        )
    return ALLOC_TABLE[bisect_left(ALLOC_TABLE, size_bytes)]
