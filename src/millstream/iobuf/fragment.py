"""A fragment: one piece of an arena, with a reference count.

::

    arena  ┌──────────── slab (128 KiB, one size class) ────────────┬─── slab ──…
           │ fragment │ fragment │ fragment │ …                     │
           └──────────┴──────────┴──────────┴───────────────────────┴───────────
             view, offset, capacity, refs

``Arena.allocate`` returns a fragment with one reference. ``share`` adds a reference, ``release`` drops one. At zero the
fragment is back in its slab and may be allocated again at once, so a holder must not use ``view`` after its release.
With poisoning, released bytes are overwritten and checked at the next allocation: a reader that kept a view sees
garbage, and a writer that kept one stops the process with the fragment's allocation site.

Only the process that owns the arena may share and release; other shards hold a ``ForeignFragment``. The count is a
plain integer, because a shard has one thread. One release too many raises ``AssertionError``.

Python objects are reused with their bytes: a fragment and its memoryview are created once, when the slab is carved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class Releasable(Protocol):
    """What is given back once."""

    def release(self) -> None: ...


class Piece(Protocol):
    """A part of a chain: bytes with a reference count. ``Fragment`` and ``ForeignFragment`` are pieces."""

    @property
    def view(self) -> memoryview: ...
    @property
    def offset(self) -> int: ...
    def share(self) -> Self: ...
    def release(self) -> None: ...


class SizeClass:
    """All slabs of one fragment size. ``free`` is the free list of ``current``, the slab that serves allocations.

    Invariants: every slab but ``current`` is carved completely; ``partial`` holds exactly the other slabs with a free
    fragment.
    """

    __slots__ = ("capacity", "current", "free", "index", "partial", "per_slab")

    def __init__(self, index: int, capacity: int, per_slab: int) -> None:
        self.index = index
        self.capacity = capacity
        self.per_slab = per_slab
        self.current: Slab | None = None
        self.free: list[Fragment] = []
        self.partial: dict[int, Slab] = {}


class Slab:
    """One slab of the arena. It knows how its fragments return to it."""

    __slots__ = ("base", "carved", "counters", "free", "idle", "on_poison", "size_class")

    def __init__(
        self,
        base: int,
        size_class: SizeClass,
        counters: memoryview,
        idle: dict[int, Slab],
        on_poison: Callable[[Fragment], None] | None,
    ) -> None:
        self.base = base
        self.size_class = size_class
        self.carved = 0
        self.free: list[Fragment] = []
        self.counters = counters  # live fragments by class, in shared memory
        self.idle = idle  # slabs of the whole arena without a live fragment, free to change class
        self.on_poison = on_poison

    def take_back(self, fragment: Fragment) -> None:
        """Return a fragment whose last reference was released. It may be allocated again from here on."""
        if fragment.refs != 0:
            raise AssertionError(
                f"fragment at {fragment.offset} released more often than it was shared ({fragment.refs})"
            )
        if self.on_poison is not None:
            self.on_poison(fragment)
        size_class = self.size_class
        free = self.free
        free.append(fragment)
        self.counters[size_class.index] -= 1
        if free is not size_class.free:
            if len(free) == 1:
                size_class.partial[self.base] = self
            if len(free) == size_class.per_slab:
                self.idle[self.base] = self


class Fragment:
    """``capacity`` bytes at ``offset`` of the arena, readable and writable through ``view``. Only an arena creates
    fragments.
    """

    __slots__ = ("capacity", "offset", "refs", "slab", "view")

    def __init__(self, slab: Slab, view: memoryview, offset: int, capacity: int) -> None:
        self.slab = slab
        self.view = view
        self.offset = offset
        self.capacity = capacity
        self.refs = 0

    def share(self) -> Fragment:
        """Add a reference. Each holder releases once."""
        self.refs += 1
        return self

    def release(self) -> None:
        """Drop a reference. The last one returns the bytes to the arena."""
        refs = self.refs = self.refs - 1
        if refs <= 0:
            self.slab.take_back(self)

    def __repr__(self) -> str:
        return f"Fragment(offset={self.offset}, capacity={self.capacity}, refs={self.refs})"
