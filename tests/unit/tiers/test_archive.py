"""The state of an archive follows from its entries, and holds what it promises."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from typing import Any

import msgspec
import pytest

from millstream.errors import Corruption
from millstream.format.manifest import (
    RUN_COUNT_MAX,
    ArchivedSegment,
    ArchiveId,
    Manifest,
    ManifestPart,
    Run,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
    unpack_run,
)
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import Term
from millstream.tiers.manifest import MEMORY_BYTES_MAX, Archive, find_in, first_at

OWNER = ArchiveId(uuid.UUID(int=1), 0)


def segments(count: int, rng: random.Random, base: int = 0) -> list[ArchivedSegment]:
    """Segments as a busy topic has them: about 128 MiB and ten minutes each; times overlap a little."""
    made: list[ArchivedSegment] = []
    now_ms = 1_700_000_000_000
    for _ in range(count):
        end = base + rng.randrange(500_000, 1_500_000)
        low = now_ms - rng.randrange(2_000)
        now_ms += rng.randrange(400_000, 800_000)
        made.append(
            ArchivedSegment(
                Offset(base),
                Offset(end),
                rng.randrange(120 << 20, 128 << 20),
                rng.randrange(1 << 32),
                TimestampMs(low),
                TimestampMs(now_ms - rng.randrange(2_000)),
                Term(1 + len(made) // 1000),
            )
        )
        base = end
    return made


class Store:
    """Part objects, and lookups through them as a caller does."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.parts: dict[ManifestPart, bytes] = {}

    def append(self, segment: ArchivedSegment) -> None:
        self.archive.append(segment)
        while (spill := self.archive.next_spill()) is not None:
            self.parts[spill.part] = encode_part(OWNER, spill.runs)
            self.archive.spilled(spill.part)

    def inside(self, part: ManifestPart) -> list[ArchivedSegment]:
        return [one for run in decode_part(OWNER, part, self.parts[part]) for one in unpack_run(run)]

    def at_offset(self, offset: int) -> ArchivedSegment | None:
        found = self.archive.find_offset(Offset(offset))
        return find_in(self.inside(found), Offset(offset)) if isinstance(found, ManifestPart) else found

    def at_time(self, timestamp: int) -> ArchivedSegment | None:
        found = self.archive.find_time(TimestampMs(timestamp))
        return first_at(self.inside(found), TimestampMs(timestamp)) if isinstance(found, ManifestPart) else found


@pytest.mark.parametrize("seed", range(5))
def test_an_archive_agrees_with_a_plain_list(seed):
    """Appends, spills, trims and restarts from the manifest object, against a list of all segments."""
    rng = random.Random(seed)
    made = segments(600, rng)
    store = Store(Archive(Offset(0), memory_bytes_max=rng.choice([0, 2_000, 20_000])))
    model: list[ArchivedSegment] = []
    start, appended = 0, 0
    while appended < len(made):
        for segment in made[appended : appended + rng.randrange(1, 120)]:
            store.append(segment)
            model.append(segment)
            appended += 1
        if rng.random() < 0.5 and model:
            start = max(start, rng.choice(model).base_offset + rng.choice([-1, 0, 1]))
            freed = store.archive.trim(Offset(start))
            gone = [one for part in freed.parts for one in store.inside(part)] + list(freed.segments)
            still = [one for one in model if one.end_offset > start]
            if not freed.parts and store.archive._parts:
                assert not freed.segments
            expected = [one for one in model if one.end_offset <= start]
            # A part leaves as a whole: the segments below the start in a part that stays, stay with it.
            assert gone == expected[: len(gone)], f"seed {seed}"
            model = model[len(gone) :]
            assert [one for one in model if one.end_offset > start] == still
        if rng.random() < 0.3:
            data = encode_manifest(store.archive.manifest(OWNER))
            store.archive = Archive.of(decode_manifest(data), store.archive._memory_bytes_max)
        check_against(store, model, start, rng, f"seed {seed}")


def check_against(store: Store, model: list[ArchivedSegment], start: int, rng: random.Random, said: str) -> None:
    assert store.archive.segment_count == len(model), said
    assert store.archive.end_offset == (model[-1].end_offset if model else start), said
    for one in rng.sample(model, min(4, len(model))):
        for offset in (one.base_offset, one.end_offset - 1):
            assert store.at_offset(offset) == (one if offset >= start else None), said
        timestamp = one.max_timestamp + rng.choice([-1, 0, 1])
        expected = next((other for other in model if other.max_timestamp >= timestamp), None)
        assert store.at_time(timestamp) == expected, said
    assert store.at_offset(start - 1) is None
    assert store.at_offset(store.archive.end_offset) is None
    after, end = sorted(rng.randint(start, store.archive.end_offset + 1) for _ in range(2))
    found: list[Any] = []
    while (one := store.archive.find_latest(after, end, _rank(found[-1]) if found else None)) is not None:
        found.append(one)
    inside = store.archive.between(after, end)
    assert found == sorted(inside, key=lambda one: (-one.max_timestamp, one.base_offset)), said


def _rank(one: Any) -> tuple[TimestampMs, Offset]:
    return one.max_timestamp, one.base_offset


