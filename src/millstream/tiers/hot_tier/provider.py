"""What a warm cache is: the interface that a package of anybody may implement.

A provider is found by its name, which is what ``cache.type`` says. Its package declares an entry point in the group
``millstream.hot_tier`` that names a function or class; that is called once a shard with a `TierOptions`, in the shard's
archive process, and returns the provider::

    [project.entry-points."millstream.hot_tier"]
    redis = "my_package:RedisTier"

``examples/hot_tier`` has one. What a provider need not do: check blocks against their checksum, count hits, or survive
its own errors. The guard in front of it does. An exception of any kind switches it off for a minute.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millstream.errors import Rejected
from millstream.model.quantities import Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.eviction import ReaderId
    from millstream.format.manifest import ArchiveId

    Factory = Callable[["TierOptions"], "HotTierProvider"]

GROUP: Final = "millstream.hot_tier"
"""Group of the entry points."""

EVERY_OFFSET: Final = Offset(2**63 - 1)


class Source(enum.Enum):
    """Why a block is offered."""

    DEMAND = "demand"
    """A reader needed it, and it was read from the store."""

    AHEAD = "ahead"
    """It was read from the store together with one that a reader needed."""

    WRITE = "write"
    """It is being uploaded."""


class Hint(msgspec.Struct, frozen=True):
    """What is known of an offered block."""

    appended_ms: TimestampMs
    """Time of its newest record. It orders the data of a partition; how long a copy stays is counted from its fill."""

    source: Source = Source.DEMAND


class TierOptions(msgspec.Struct, frozen=True):
    """What a provider is made with: the share of one shard."""

    shard: int
    size_bytes: int
    """This shard's part of ``cache.max.size.bytes``: a hard limit."""

    block_bytes_max: int
    """Largest block that will be offered: a MiB, and the largest batch that clients may send."""

    age_max_ms: int
    """Time that a copy may stay."""

    directory: str
    """``cache.path``, or the directory that stands for it."""

    policy: str
    io: str
    """``auto``, ``direct`` or ``buffered``."""

    free_share_min: float
    """Share of the disk's space that stays free."""


class TierStats(msgspec.Struct):
    """What is in a provider now, and what left it since it was made."""

    blocks: int = 0
    size_bytes: int = 0
    evicted: dict[str, int] = {}
    """By reason: ``capacity``, ``age``, ``low_disk`` or ``invalid``."""
    refused: dict[str, int] = {}
    """Blocks that were offered and not taken, by reason: ``too_large`` for the whole cache, ``worth_less`` than what
    is there, or ``low_disk``.
    """


class HotTierProvider(Protocol):
    """A cache of blocks. Several threads call `get` at once, and at the same time one of them anything else.

    A block does not change: under one topic id, partition and base offset there are the same bytes until `invalidate`
    names them.
    """

    def get(self, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        """The block that starts at the offset, None if it is not here.

        The view is a lease: its memory must not be used for anything else as long as the view, or a part of it, exists.
        Raises Corruption if the provider itself notices that the block is damaged.
        """
        ...

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, hint: Hint) -> bool:
        """Offer a block, which the provider may refuse; whether it has it now. It copies what it keeps."""
        ...

    def reader_at(self, owner: ArchiveId, reader: ReaderId, next_offset: Offset, place_ms: TimestampMs) -> None:
        """A reader continues at this offset, where the data have this time. A provider may ignore it."""
        ...

    def invalidate(self, owner: ArchiveId | None, start: Offset, end: Offset) -> None:
        """Forget the blocks that start at offsets from ``start`` to before ``end``; of every partition without
        ``owner``.
        """
        ...

    def sweep(self) -> None:
        """Evict what is too old, or too much for the disk. Called every ``evict.interval.ms``."""
        ...

    def stats(self) -> TierStats:
        """How full it is."""
        ...

    def close(self) -> None:
        """Give everything up. Nothing is called afterwards."""
        ...


def find_provider(name: str) -> Factory:
    """What makes the provider of that name. Raises Rejected if no package has one, or it cannot be loaded."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for one in found:
        if one.name == name:
            try:
                return one.load()
            except Exception as error:
                raise Rejected(f"cache.type={name}: {one.value} cannot be loaded: {error}") from error
    known = ", ".join(["none", "memory", "nvme", *sorted({one.name for one in found})])
    raise Rejected(f"cache.type={name}: no installed package has a warm cache of that name; there are {known}")
