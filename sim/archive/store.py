"""The bucket of a simulated cluster: it fails as object stores do, and notices what no broker may do to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.errors import MillstreamError, OutcomeUnknown, Unavailable
from millstream.format.archive import segment_key
from millstream.format.manifest import parse_part_name
from millstream.format.shared_object import object_key, segment_index
from millstream.model.quantities import FilePosition
from millstream.model.shared import NO_OBJECT, SharedPartition
from millstream.objects import ObjectKey
from millstream.objects.errors import Conflict
from millstream.tiers.shared_objects import read_block, read_index
from sim.engine.objects import FaultyStore, MemoryStore
from sim.engine.violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from millstream.format.manifest import ArchivedSegment, ArchiveId
    from millstream.objects import Version
    from millstream.objects.store import Buffer
    from sim.engine.objects import Faults


class Truth:
    """What all replicas together have committed of one partition's archive, and how far they have deleted it."""

    def __init__(self) -> None:
        self.segments: dict[int, ArchivedSegment] = {}
        """Those of the newest version of the manifest, by base offset."""
        self.known: dict[str, ArchivedSegment] = {}
        """Those of every version, by the keys of their objects."""
        self.version = 0
        """The newest version of a manifest that any replica has had."""
        self.parts: set[str] = set()
        """Names of part objects of the newest version."""
        self.end = 0
        """The highest end of an archive that any replica has had."""
        self.start = 0
        """The highest log start that any replica has."""
        self.deleted = False
        """The topic is deleted: nothing of it is needed."""
        self.seen: dict[str, int] = {}

    def note(self, what: str) -> None:
        """Count something that happened."""
        self.seen[what] = self.seen.get(what, 0) + 1

    def needs(self, segment: ArchivedSegment) -> bool:
        """Whether the newest manifest has it, and the log does."""
        return self.segments.get(segment.base_offset) == segment and segment.end_offset > self.start


class JudgedStore(MemoryStore):
    """Objects in memory, in which nothing that is needed is removed or replaced (F4, F5)."""

    def __init__(self, truths: Sequence[Truth], now_ms: Callable[[], int]) -> None:
        """``truths`` has one for each partition."""
        super().__init__(now_ms)
        self._truths = truths
        self.on_change: Callable[[Sequence[ObjectKey]], None] = _ignore
        """Called when objects were written or removed."""
        self.on_delete: Callable[[ObjectKey], None] = _ignore
        """Called before an object is removed."""

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        before = self.objects.get(key)
        version = super().put(key, parts, expect)
        if before is not None and before[0] != self.objects[key][0]:
            if any(key in truth.known for truth in self._truths):
                raise Violation(f"F5: the committed object {key} is replaced by other bytes")
            self.on_change([key])
        return version

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            for truth in self._truths:
                self._check(truth, key)
            self.on_delete(key)
        super().delete(keys)
        if keys:
            self.on_change(keys)

    def _check(self, truth: Truth, key: ObjectKey) -> None:
        segment, part = truth.known.get(key), parse_part_name(key.rpartition("/")[2])
        needed = segment is not None and truth.needs(segment)
        if part is not None and key in truth.parts:
            needed = part.end_offset > truth.start
        if needed and not truth.deleted:
            raise Violation(f"F4: {key} is removed, and the log starts at {truth.start}")
        if segment is not None:
            truth.note("replaced object removed" if segment.end_offset > truth.start else "object removed")


class WorldStore(FaultyStore):
    """The store as brokers see it: with `engine.objects`' faults, writes that happen late, flipped bits, and times
    when nothing is reached at all.
    """

    def __init__(
        self, judged: JudgedStore, rng: random.Random, chances: Faults, later: Callable[[Callable[[], None]], None]
    ) -> None:
        """``later`` does something in a while."""
        super().__init__(judged, rng, chances)
        self.judged = judged
        self.late = self.flipped = 0.0
        self.is_away = False
        self._later = later
        self._chance = rng

    def calm(self, chances: Faults) -> None:
        """End all faults."""
        self.chances = chances
        self.late = self.flipped = 0.0
        self.is_away = False

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        if self.late and self._chance.random() < self.late:
            data = b"".join(parts)
            self._later(lambda: self._put_late(key, data, expect))
            self.faults["late"] = self.faults.get("late", 0) + 1
            raise OutcomeUnknown(f"{self.url}: {key}: no answer (injected)")
        return super().put(key, parts, expect)

    def _put_late(self, key: ObjectKey, data: bytes, expect: Version | None) -> None:
        with suppress(Conflict):
            self.judged.put(key, [data], expect)

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        return self.put(key, [bytes(part) for part in parts])

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        data = super().get(key, start, end)
        if self.flipped and len(data) and self._chance.random() < self.flipped:
            self.faults["flipped bit"] = self.faults.get("flipped bit", 0) + 1
            wrong = bytearray(data)
            wrong[self._chance.randrange(len(wrong))] ^= 1 << self._chance.randrange(8)
            return memoryview(wrong)
        return data

    def _before(self, what: str, *, changes: bool = False, conditional: bool = False, reads: bool = False) -> str:
        if self.is_away:
            raise Unavailable(f"{self.url}: {what}: no answer (injected)")
        return super()._before(what, changes=changes, conditional=conditional, reads=reads)


def is_right(store: MemoryStore, owner: ArchiveId, segment: ArchivedSegment) -> bool:
    """Whether what an archived segment names is there, with its length and checksums."""
    if segment.object_id != NO_OBJECT:
        return _is_right_range(store, owner, segment)
    found = store.objects.get(ObjectKey(segment_key(owner, segment)))
    if found is None or len(found[0]) != segment.size_bytes + segment.index_bytes:
        return False
    return crc32c(found[0][: segment.size_bytes]) == segment.checksum


def _is_right_range(store: MemoryStore, owner: ArchiveId, segment: ArchivedSegment) -> bool:
    partition = SharedPartition(owner.topic_id.bytes, owner.partition_index)
    try:
        index = read_index(store, segment.object_id)
        segment_index(index, owner, segment)
        for block in index.within(partition, segment.base_offset, segment.end_offset):
            read_block(store, segment.object_id, block)
    except MillstreamError:
        return False
    return True


def data_of(store: MemoryStore, owner: ArchiveId, segment: ArchivedSegment) -> memoryview:
    """The batches of a segment that is right."""
    if segment.object_id == NO_OBJECT:
        return store.get(ObjectKey(segment_key(owner, segment)), FilePosition(0), FilePosition(segment.size_bytes))
    _, start = segment_index(read_index(store, segment.object_id), owner, segment)
    end = FilePosition(start + segment.size_bytes)
    return store.get(ObjectKey(object_key(owner, segment)), start, end)


def _ignore(_: object) -> None:
    """No listener."""
