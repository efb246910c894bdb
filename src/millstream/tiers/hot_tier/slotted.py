"""The broker's own warm cache: a policy says which block is in which slot.

A block is written without a lock, so that no reader waits for the disk; it is found when it is whole. Each use of a
slot has a number of its own, by which a reader sees that its slot was reused for another block.

**Low disk.** When less of the disk is free than ``free_share_min``, the cache shrinks to 80 % of its limit, gives the
space back, and takes nothing more until there is half as much again free.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.eviction import Block, BlockKey, PartitionKey, ReaderId, make_policy
from millstream.errors import Corruption
from millstream.model.quantities import Offset, TimestampMs
from millstream.tiers.hot_tier.provider import EVERY_OFFSET, Hint, TierStats
from millstream.tiers.hot_tier.slots import PIECE_BYTES, slots_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.eviction import Policy
    from millstream.format.manifest import ArchiveId
    from millstream.tiers.hot_tier.slots import Slots

_FIRST: Final = Offset(0)
_SPACE_CHECK_S: Final = 5.0
_LOW_DISK_SHARE: Final = 0.8
_ENOUGH: Final = 1.5
"""Fills start again when so many times the least share is free."""


class _Place(NamedTuple):
    slots: tuple[int, ...]
    """With a piece of the block each, in order."""
    size_bytes: int
    use: int


class _Space:
    """Which slots are free, and whether the disk has room for them. The caller holds the lock."""

    def __init__(self, slots: Slots, slots_max: int, free_share_min: float, clock: Callable[[], float]) -> None:
        self._slots = slots
        self.slots_max = slots_max
        self._free_share_min = free_share_min
        self._clock = clock
        self._checked_s = clock() - _SPACE_CHECK_S
        self._is_low = False
        self._free = deque[int]()
        self._unused = 0
        """Slots from this one on were never used."""

    @property
    def used(self) -> int:
        """Slots that have a piece of a block."""
        return self._unused - len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Slots for a block."""
        return tuple(self._next() for _ in range(count))

    def _next(self) -> int:
        if self._free:
            return self._free.popleft()
        assert self._unused < self.slots_max, "the policy admits no more blocks than there are slots for"
        self._unused += 1
        return self._unused - 1

    def give_back(self, slots: tuple[int, ...]) -> None:
        """These are free."""
        self._free.extend(slots)

    def release(self) -> None:
        """Give the space of all free slots back to the disk."""
        for slot in self._free:
            self._slots.free(slot)

    def look(self) -> tuple[bool, bool]:
        """Whether the disk is low, and whether that was found just now. Looks every five seconds. Raises OSError."""
        now_s = self._clock()
        if now_s - self._checked_s < _SPACE_CHECK_S:
            return self._is_low, False
        self._checked_s = now_s
        free_share = self._slots.free_share()
        found = free_share < self._free_share_min
        if found:
            self._is_low = True
        elif free_share >= min(1.0, _ENOUGH * self._free_share_min):
            self._is_low = False
        return self._is_low, found


class _Counts:
    """What left, and what was refused, by reason; and how much is here."""

    __slots__ = ("bytes", "evicted", "refused")

    def __init__(self) -> None:
        self.bytes = 0
        self.evicted: dict[str, int] = dict.fromkeys(("capacity", "age", "low_disk", "invalid"), 0)
        self.refused: dict[str, int] = dict.fromkeys(("too_large", "worth_less", "low_disk"), 0)


