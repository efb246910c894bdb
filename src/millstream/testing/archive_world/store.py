"""The bucket of a simulated cluster: it fails as object stores do, and notices what nobody may do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.errors import OutcomeUnknown, Unavailable
from millstream.format.archive import parse_segment_name
from millstream.format.manifest import parse_part_name
from millstream.testing.objects import FaultyStore, MemoryStore
from millstream.testing.sim.brokers_judge import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from millstream.format.manifest import ArchivedSegment
    from millstream.model.quantities import FilePosition
    from millstream.objects import ObjectKey, Version
    from millstream.objects.store import Buffer
    from millstream.testing.objects import Faults


class Truth:
    """What all replicas together have committed of the archive, and how far they have deleted it."""

    def __init__(self) -> None:
        self.segments: dict[int, ArchivedSegment] = {}
        """Those of the newest version of the manifest, by base offset."""
        self.known: dict[tuple[int, int, int, int], ArchivedSegment] = {}
        """Those of every version, by what their names say."""
        self.version = 0
        """The newest version of a manifest that any replica has had."""
        self.parts: set[str] = set()
        """Names of part objects of the newest version."""
        self.end = 0
        """The highest end of an archive that any replica has had."""
        self.start = 0
        """The highest log start that any replica has."""
        self.seen: dict[str, int] = {}

    def note(self, what: str) -> None:
        """Count something that happened."""
        self.seen[what] = self.seen.get(what, 0) + 1

    def named(self, key: str) -> ArchivedSegment | None:
        """The committed segment whose object that is."""
        name = parse_segment_name(key.rpartition("/")[2])
        return None if name is None else self.known.get(name)

    def needs(self, segment: ArchivedSegment) -> bool:
        """Whether the newest manifest has it, and the log does."""
        return self.segments.get(segment.base_offset) == segment and segment.end_offset > self.start


class JudgedStore(MemoryStore):
    """Objects in memory, in which nothing that is needed is removed or replaced (F4, F5)."""

    def __init__(self, truth: Truth, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self._truth = truth

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        segment, before = self._truth.named(key), self.objects.get(key)
        if segment is not None and before is not None and before[0] != b"".join(parts):
            raise Violation(f"F5: the committed object {key} is replaced by other bytes")
        return super().put(key, parts, expect)

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            segment, part = self._truth.named(key), parse_part_name(key.rpartition("/")[2])
            needed = segment is not None and self._truth.needs(segment)
            if part is not None and key in self._truth.parts:
                needed = part.end_offset > self._truth.start
            if needed:
                raise Violation(f"F4: {key} is removed, and the log starts at {self._truth.start}")
            if segment is not None and segment.end_offset > self._truth.start:
                self._truth.note("replaced object removed")
            self._truth.note("object removed")
        super().delete(keys)


class WorldStore(FaultyStore):
    """The store as brokers see it: with `testing.objects`' faults, writes that happen late, flipped bits, and times
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
            self._later(lambda: self._put_late(key, data))
            self.faults["late"] = self.faults.get("late", 0) + 1
            raise OutcomeUnknown(f"{self.url}: {key}: no answer (injected)")
        return super().put(key, parts, expect)

    def _put_late(self, key: ObjectKey, data: bytes) -> None:
        self.judged.put(key, [data])

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
            raise Unavailable(f"{self.url}: {what}: nobody answers (injected)")
        return super()._before(what, changes=changes, conditional=conditional, reads=reads)


def is_right(store: MemoryStore, key: ObjectKey, segment: ArchivedSegment) -> bool:
    """Whether the object of a segment is there, with its length and checksum."""
    found = store.objects.get(key)
    if found is None or len(found[0]) != segment.size_bytes + segment.index_bytes:
        return False
    return crc32c(found[0][: segment.size_bytes]) == segment.checksum
