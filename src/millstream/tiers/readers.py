"""Who reads what of the archive: readers, each known by where it continues, and the sizing rule of the warm cache.

A read does not name its consumer group. A read that starts where another one ended is the same reader; any other
one is new. A reader that was not seen for a minute is forgotten.

**Sizing.** A cache serves the next group if it holds what lies between that group and the one before it. So the bytes
between the first and the second reader of each partition, over all partitions, are what the second group needs; the
bytes up to the third reader what the third needs; and so on. Less serves no reader under any policy.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.eviction import ReaderId
from millstream.tiers.messages import Gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchiveId
    from millstream.model.quantities import Offset

_READERS_MAX: Final = 1024
_IDLE_S: Final = 60.0


class _Reader(NamedTuple):
    name: ReaderId
    seen_s: float
    bytes_per_offset: float


class Readers:
    """The readers of one shard's archived partitions. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._names = itertools.count(1)
        self._readers: OrderedDict[tuple[ArchiveId, Offset], list[_Reader]] = OrderedDict()
        """By the offset at which each continues, the longest unseen first. Several may continue at one offset."""

    def moved(self, owner: ArchiveId, before: Offset, now: Offset, bytes_per_offset: float) -> ReaderId:
        """A reader that asked for ``before`` continues at ``now``; which one it is."""
        with self._lock:
            known = self._readers.get((owner, before))
            name = known.pop(0).name if known else ReaderId(next(self._names))
            if known is not None and not known:
                del self._readers[owner, before]
            self._readers.setdefault((owner, now), []).append(_Reader(name, self._clock(), bytes_per_offset))
            self._readers.move_to_end((owner, now))
            while len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
            return name

    def gaps(self) -> list[Gap]:
        """What lies between readers, for each partition with several of them."""
        found: dict[ArchiveId, list[tuple[Offset, float]]] = {}
        with self._lock:
            oldest_s = self._clock() - _IDLE_S
            for (owner, offset), readers in self._readers.items():
                here = [one for one in readers if one.seen_s >= oldest_s]
                found.setdefault(owner, []).extend((offset, one.bytes_per_offset) for one in here)
        gaps: list[Gap] = []
        for owner, places in found.items():
            places.sort(reverse=True)
            between = tuple(int((ahead[0] - behind[0]) * behind[1]) for ahead, behind in itertools.pairwise(places))
            if between:
                gaps.append(Gap(owner.topic_id.hex, owner.partition_index, between))
        return gaps


def needed_bytes(gaps: list[Gap]) -> list[int]:
    """Bytes that the cache needs so that the second group is served from it, the third, and so on."""
    found: list[int] = []
    for gap in gaps:
        for number, so_far in enumerate(itertools.accumulate(gap.bytes_between)):
            if number == len(found):
                found.append(0)
            found[number] += so_far
    return found