class SlottedTier:
    """Blocks in slots: a `HotTierProvider`.

    Invariants: the policy knows exactly the blocks in ``_places`` and the one that is being written; each of them has
    slots of its own; every other slot is free.
    """

    def __init__(
        self,
        slots: Slots,
        policy: str,
        slots_max: int,
        age_max_ms: int,
        free_share_min: float = 0.1,
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``now_ms`` is the clock for the age of copies and for readers; it never goes back."""
        self._slots = slots
        self._policy: Policy = make_policy(policy, slots_max, age_max_ms)
        self._now_ms = now_ms
        self._writing = threading.Lock()
        self._lock = threading.Lock()  # of everything below
        self._places: dict[BlockKey, _Place] = {}
        self._written: BlockKey | None = None
        self._lost = False  # the block that is being written was given up
        self._space = _Space(slots, slots_max, free_share_min, clock)
        self._uses = itertools.count()
        self._partitions: dict[ArchiveId, PartitionKey] = {}
        self._counts = _Counts()

    def get(self, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        with self._lock:
            key = BlockKey(self._partition(owner), base_offset)
            place = self._places.get(key)
        if place is None:
            return None
        try:
            pieces = [
                self._slots.read(slot, owner, base_offset, min(PIECE_BYTES, place.size_bytes - number * PIECE_BYTES))
                for number, slot in enumerate(place.slots)
            ]
        except Corruption:
            with self._lock:
                if self._places.get(key) != place:
                    return None  # it left, and its slot was reused
            raise
        with self._lock:
            if self._places.get(key) != place:
                return None
            self._policy.used(key)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, hint: Hint) -> bool:
        with self._writing:
            with self._lock:
                slots = self._admit(owner, base_offset, hint.appended_ms, slots_of(len(block)))
                if not slots:
                    return BlockKey(self._partition(owner), base_offset) in self._places
                key = self._written = BlockKey(self._partition(owner), base_offset)
            written = False
            try:
                for number, slot in enumerate(slots):
                    piece = block[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                    self._slots.write(slot, owner, base_offset, piece)
                written = True
            finally:
                with self._lock:
                    self._written = None
                    if written and not self._lost:
                        self._places[key] = _Place(slots, len(block), next(self._uses))
                        self._counts.bytes += len(block)
                    else:
                        self._policy.remove(key)
                        self._space.give_back(slots)
                    self._lost = False
            return key in self._places

    def _admit(self, owner: ArchiveId, base_offset: Offset, appended_ms: TimestampMs, count: int) -> tuple[int, ...]:
        """Slots for the block; none if it is here, or is refused."""
        now_ms = TimestampMs(self._now_ms())
        key = BlockKey(self._partition(owner), base_offset)
        self._expire(now_ms)
        if key in self._places:
            return ()
        if not self._has_space():
            self._counts.refused["low_disk"] += 1
            return ()
        admission = self._policy.offer(Block(key, appended_ms, count), now_ms)
        for victim in admission.victims:
            self._give_back(victim, "capacity")
        if not admission.admitted:
            self._counts.refused["too_large" if admission.too_large else "worth_less"] += 1
            return ()
        return self._space.take(count)

    def reader_at(self, owner: ArchiveId, reader: ReaderId, next_offset: Offset, place_ms: TimestampMs) -> None:
        with self._lock:
            now_ms = TimestampMs(self._now_ms())
            self._policy.reader_at(self._partition(owner), reader, next_offset, place_ms, now_ms)

    def invalidate(self, owner: ArchiveId | None, start: Offset = _FIRST, end: Offset = EVERY_OFFSET) -> None:
        with self._lock:
            partition = None if owner is None else self._partition(owner)
            for key in [*self._places, *([self._written] if self._written is not None else [])]:
                if (partition is None or key.partition == partition) and start <= key.base_offset < end:
                    self._policy.remove(key)
                    self._give_back(key, "invalid")

    def sweep(self) -> None:
        with self._lock:
            self._expire(TimestampMs(self._now_ms()))
            self._has_space()

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(
                len(self._places), self._counts.bytes, dict(self._counts.evicted), dict(self._counts.refused)
            )

    def close(self) -> None:
        self._slots.close()

    # -- the caller holds the lock -------------------------------------------------------------------------------------

    def _partition(self, owner: ArchiveId) -> PartitionKey:
        key = self._partitions.get(owner)
        if key is None:
            key = self._partitions[owner] = PartitionKey(len(self._partitions))
        return key

    def _expire(self, now_ms: TimestampMs) -> None:
        for expired in self._policy.expire(now_ms):
            self._give_back(expired, "age")

    def _has_space(self) -> bool:
        """Whether the disk has room; shrinks the cache if it has not. Raises OSError."""
        is_low, found = self._space.look()
        if found:
            self._shrink(int(_LOW_DISK_SHARE * self._space.slots_max))
        return not is_low

    def _shrink(self, slots: int) -> None:
        while self._space.used > slots and (victim := self._policy.first_to_leave()) is not None:
            self._policy.remove(victim)
            self._give_back(victim, "low_disk")
        self._space.release()

    def _give_back(self, key: BlockKey, reason: str) -> None:
        """The policy has forgotten the block."""
        self._counts.evicted[reason] += 1
        if key == self._written:
            self._lost = True
            return
        place = self._places.pop(key)
        self._space.give_back(place.slots)
        self._counts.bytes -= place.size_bytes
