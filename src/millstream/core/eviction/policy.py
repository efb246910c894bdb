"""The three policies. A cache has one policy and reports every block, use and reader to it, in the order of time.

Invariant: a policy knows exactly the blocks that it admitted and that neither left as a victim, expired, nor were
removed; never more than take ``slots_max`` slots together.

A block is too old when its copy has been in the cache for so long, however old its data are: a reader of last week's
records finds them again as one of the last minute's does. ``now_ms`` may be any clock that does not go back; times of
data are compared with each other only.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.eviction.blocks import Block, BlockKey, PartitionKey, ReaderId
from millstream.core.eviction.ranking import Rank, Ranking
from millstream.core.eviction.readers import IDLE_MAX_MS, Reader, Readers
from millstream.errors import Rejected
from millstream.model.quantities import Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


class Admission(msgspec.Struct, frozen=True):
    """The answer to a new block. ``victims`` left the policy; the caller frees their slots."""

    admitted: bool
    victims: tuple[BlockKey, ...] = ()
    too_large: bool = False
    """It is refused because the whole cache has not as many slots."""


REFUSED: Final = Admission(admitted=False)
TOO_LARGE: Final = Admission(admitted=False, too_large=True)


class Policy:
    """What a cache asks, and what the policies share: the bound on slots, the bound on age, and the order.

    ``busy`` are blocks with a reader in the middle of them, which must not leave.
    """

    def __init__(self, slots_max: int, age_max_ms: int) -> None:
        self._slots_max = slots_max
        self._age_max_ms = age_max_ms
        self._ranking = Ranking()
        self._ages = Ranking()
        self._slots_used = 0
        self._slots: dict[BlockKey, int] = {}
        """Slots of the blocks that take more than one."""

    def __len__(self) -> int:
        return len(self._ranking)

    def offer(self, block: Block, now_ms: TimestampMs, busy: Container[BlockKey] = ()) -> Admission:
        """Decide on a block that was read from below. One that is known already is admitted without a victim."""
        if block.slots > self._slots_max:
            return TOO_LARGE
        if block.key in self._ranking:
            return Admission(admitted=True)
        rank = self._rank(block, now_ms)
        victims = self._victims(block.slots, rank, busy)
        if victims is None:
            return REFUSED
        for victim in victims:
            self.remove(victim)
        self._ranking.rank(block.key, rank)
        self._ages.rank(block.key, Rank(1, now_ms))
        self._slots_used += block.slots
        if block.slots > 1:
            self._slots[block.key] = block.slots
        self._added(block)
        return Admission(admitted=True, victims=tuple(victims))

    def _victims(self, slots: int, rank: Rank, busy: Container[BlockKey]) -> list[BlockKey] | None:
        """The blocks that leave for one of this rank; None if one of them is worth more."""
        victims: list[BlockKey] = []
        free = self._slots_max - self._slots_used
        while free < slots:
            lowest = self._ranking.lowest(busy, victims)
            if lowest is None or rank <= lowest[0]:
                return None
            victims.append(lowest[1])
            free += self._slots.get(lowest[1], 1)
        return victims

    def remove(self, key: BlockKey) -> None:
        """The block left the cache for another reason."""
        if key in self._ranking:
            self._slots_used -= self._slots.pop(key, 1)
        self._ranking.remove(key)
        self._ages.remove(key)

    def expire(self, now_ms: TimestampMs) -> list[BlockKey]:
        """Forget readers that are idle, and remove blocks that are too old, which are returned."""
        expired: list[BlockKey] = []
        while (oldest := self._ages.lowest()) is not None and now_ms - oldest[0].value > self._age_max_ms:
            expired.append(oldest[1])
            self.remove(oldest[1])
        return expired

    def first_to_leave(self) -> BlockKey | None:
        """The block that would leave for another one; None without a candidate."""
        lowest = self._ranking.lowest()
        return None if lowest is None else lowest[1]

    def used(self, key: BlockKey) -> None:
        """The block was read from the cache. Without meaning for most policies."""

    def reader_at(
        self,
        partition: PartitionKey,
        reader: ReaderId,
        next_offset: Offset,
        place_ms: TimestampMs,
        now_ms: TimestampMs,
        idle_max_ms: int = IDLE_MAX_MS,
    ) -> None:
        """A reader wants ``next_offset`` next, where the data have the append time ``place_ms``. Without meaning for
        most policies.
        """

    def reader_gone(self, partition: PartitionKey, reader: ReaderId) -> None:
        """The reader has ended. Without meaning for most policies."""

    def _rank(self, block: Block, now_ms: TimestampMs) -> Rank:
        """Where the block stands in the order: the lowest leaves first."""
        raise NotImplementedError

    def _added(self, block: Block) -> None:
        """After a block was admitted."""


class AgePolicy(Policy):
    """Oldest data first."""

    def _rank(self, block: Block, now_ms: TimestampMs) -> Rank:
        _ = now_ms
        return Rank(1, block.appended_ms)


class LruPolicy(Policy):
    """Longest unused first."""

    def __init__(self, slots_max: int, age_max_ms: int) -> None:
        super().__init__(slots_max, age_max_ms)
        self._uses = itertools.count()

    def used(self, key: BlockKey) -> None:
        if key in self._ranking:
            self._ranking.rank(key, Rank(1, next(self._uses)))

    def _rank(self, block: Block, now_ms: TimestampMs) -> Rank:
        _ = block, now_ms
        return Rank(1, next(self._uses))


class IntervalPolicy(Policy):
    """Blocks that no known reader will reach leave first, oldest data first; then the one reached last.

    A move of a reader ranks again the blocks that it passed. A seek, a new speed and the end of a reader rank all
    blocks of its partition again.
    """

    def __init__(self, slots_max: int, age_max_ms: int) -> None:
        super().__init__(slots_max, age_max_ms)
        self._readers = Readers()
        self._blocks: dict[BlockKey, Block] = {}
        self._offsets: dict[PartitionKey, list[Offset]] = {}  # sorted; no empty list

    def reader_at(
        self,
        partition: PartitionKey,
        reader: ReaderId,
        next_offset: Offset,
        place_ms: TimestampMs,
        now_ms: TimestampMs,
        idle_max_ms: int = IDLE_MAX_MS,
    ) -> None:
        known = self._readers.find(partition, reader)
        if known is None or next_offset < known.next_offset or place_ms < known.place_ms:
            self._readers.add(partition, reader, Reader(next_offset, place_ms, now_ms, idle_max_ms))
            self._rank_anew(self._offsets.get(partition, ()), partition)
            return
        offsets = self._offsets.get(partition, [])
        passed = offsets[bisect_left(offsets, known.next_offset) : bisect_left(offsets, next_offset)]
        known.idle_max_ms = idle_max_ms
        changed = known.moved(next_offset, place_ms, now_ms)
        self._rank_anew(offsets if changed else passed, partition)

    def reader_gone(self, partition: PartitionKey, reader: ReaderId) -> None:
        if self._readers.remove(partition, reader):
            self._rank_anew(self._offsets.get(partition, ()), partition)

    def expire(self, now_ms: TimestampMs) -> list[BlockKey]:
        for partition, reader in list(self._readers.idle(now_ms)):
            self.reader_gone(partition, reader)
        late: set[PartitionKey] = set()
        for partition, reader in self._readers.all():
            offsets = self._offsets.get(partition, ())
            at = bisect_left(offsets, reader.next_offset)
            if at < len(offsets) and reader.put_off(self._blocks[BlockKey(partition, offsets[at])], now_ms):
                late.add(partition)
        for partition in late:
            self._rank_anew(self._offsets[partition], partition)
        return super().expire(now_ms)

    def remove(self, key: BlockKey) -> None:
        if self._blocks.pop(key, None) is not None:
            offsets = self._offsets[key.partition]
            del offsets[bisect_left(offsets, key.base_offset)]
            if not offsets:
                del self._offsets[key.partition]
        super().remove(key)

    def _added(self, block: Block) -> None:
        self._blocks[block.key] = block
        insort(self._offsets.setdefault(block.key.partition, []), block.key.base_offset)

    def _rank(self, block: Block, now_ms: TimestampMs | None = None) -> Rank:
        _ = now_ms
        arrival = self._readers.next_arrival_ms(block)
        return Rank(0, block.appended_ms) if arrival is None else Rank(1, -arrival)

    def _rank_anew(self, offsets: Iterable[Offset], partition: PartitionKey) -> None:
        for offset in offsets:
            key = BlockKey(partition, offset)
            self._ranking.rank(key, self._rank(self._blocks[key]))


POLICIES: Final = {"interval": IntervalPolicy, "age": AgePolicy, "lru": LruPolicy}


def make_policy(name: str, slots_max: int, age_max_ms: int) -> Policy:
    """A policy by its name. Raises Rejected for an unknown one."""
    if name not in POLICIES:
        raise Rejected(f"there is no eviction policy {name!r}; expected one of {', '.join(POLICIES)}")
    return POLICIES[name](slots_max, age_max_ms)