def test_a_gap_an_overlap_and_an_empty_segment_are_refused():
    archive = Archive(Offset(10))
    times = TimestampMs(0), TimestampMs(0)
    for base, end in ((11, 20), (10, 10), (10, 5), (5, 10)):
        with pytest.raises(Corruption, match="does not follow"):
            archive.append(ArchivedSegment(Offset(base), Offset(end), 1, 0, *times, Term(1)))
    assert (archive.segment_count, archive.end_offset) == (0, 10)
    archive.append(ArchivedSegment(Offset(9), Offset(20), 5, 0, *times, Term(1)))
    assert (archive.find_offset(Offset(9)), archive.size_bytes) == (None, 5), "the first may begin before the start"
    with pytest.raises(Corruption, match="does not follow"):
        archive.append(ArchivedSegment(Offset(19), Offset(30), 1, 0, *times, Term(1)))


def spilling(count=256):
    """An archive that wants to spill, the part that it would make, and its segments."""
    archive = Archive(Offset(0), memory_bytes_max=0)
    made = segments(count, random.Random(1))
    for segment in made:
        archive.append(segment)
    spill = archive.next_spill()
    assert spill is not None
    return archive, spill.part, made


def test_a_part_that_is_there_already_or_overlaps_another_one_changes_nothing():
    archive, part, _ = spilling()
    archive.spilled(part)
    before = encode_manifest(archive.manifest(OWNER))
    archive.spilled(part)
    archive.spilled(msgspec.structs.replace(part, end_offset=archive.end_offset))
    assert encode_manifest(archive.manifest(OWNER)) == before
    assert (archive.segment_count, len(archive.parts)) == (256, 1)


def test_a_part_that_ends_inside_of_a_segment_is_refused():
    archive, part, _ = spilling()
    before = encode_manifest(archive.manifest(OWNER))
    for end in (part.end_offset + 1, archive.end_offset + 1):
        with pytest.raises(Corruption, match="inside of a segment"):
            archive.spilled(msgspec.structs.replace(part, end_offset=end))
    assert encode_manifest(archive.manifest(OWNER)) == before


@pytest.mark.parametrize("restarted", [False, True])
def test_a_part_is_taken_up_when_the_log_was_trimmed_since_it_was_made(restarted):
    """The entry may be committed after the start of the log has moved, or on a replica that packs its runs anew."""
    archive, part, made = spilling(RUN_COUNT_MAX)
    inside = made[10].base_offset + 1
    archive.trim(Offset(inside))
    if restarted:
        archive = Archive.of(decode_manifest(encode_manifest(archive.manifest(OWNER))))
    archive.spilled(part)
    assert list(archive.parts) == [part]
    assert archive.size_bytes == sum(one.size_bytes for one in made)
    freed = archive.trim(part.end_offset)
    assert (list(freed.parts), archive.size_bytes, archive.is_empty) == ([part], 0, True)
    archive.spilled(part)
    assert archive.is_empty, "it is needed no more"


def test_a_start_beyond_the_end_empties_the_archive():
    archive = Archive(Offset(0))
    made = segments(100, random.Random(1))
    for segment in made:
        archive.append(segment)
    beyond = Offset(archive.end_offset + 5)
    assert list(archive.trim(beyond).segments) == made
    assert (archive.segment_count, archive.start_offset, archive.end_offset) == (0, beyond, beyond)
    assert archive.trim(Offset(0)).segments == ()


def test_a_segment_takes_about_eighteen_bytes():
    archive = Archive(Offset(0), memory_bytes_max=1 << 30)
    for segment in segments(6400, random.Random(1)):
        archive.append(segment)
    packed = sum(len(run.data) for run in archive.manifest(OWNER).runs)
    assert 10 * 6400 <= packed <= 18 * 6400


def test_one_partition_stays_within_its_memory():
    store = Store(Archive(Offset(0)))
    made = segments(12_000, random.Random(1))
    for segment in made:
        store.append(segment)
        assert store.archive.memory_bytes <= MEMORY_BYTES_MAX
    assert len(store.parts) > 3
    assert all(len(data) < MEMORY_BYTES_MAX for data in store.parts.values())
    assert store.at_offset(0) == made[0]


@pytest.mark.parametrize("partitions,share", [(1, 1), (4, 80)])
def test_a_million_segments_take_less_than_32_mb(partitions, share):
    """Of one partition, whose parts hold all but the last, and of 320, of which four are made and measured."""
    pattern = Archive(Offset(0), memory_bytes_max=1 << 30)
    for segment in segments(3200, random.Random(1)):
        pattern.append(segment)
    runs = pattern.manifest(OWNER).runs
    parts = tuple(part_number(index) for index in range(312)) if partitions == 1 else ()
    base = parts[-1].end_offset if parts else 0
    data = encode_manifest(
        Manifest(OWNER, Offset(0), parts, tuple(Run(Offset(base + run.base_offset), 64, run.data) for run in runs))
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    archives = [Archive.of(decode_manifest(data)) for _ in range(partitions)]
    used = (tracemalloc.get_traced_memory()[0] - before) * share
    tracemalloc.stop()
    assert sum(archive.segment_count for archive in archives) * share >= 1_000_000
    assert max(archive.memory_bytes for archive in archives) <= MEMORY_BYTES_MAX
    assert used < 32_000_000, f"{used:,} bytes"


def part_number(index: int) -> ManifestPart:
    """A part of 3,200 segments."""
    base = index * 1_000_000_000
    return ManifestPart(Offset(base), Offset(base + 1_000_000_000), TimestampMs(base), TimestampMs(base + 1), 3200)
