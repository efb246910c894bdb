"""The memory of a shard: one shared mapping, divided into reference-counted fragments.

The memory budget of a shard is mapped once, before the processes fork, as a memfd. Every process of the broker sees it
at the same offsets. A page takes memory from its first use on. The owner (one process, one thread) allocates and frees;
other processes only read, through ``view`` and a descriptor (offset, length).

::

    memfd   │ slab 0 │ slab 1 │ … ─►           ◄─ … │ block of 8 slabs │ block │ counters (one page) │
              29525×4  512×256   each slab serves one size class of the allocation table at a time

``allocate`` takes a fragment from the free list of its size class: from the current slab, then from another slab of the
class with a free fragment, then from an untouched slab, then from an idle slab of any class. If nothing is left, it
calls ``on_pressure`` once (a cache that can give memory back) and then raises ``ArenaFull``. An overload fails one
request and never takes more memory.

*Blocks* of 1 MiB are taken from the other end of the mapping. ``allocate_block`` returns None without one, so its
callers must work without. Slabs take precedence: when none is left, an idle block becomes eight slabs. Eight idle slabs
side by side become a block again.

*Reservations* are byte budgets per memory class, beside the fragments. The full length of a frame is reserved before
its body is read, so that half-read frames cannot fill the arena. A reservation allocates nothing; it only refuses
early.

Live fragments and reservations are counted in the mapping itself, so that the supervisor reads them without asking the
shard. ``live_fragments`` is 0 when nothing leaks. With ``poison`` the arena also records where each live fragment was
allocated (``leaks``).
"""

from __future__ import annotations

import ctypes
import enum
import errno
import mmap
import os
import platform
import sys
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Unavailable
from millstream.iobuf.fragment import Fragment, SizeClass, Slab
from millstream.iobuf.sizes import ALLOC_TABLE, BLOCK_BYTES, MAX_FRAGMENT_BYTES, SLAB_BYTES
from millstream.model.quantities import MemoryNode, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POISON_VARIABLE: Final = "MILLSTREAM_POISON"
"""Environment variable. Value 1 makes every arena overwrite released bytes and record where fragments were
allocated.
"""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_MBIND: Final = {"x86_64": 237, "aarch64": 235}
"""Number of the system call, which libc has no function for, by machine."""
_MPOL_BIND: Final = 2
_WORD_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)
_POISON_BYTE: Final = b"\xdb"
_COUNTER_BYTES: Final = mmap.PAGESIZE
_RESERVED_AT: Final = 32  # cell of the first memory class; cells 0–15 count live fragments per size
_SLABS_AT: Final = 48  # cell: slabs in use, including those of blocks
_SIZES: Final = (*ALLOC_TABLE, BLOCK_BYTES)
_SLABS_A_BLOCK: Final = BLOCK_BYTES // SLAB_BYTES
_JOIN_EVERY: Final = 64
"""One search for adjacent idle slabs per this many requests for a block."""
_JOIN_LOOKS: Final = 512
"""Idle slabs examined per search, oldest first; about 0.5 ms."""


class MemoryClass(enum.IntEnum):
    """Purpose of reserved memory. Each class has its own limit, so that no class can starve another."""

    RECEIVE = 0  # frames being read and requests not yet durable
    CACHE = 1  # the log cache
    FETCH = 2  # responses not yet sent
    RING = 3  # fragments lent to sibling shards


DEFAULT_SHARES: Final[Mapping[MemoryClass, float]] = {
    MemoryClass.RECEIVE: 0.30,
    MemoryClass.CACHE: 0.35,
    MemoryClass.FETCH: 0.20,
    MemoryClass.RING: 0.05,
}
"""Shares of the capacity. The rest covers the unused tails of slabs."""


class ArenaFull(Unavailable):
    """No fragment of that size is free. Nothing was allocated; a retry may succeed after a release."""


class ArenaUsage(msgspec.Struct, frozen=True):
    """Snapshot for metrics. Any process may take it, without a lock; its fields may differ by a few operations."""

    owner_shard: int
    capacity_bytes: int
    in_use_bytes: int
    slab_bytes: int
    live_fragments: int
    reserved_bytes: tuple[int, ...]  # by MemoryClass
    limit_bytes: tuple[int, ...]  # by MemoryClass


