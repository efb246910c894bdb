"""When each reader reaches a block: the prediction under the policy ``interval``. Pure.

A reader's place is an offset and the append time of the data there. A reader that keeps up with the producers stays
behind by a constant lag, so it reaches data appended at ``t`` at ``t + lag``. One that catches up is faster: its speed
is append time passed per time passed, averaged. Both are one formula::

    arrival = seen + late + (t − place) / speed

**Late readers.** A reader that should have come to its next block two seconds ago has stopped, or has become slower. It
is then expected as much later as it is late already, and again when that time has passed (``late``). Otherwise the
blocks before a consumer that died would be the ones that are needed soonest, for as long as it is remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.core.eviction.blocks import Block, PartitionKey, ReaderId
    from millstream.model.quantities import Offset, TimestampMs

IDLE_MAX_MS: Final = 60_000
"""A reader that was not seen for so long is forgotten."""

_WINDOW_MS: Final = 1_000
_SMOOTHING: Final = 0.5
_SPEED_MIN: Final = 0.1
_SPEED_MAX: Final = 1000.0
_LATE_MS: Final = 2_000
"""Less than this is the jitter of a reader that fetches once a second."""

_CHANGED: Final = 0.25
"""A change of speed by less than this share moves no block in the order."""


class Reader:
    """One reader in one partition."""

    __slots__ = (
        "idle_max_ms",
        "late_ms",
        "next_offset",
        "place_ms",
        "seen_ms",
        "speed",
        "used_speed",
        "window_ms",
        "window_place_ms",
    )

    def __init__(self, next_offset: Offset, place_ms: TimestampMs, now_ms: TimestampMs, idle_max_ms: int) -> None:
        self.next_offset = next_offset
        self.place_ms = place_ms
        self.seen_ms = now_ms
        self.idle_max_ms = idle_max_ms
        self.late_ms = 0.0  # 0 after each move
        self.speed = 1.0
        self.used_speed = 1.0  # the speed that the present ranks were made with
        self.window_ms = now_ms
        self.window_place_ms = place_ms

    def moved(self, next_offset: Offset, place_ms: TimestampMs, now_ms: TimestampMs) -> bool:
        """Note a place further on. Returns whether the speed changed enough for a new prediction."""
        self.next_offset = next_offset
        self.place_ms = place_ms
        self.seen_ms = now_ms
        was_late, self.late_ms = self.late_ms > 0, 0.0
        elapsed_ms = now_ms - self.window_ms
        if elapsed_ms >= _WINDOW_MS:
            speed = min(_SPEED_MAX, max(_SPEED_MIN, (place_ms - self.window_place_ms) / elapsed_ms))
            self.speed += _SMOOTHING * (speed - self.speed)
            self.window_ms = now_ms
            self.window_place_ms = place_ms
        if abs(self.speed - self.used_speed) <= _CHANGED * self.used_speed:
            return was_late
        self.used_speed = self.speed
        return True

    def arrival_ms(self, block: Block) -> float | None:
        """When it reaches the block; None if it has passed it."""
        if self.next_offset > block.key.base_offset:
            return None
        return self.seen_ms + self.late_ms + (block.appended_ms - self.place_ms) / self.used_speed

    def put_off(self, block: Block, now_ms: TimestampMs) -> bool:
        """Expect it later, if it should have come to the block already. Returns whether that changes predictions."""
        arrival = self.arrival_ms(block)
        if arrival is None or now_ms - arrival < _LATE_MS:
            return False
        self.late_ms += 2 * (now_ms - arrival)
        return True


class Readers:
    """The readers of all partitions. A partition without readers takes no memory."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, dict[ReaderId, Reader]] = {}

    def find(self, partition: PartitionKey, reader: ReaderId) -> Reader | None:
        return self._partitions.get(partition, {}).get(reader)

    def add(self, partition: PartitionKey, reader: ReaderId, place: Reader) -> None:
        self._partitions.setdefault(partition, {})[reader] = place

    def remove(self, partition: PartitionKey, reader: ReaderId) -> bool:
        """Forget a reader. Returns whether it was known."""
        readers = self._partitions.get(partition, {})
        known = readers.pop(reader, None) is not None
        if known and not readers:
            del self._partitions[partition]
        return known

    def next_arrival_ms(self, block: Block) -> float | None:
        """When the first of the readers reaches the block; None if none will."""
        first: float | None = None
        for reader in self._partitions.get(block.key.partition, {}).values():
            arrival = reader.arrival_ms(block)
            if arrival is not None and (first is None or arrival < first):
                first = arrival
        return first

    def all(self) -> Iterator[tuple[PartitionKey, Reader]]:
        """Every reader with its partition."""
        for partition, readers in self._partitions.items():
            for reader in readers.values():
                yield partition, reader

    def idle(self, now_ms: TimestampMs) -> Iterator[tuple[PartitionKey, ReaderId]]:
        """The readers that were not seen for too long."""
        for partition, readers in self._partitions.items():
            for name, reader in readers.items():
                if now_ms - reader.seen_ms > reader.idle_max_ms:
                    yield partition, name
