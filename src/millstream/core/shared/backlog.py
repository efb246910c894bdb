"""What a broker has acknowledged and not uploaded: it bounds memory, and says what goes into the next object.

::

    append ──► open ranges ──take──► packed ranges ──committed──► gone
                                        └──returned──► open again

Everything in a backlog must stay in the log cache, because no object has it. `admits` is therefore what producers wait
for: while it is False nothing more is taken. An upload is due when `upload_bytes` have gathered, when the oldest range
is `upload_age_ms` old, or when the backlog is nearly full. A partition with `alone_bytes` gets an object of its own, so
that its readers do not read others; all smaller ones share an object. Ages are on a monotonic clock: a wall clock that
is set back would stop uploads for as long.

A crash loses a backlog. It is made again from the write-ahead log and the committed end of each archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Rejected
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from millstream.model.shared import SharedPartition

_NEARLY_FULL: Final = 0.8
"""Part of the limit from which on an upload is due at once."""


class BacklogLimits(msgspec.Struct, frozen=True):
    """When to upload, and when to wait."""

    bytes_max: int = 256 << 20
    upload_bytes: int = 64 << 20
    upload_age_ms: int = 60_000
    alone_bytes: int = 8 << 20


class Open(msgspec.Struct):
    """The range of one partition that is in no pack."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    since_ms: int
    """On the monotonic clock."""


class Part(msgspec.Struct, frozen=True):
    """The range of one partition in a pack."""

    partition: SharedPartition
    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    since_ms: int
    """On the monotonic clock."""


class Pack(msgspec.Struct, frozen=True):
    """What one object will have."""

    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(one.size_bytes for one in self.parts)

    @property
    def since_ms(self) -> int:
        """When its oldest range came, on the monotonic clock."""
        return min(one.since_ms for one in self.parts)


class Backlog:
    """The backlog of one shard. Ranges of a partition are contiguous: packed ones, then the open one."""

    def __init__(self, limits: BacklogLimits) -> None:
        self.limits = limits
        self.open_bytes = 0
        """Bytes in no pack."""
        self.packed_bytes = 0
        """Bytes in packs that are not committed."""
        self._open: dict[SharedPartition, Open] = {}
        self._packed: list[Pack] = []
        """The packs that are not committed, in the order in which they were taken."""
        self._ends: dict[SharedPartition, Offset] = {}

    @property
    def size_bytes(self) -> int:
        """Everything that no object has."""
        return self.open_bytes + self.packed_bytes

    @property
    def since_ms(self) -> int | None:
        """When the oldest range came that is in no pack, on the monotonic clock; None without one."""
        return min((one.since_ms for one in self._open.values()), default=None)

    def age_ms(self, now_ms: int) -> int:
        """Age of the oldest range that no object has; 0 without one. ``now_ms`` is the monotonic clock."""
        oldest = min((pack.since_ms for pack in self._packed), default=self.since_ms)
        return 0 if oldest is None else max(0, now_ms - oldest)

    def admits(self, size_bytes: int) -> bool:
        """Whether a batch of this size fits. An empty backlog admits a batch of any size."""
        return not self.size_bytes or self.size_bytes + size_bytes <= self.limits.bytes_max

    def append(
        self,
        partition: SharedPartition,
        base_offset: Offset,
        end_offset: Offset,
        size_bytes: int,
        now_ms: int,
    ) -> None:
        """A batch is durable in the write-ahead log; ``now_ms`` is the monotonic clock.

        Raises:
            Rejected: it does not follow the one before.
        """
        before = self._ends.get(partition, base_offset)
        if base_offset != before or end_offset <= base_offset or size_bytes <= 0:
            raise Rejected(f"the batch {base_offset}–{end_offset} does not follow a backlog that ends at {before}")
        self._ends[partition] = end_offset
        self.open_bytes += size_bytes
        found = self._open.get(partition)
        if found is None:
            self._open[partition] = Open(base_offset, end_offset, size_bytes, now_ms)
        else:
            found.end_offset = end_offset
            found.size_bytes += size_bytes

    def is_due(self, now_ms: int) -> bool:
        """Whether to upload now; ``now_ms`` is the monotonic clock."""
        oldest = self.since_ms
        if oldest is None:
            return False
        return (
            self.open_bytes >= self.limits.upload_bytes
            or now_ms - oldest >= self.limits.upload_age_ms
            or self.size_bytes >= _NEARLY_FULL * self.limits.bytes_max
        )

    def take(self) -> list[Pack]:
        """Everything that is open, in packs: large partitions alone, then all the others together."""
        parts = [
            Part(partition, one.base_offset, one.end_offset, one.size_bytes, one.since_ms)
            for partition, one in sorted(self._open.items())
        ]
        self._open.clear()
        self.packed_bytes += self.open_bytes
        self.open_bytes = 0
        large = [one for one in parts if one.size_bytes >= self.limits.alone_bytes]
        small = tuple(one for one in parts if one.size_bytes < self.limits.alone_bytes)
        packs = [Pack((one,)) for one in large] + ([Pack(small)] if small else [])
        self._packed += packs
        return packs

    def committed(self, pack: Pack) -> None:
        """An object has the pack; the log cache may forget it."""
        self.packed_bytes -= pack.size_bytes
        self._packed.remove(pack)
        assert self.packed_bytes >= 0, "a pack is committed once"

    def leave(self, partition: SharedPartition) -> None:
        """The partition is led elsewhere: its open range is no more this broker's. Its packs end with their uploads."""
        found = self._open.pop(partition, None)
        self._ends.pop(partition, None)
        self.open_bytes -= 0 if found is None else found.size_bytes
