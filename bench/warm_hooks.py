"""What the warm-fanout bench changes in a broker (``internal.shard.hook``), in its archive process.

``install`` puts the slow store below it, and notes how long each hit of the warm cache took, in the file that
``MILLSTREAM_HITS`` names: one line a hit, seconds since the epoch and microseconds.

``unread_only`` has a policy in place of the blocks in memory: a block stays until a reader has passed its end, and 60 s
at most. It models what AutoMQ's block cache keeps, as its sources and its maintainers describe it (issue 2662 there):
data that nobody has read yet. It is a model of the policy and not AutoMQ.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from bench import slow_store
from millstream.format.segment import parse_batch
from millstream.tiers.hot_tier import HotTier
from millstream.tiers.kept import Kept
from millstream.tiers.reading import MEMORY_BYTES_MAX, ArchiveReader, BlockKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchiveId
    from millstream.model.quantities import Offset

CACHE_BYTES: Final = 112 << 20
"""What the caches of most arms may take."""

UNREAD_S: Final = 60.0


def install(node: object) -> None:
    """Have a slow store, and note the hits."""
    slow_store.install(node)
    path, ask = os.environ["MILLSTREAM_HITS"], HotTier.get
    files: list[Any] = []  # opened by the process that writes it

    def asked(self: HotTier, owner: ArchiveId, base_offset: Offset, checksum: int) -> memoryview | None:
        begun = time.perf_counter()
        block = ask(self, owner, base_offset, checksum)
        if block is not None:
            took_us = 1e6 * (time.perf_counter() - begun)
            if not files:
                files.append(open(path, "a", buffering=1, encoding="ascii"))  # noqa: SIM115 - it ends with the process
            files[0].write(f"{time.time():.3f} {took_us:.0f}\n")
        return block

    HotTier.get = asked


def unread_only(node: object) -> None:
    """As `install`, and keep only what is unread, in as many bytes as memory and cache of the other arms have."""
    install(node)
    make: Any = ArchiveReader.__init__

    def made(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        blocks = self._blocks = UnreadOnly(MEMORY_BYTES_MAX + CACHE_BYTES)
        moved = self.readers.moved

        def passed(owner: ArchiveId, before: Offset, now: Offset, bytes_per_offset: float) -> Any:
            blocks.passed(owner, before, now)
            return moved(owner, before, now, bytes_per_offset)

        self.readers.moved = passed

    ArchiveReader.__init__ = made


class UnreadOnly(Kept[BlockKey, memoryview]):
    """Blocks that no reader has passed, none longer than `UNREAD_S`."""

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(bytes_max, len)
        self._clock = clock
        self._known: dict[BlockKey, tuple[int, float]] = {}
        """Where each block ends, and since when it is here; also of some that left."""

    def get(self, key: BlockKey) -> memoryview | None:
        self._expire()
        return super().get(key)

    def put(self, key: BlockKey, value: memoryview) -> None:
        end = at = 0
        while at < len(value):
            batch = parse_batch(value, at, at, len(value))
            end, at = batch.last_offset + 1, at + batch.size
        self._known.pop(key, None)
        self._known[key] = end, self._clock()
        super().put(key, value)

    def passed(self, owner: ArchiveId, before: Offset, now: Offset) -> None:
        """A reader went on from one offset to another: the blocks that end between them are read."""
        for key, (end, _) in list(self._known.items()):
            if key.owner == owner and before < end <= now:
                self._forget(key)

    def _expire(self) -> None:
        oldest_s = self._clock() - UNREAD_S
        for key, (_, since_s) in list(self._known.items()):
            if since_s > oldest_s:
                return  # they are in the order of their coming
            self._forget(key)

    def _forget(self, key: BlockKey) -> None:
        self._known.pop(key, None)
        self.drop(key)