class Arena:
    """Memory of one shard, divided into fragments, blocks and reservations.

    The supervisor creates it before the fork. The owning shard allocates and reserves; other processes use ``view`` and
    ``usage`` only.
    """

    __slots__ = (
        "_blocks",
        "_blocks_from",
        "_classes",
        "_counters",
        "_idle",
        "_limits",
        "_lookups",
        "_map",
        "_poison",
        "_untouched",
        "capacity_bytes",
        "on_pressure",
        "owner_shard",
        "owners",
        "view",
    )

    def __init__(
        self, owner_shard: ShardId, capacity_bytes: int, poison: bool, shares: Mapping[MemoryClass, float]
    ) -> None:
        slab_count = capacity_bytes // SLAB_BYTES
        if slab_count < 1:
            raise ValueError(f"an arena needs at least {SLAB_BYTES} bytes, not {capacity_bytes}")
        if sum(shares.values()) > 1:
            raise ValueError("memory classes may not be promised more than the arena has")
        self.owner_shard = owner_shard
        self.capacity_bytes = slab_count * SLAB_BYTES
        fd = os.memfd_create(f"millstream-arena-{owner_shard}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self.capacity_bytes + _COUNTER_BYTES)
            self._map = mmap.mmap(fd, self.capacity_bytes + _COUNTER_BYTES, mmap.MAP_SHARED)
        finally:
            os.close(fd)  # forks inherit the mapping
        whole = memoryview(self._map)
        self.view: memoryview = whole[: self.capacity_bytes]
        self._counters = whole[self.capacity_bytes :].cast("Q")
        self._untouched = 0  # first slab that was never used, in slabs from the start
        self._blocks_from = slab_count  # first slab that belongs to blocks, in slabs from the start
        self._idle: dict[int, Slab] = {}
        self._blocks = SizeClass(len(ALLOC_TABLE), BLOCK_BYTES, 1)
        self._lookups = 0
        self._classes = tuple(SizeClass(i, size, SLAB_BYTES // size) for i, size in enumerate(ALLOC_TABLE))
        self._limits = tuple(int(self.capacity_bytes * shares.get(c, 0.0)) for c in MemoryClass)
        self._poison = _POISON_BYTE * BLOCK_BYTES if poison else b""
        self.owners: dict[int, str] = {}
        self.on_pressure: Callable[[int], None] | None = None

    @classmethod
    def create(
        cls,
        owner_shard: ShardId,
        capacity_bytes: int,
        poison: bool = False,
        shares: Mapping[MemoryClass, float] = DEFAULT_SHARES,
    ) -> Arena:
        """Map an arena of ``capacity_bytes``, rounded down to whole slabs. Called in the supervisor, before the fork.

        ``poison`` overwrites released bytes and records allocation sites, for tests. MILLSTREAM_POISON=1 turns it on,
        too.
        """
        return cls(owner_shard, capacity_bytes, poison or os.environ.get(POISON_VARIABLE) == "1", shares)

    # -- fragments -------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> Fragment:
        """A fragment of at least ``size_bytes``, with one reference and undefined content.

        Raises:
            ArenaFull: no memory of that class is left, even after ``on_pressure``.
            ValueError: more than ``MAX_FRAGMENT_BYTES``; use several fragments.
        """
        if size_bytes > MAX_FRAGMENT_BYTES:
            raise ValueError(f"a fragment holds at most {MAX_FRAGMENT_BYTES} bytes, {size_bytes} were requested")
        size_class = self._classes[bisect_left(ALLOC_TABLE, size_bytes)]
        free = size_class.free
        if not free:
            free = self._refill(size_class)
        fragment = free.pop()
        fragment.refs = 1
        self._counters[size_class.index] += 1
        if self._poison:
            self._check_poison(fragment)
        return fragment

    def allocate_block(self) -> Fragment | None:
        """A block of ``BLOCK_BYTES`` with one reference and undefined content, or None without one."""
        idle = self._blocks.partial
        if idle:
            _, slab = idle.popitem()
        else:
            base = self._new_block()
            if base < 0:
                return None
            slab = self._slab(base, self._blocks, idle)
            self._carve(slab)
        fragment = slab.free.pop()
        fragment.refs = 1
        self._counters[self._blocks.index] += 1
        if self._poison:
            self._check_poison(fragment)
        return fragment

    def _new_block(self) -> int:
        """Base offset of as many adjacent unused slabs as a block needs; -1 without them."""
        if self._blocks_from - self._untouched >= _SLABS_A_BLOCK:
            self._blocks_from -= _SLABS_A_BLOCK
            self._counters[_SLABS_AT] += _SLABS_A_BLOCK
            return self._blocks_from * SLAB_BYTES
        self._lookups += 1
        if self._lookups % _JOIN_EVERY == 1:
            for base in islice(self._idle, _JOIN_LOOKS):
                bases = range(base, base + BLOCK_BYTES, SLAB_BYTES)
                if all(one in self._idle for one in bases):
                    for one in bases:
                        self._idle.pop(one).size_class.partial.pop(one, None)
                    return base
        return -1

    def _refill(self, size_class: SizeClass) -> list[Fragment]:
        """Make a slab with a free fragment the class's current one, and return its free list (never empty)."""
        slab = self._slab_with_room(size_class)
        if slab is None and self.on_pressure is not None:
            self.on_pressure(size_class.capacity)
            if size_class.free:
                return size_class.free
            slab = self._slab_with_room(size_class)
        if slab is None:
            raise ArenaFull(f"shard {self.owner_shard}: no free fragment of {size_class.capacity} bytes")
        size_class.current = slab
        size_class.free = slab.free
        if not slab.free:
            self._carve(slab)
        return slab.free

    def _slab_with_room(self, size_class: SizeClass) -> Slab | None:
        current = size_class.current
        if current is not None and current.carved < size_class.per_slab:
            return current
        if size_class.partial:
            base, slab = size_class.partial.popitem()
            self._idle.pop(base, None)
            return slab
        base = self._take_slab(size_class)
        if base < 0:
            return None
        return self._slab(base, size_class, self._idle)

    def _slab(self, base: int, size_class: SizeClass, idle: dict[int, Slab]) -> Slab:
        return Slab(base, size_class, self._counters, idle, self._overwrite if self._poison else None)

    def _take_slab(self, size_class: SizeClass) -> int:
        """Base offset of a slab that no class uses; -1 without one."""
        if self._untouched < self._blocks_from:
            self._untouched += 1
            self._counters[_SLABS_AT] += 1
            return (self._untouched - 1) * SLAB_BYTES
        if self._idle:
            base, slab = self._idle.popitem()
            slab.size_class.partial.pop(base, None)
            return base
        if self._blocks.partial:
            return self._split_block()
        for other in self._classes:
            current = other.current
            if current is not None and other is not size_class and len(current.free) == current.carved:
                other.current = None
                other.free = []
                return current.base
        return -1

    def _split_block(self) -> int:
        """Turn an idle block into slabs. The first is returned (base offset), the others become idle."""
        base, _ = self._blocks.partial.popitem()
        largest = self._classes[-1]
        for other in range(base + SLAB_BYTES, base + BLOCK_BYTES, SLAB_BYTES):
            slab = self._slab(other, largest, self._idle)
            self._carve(slab)
            largest.partial[other] = self._idle[other] = slab
        return base

    def _carve(self, slab: Slab) -> None:
        """Create the Python objects of one more fragment. They exist only from the fragment's first use on."""
        capacity = slab.size_class.capacity
        offset = slab.base + slab.carved * capacity
        slab.carved += 1
        fragment = Fragment(slab, self.view[offset : offset + capacity], offset, capacity)
        if self._poison:
            self._overwrite(fragment)
        slab.free.append(fragment)

    # -- reservations ----------------------------------------------------------------------------------------

    def reserve(self, memory_class: MemoryClass, size_bytes: int) -> bool:
        """Reserve ``size_bytes`` of the class's budget. False, with nothing changed, if that would exceed its limit."""
        cell = _RESERVED_AT + memory_class
        held = self._counters[cell] + size_bytes
        if held > self._limits[memory_class]:
            return False
        self._counters[cell] = held
        return True

    def unreserve(self, memory_class: MemoryClass, size_bytes: int) -> None:
        """Give a reservation back, in whole or in part."""
        cell = _RESERVED_AT + memory_class
        held = self._counters[cell] - size_bytes
        if held < 0:
            raise AssertionError(
                f"{memory_class.name}: {size_bytes} bytes given back, {held + size_bytes} were reserved"
            )
        self._counters[cell] = held

    def reserved_bytes(self, memory_class: MemoryClass) -> int:
        return self._counters[_RESERVED_AT + memory_class]

    def limit_bytes(self, memory_class: MemoryClass) -> int:
        return self._limits[memory_class]

    # -- accounting ------------------------------------------------------------------------------------------

    @property
    def live_fragments(self) -> int:
        """Fragments that are allocated and not yet released. Correct in every process that maps the arena."""
        return sum(self._counters[: len(_SIZES)])

    @property
    def in_use_bytes(self) -> int:
        """Capacity of all live fragments."""
        return sum(count * size for count, size in zip(self._counters, _SIZES, strict=False))

    def live_by_size(self) -> dict[int, int]:
        """Live fragments by capacity; sizes without any are left out."""
        return {size: count for size, count in zip(_SIZES, self._counters, strict=False) if count}

    def usage(self) -> ArenaUsage:
        """Snapshot for metrics. Callable in every process that maps the arena."""
        return ArenaUsage(
            owner_shard=self.owner_shard,
            capacity_bytes=self.capacity_bytes,
            in_use_bytes=self.in_use_bytes,
            slab_bytes=self._counters[_SLABS_AT] * SLAB_BYTES,
            live_fragments=self.live_fragments,
            reserved_bytes=tuple(self._counters[_RESERVED_AT + c] for c in MemoryClass),
            limit_bytes=self._limits,
        )

    def leaks(self) -> list[str]:
        """Allocation site of each live fragment, newest last. Empty without poisoning."""
        return [f"{offset}: {where}" for offset, where in self.owners.items()]

    # -- poisoning (tests) -----------------------------------------------------------------------------------

    def _overwrite(self, fragment: Fragment) -> None:
        fragment.view[:] = self._poison[: fragment.capacity]
        self.owners.pop(fragment.offset, None)

    def _check_poison(self, fragment: Fragment) -> None:
        if bytes(fragment.view) != self._poison[: fragment.capacity]:
            raise AssertionError(f"{fragment!r} was written to after its release")
        frames: list[str] = []
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # the caller of allocate
        while frame is not None and len(frames) < 6:  # pyright: ignore[reportUnnecessaryComparison]
            frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back  # pyright: ignore[reportAssignmentType]
        self.owners[fragment.offset] = " < ".join(frames)

    # -- mapping ---------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Keep the whole arena in RAM, which takes all of it at once. It stays there while this process lives.

        Raises:
            OSError: the kernel refused (RLIMIT_MEMLOCK, or too little memory).
        """
        if _libc.mlock(ctypes.c_void_p(self._address()), ctypes.c_size_t(self.capacity_bytes)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def bind(self, node: MemoryNode) -> None:
        """Take the arena's pages from one memory node (NUMA), in every process. For pages that are not used yet.

        Raises:
            OSError: there is no such node, or this kernel has no memory policies.
        """
        number = _MBIND.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        words = (ctypes.c_ulong * (node // _WORD_BITS + 1))()
        words[node // _WORD_BITS] = 1 << node % _WORD_BITS
        size = ctypes.c_size_t(self.capacity_bytes)
        nodes = ctypes.c_ulong(len(words) * _WORD_BITS + 1)  # the kernel looks at one bit less
        place = ctypes.c_void_p(self._address())
        if _libc.syscall(ctypes.c_long(number), place, size, _MPOL_BIND, words, nodes, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def __repr__(self) -> str:
        return f"Arena(shard={self.owner_shard}, capacity={self.capacity_bytes}, in_use={self.in_use_bytes})"
