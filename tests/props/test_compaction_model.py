"""Compaction against a naive one: the same log in a list of records, compacted by looking at all of it each time.

Whatever is produced, tombstones and idempotent producers among it, wherever segments end, however much time goes by:
after each pass a consumer sees the records that the naive compaction keeps, at their offsets, with their times.
"""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.compaction import (
    OFFSETS_PER_SEGMENT,
    Rules,
    SegmentFacts,
    dirtiest,
    group_segments,
    stretch_of,
)
from millstream.core.key_map import SLOT_BYTES, KeyMap
from millstream.wire.records import batch_crc_ok, build_batch, iter_batches, iter_records, parse_header
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, recover_locally

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000


class Kept(NamedTuple):
    """A record of the naive log."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    batch: int


class Naive:
    """The log as a list."""

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.horizons: dict[int, int] = {}
        self.clean_offset = 0

    def compact(self, end: int, now_ms: int) -> None:
        dirty = [one for one in self.records if self.clean_offset <= one.offset < end]
        last = {one.key: one.offset for one in dirty}
        kept = [
            one
            for one in self.records
            if one.offset >= end
            or (
                one.offset >= last.get(one.key, 0)
                and (one.value is not None or self.horizons.get(one.batch, now_ms + 1) > now_ms)
            )
        ]
        for one in kept:
            if one.value is None and one.offset < end:
                self.horizons.setdefault(one.batch, now_ms + RETENTION_MS)
        self.records = kept
        self.clean_offset = end


records = st.lists(
    st.tuples(st.integers(0, 15).map(lambda n: b"k%d" % n), st.one_of(st.none(), st.binary(max_size=30))),
    min_size=1,
    max_size=6,
)
produce = st.tuples(st.just("produce"), records, st.sampled_from([0, 0, 0, 1, 3, 4]), st.sampled_from([-1, -1, 5, 6]))
steps = st.lists(
    st.one_of(
        produce,
        produce,
        st.just(("roll",)),
        st.tuples(st.just("compact"), st.sampled_from([0, 1, RETENTION_MS // 2, RETENTION_MS])),
        st.just(("restart",)),
    ),
    max_size=30,
)


class World:
    """A log under test and its naive twin."""

    def __init__(self, buffer_bytes: int = 1 << 16) -> None:
        self.disk = SimDisk(random.Random(1))
        self.buffer_bytes = buffer_bytes
        self.naive = Naive()
        self.sequences: dict[int, int] = {}
        self.last_offsets: dict[int, int] = {}
        self.now_ms = NOW_MS
        self.start()

    def start(self) -> None:
        report = recover_locally(self.disk)
        assert not report.faults
        given = {"log_cleaner_backoff_ms": 10**9, "log_cleaner_dedupe_buffer_size": self.buffer_bytes}
        self.shard = LocalShard(self.disk, random.Random(2), now_ms=self.now_ms, clean=report.clean, settings=given)
        self.log: Any = self.shard.open(
            1,
            cleanup_policy=("compact",),
            segment_bytes=400,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=0,
        )
        self.log.owner.active_producers = lambda: self.last_offsets

    def step(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)

    def produce(self, pairs: list[tuple[bytes, bytes | None]], codec: int, producer: int) -> None:
        log = self.log
        base = log.next_offset
        stamped = [(key, value, (), NOW_MS + 7 * base - n) for n, (key, value) in enumerate(pairs)]
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        data = build_batch(
            stamped,
            compression=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        log.append((memoryview(data),), len(data), base, base + len(pairs) - 1, 0, max(one[3] for one in stamped))
        self.shard.run(lambda: self.shard.storage.wal.idle)
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)
            self.last_offsets[producer] = base + len(pairs) - 1
        for n, (key, value, _, timestamp) in enumerate(stamped):
            self.naive.records.append(Kept(base + n, key, value, timestamp, base))

    def roll(self) -> None:
        if self.log.refresh().size_bytes:
            self.log.roll()

    def compact(self, passed_ms: int) -> None:
        self.shard.reactor.advance(passed_ms * 1000)
        compaction = self.shard.storage.compaction
        end = compaction.stretch(self.log).end_offset
        while self.log.files.clean_offset < end:
            before = self.log.files.clean_offset
            compaction.look()
            self.shard.run(
                lambda before=before: not compaction.is_busy and self.log.files.clean_offset > before,
                limit_us=1_000_000,
            )
            assert self.log.files.clean_offset > before
            self.naive.compact(self.log.files.clean_offset, self.shard.reactor.wall_ms())
        self.check()

    def restart(self) -> None:
        self.now_ms = self.shard.reactor.wall_ms()
        self.disk.crash(torn=False)
        self.start()
        self.naive.clean_offset = self.log.files.clean_offset  # one that is too low costs time, nothing else
        self.check()

    def seen(self) -> bytes:
        log, data, offset = self.log, b"", self.log.start_offset
        while offset < log.next_offset:
            found = log.read(offset, log.next_offset, 1 << 20, True)
            if found is None:
                found = self.shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
            data += bytes(found)
            found.release()
            offset = [parse_header(batch) for batch in iter_batches(data)][-1].next_offset
        return data

    def check(self) -> None:
        data = self.seen()
        found = [
            (record.offset, record.key, record.value, record.timestamp)
            for batch in iter_batches(data)
            for record in iter_records(batch)
        ]
        assert found == [one[:4] for one in self.naive.records]
        for batch in iter_batches(data):
            times = [record.timestamp for record in iter_records(batch)]
            assert not times or parse_header(batch).max_timestamp == max(times)
            assert parse_header(batch).record_count == len(times)
            assert batch_crc_ok(batch)
        headers = [parse_header(batch) for batch in iter_batches(data)]
        for producer, offset in self.last_offsets.items():
            last = [header for header in headers if header.producer_id == producer][-1]
            assert last.last_offset == offset
            assert last.base_sequence + last.last_offset_delta + 1 == self.sequences[producer]


@settings(max_examples=60)
@given(steps)
def test_what_survives_is_what_a_naive_compaction_keeps(history: list[Any]) -> None:
    world = World()
    for name, *arguments in history:
        world.step(name, *arguments)
    world.roll()
    world.compact(0)


@settings(max_examples=30)
@given(steps, st.integers(8, 16))
def test_passes_that_are_short_of_memory_keep_the_same(history: list[Any], slots: int) -> None:
    """No pass gathers more than it can; each is judged by what it gathered."""
    world = World(buffer_bytes=slots * SLOT_BYTES)
    for name, *arguments in history:
        world.step(name, *arguments)
    world.roll()
    world.compact(RETENTION_MS)


keys = st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 2**40)), max_size=60)


@given(keys, st.integers(2, 80), st.floats(0.1, 1.0))
def test_a_key_map_is_a_dictionary_that_says_when_it_is_full(
    pairs: list[tuple[bytes, int]], slots: int, load: float
) -> None:
    found = KeyMap(bytearray(slots * SLOT_BYTES), load, b"salt")
    wanted: dict[bytes, int] = {}
    for key, offset in pairs:
        taken = found.put(key, offset)
        assert taken == (key in wanted or len(wanted) < found.most)
        if taken:
            wanted[key] = offset
    assert found.count == len(wanted)
    assert all(found.get(key) == wanted.get(key, -1) for key, _ in pairs)
    assert found.get(b"a key that is not there") == -1


def facts_of(sizes: list[tuple[int, int, int]]) -> list[SegmentFacts]:
    """Segments from (records, bytes, age of the newest record)."""
    base, found = 0, []
    for count, size, age_ms in sizes:
        found.append(SegmentFacts(base, base + count, size, NOW_MS - age_ms - 1, NOW_MS - age_ms))
        base += count
    return found


segments = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000), st.integers(0, 100)), min_size=1).map(facts_of)


@given(segments, st.integers(-5, 3000), st.integers(0, 3000), st.integers(0, 100), st.integers(1, 100), st.data())
def test_a_stretch_ends_before_what_may_not_be_touched(
    facts: list[SegmentFacts], clean: int, stable: int, min_lag: int, max_lag: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, facts[-1].end_offset))
    found = stretch_of(
        facts,
        clean_offset=clean,
        start_offset=start,
        stable_offset=stable,
        now_ms=NOW_MS,
        rules=Rules(0.5, min_lag, max_lag),
    )
    assert found.first_dirty_offset == (clean if start <= clean <= facts[-1].end_offset else start)
    dirty = [one for one in facts if found.first_dirty_offset < one.end_offset <= found.end_offset]
    assert found.dirty_bytes == sum(one.size_bytes for one in dirty)
    assert facts[-1] not in dirty
    assert all(one.end_offset <= stable for one in dirty)
    assert not min_lag or all(one.max_timestamp <= NOW_MS - min_lag for one in dirty)
    if dirty:
        assert found.end_offset == dirty[-1].end_offset
        assert (found.overdue_ms > 0) == any(one.first_timestamp < NOW_MS - max_lag for one in dirty)
    assert found.is_due(1.0) == (bool(dirty) and found.overdue_ms > 0)


@given(segments, st.integers(1, 4000))
def test_groups_are_consecutive_and_no_larger_than_a_segment(facts: list[SegmentFacts], limit: int) -> None:
    counts = group_segments(facts, limit)
    assert sum(counts) == len(facts)
    at = 0
    for place, count in enumerate(counts):
        group = facts[at : at + count]
        size = sum(one.size_bytes for one in group)
        assert size <= limit or count == 1
        if place + 1 < len(counts):
            assert size + facts[at + count].size_bytes > limit
        at += count


def test_a_group_has_no_more_offsets_than_an_index_can_tell_apart() -> None:
    half = OFFSETS_PER_SEGMENT // 2
    facts = [SegmentFacts(n * half, (n + 1) * half, 10, 0, 0) for n in range(5)]
    assert group_segments(facts, 1000) == [2, 2, 1]


@given(st.lists(st.tuples(segments, st.floats(0, 1)), max_size=6))
def test_the_dirtiest_of_those_that_are_due_comes_first(logs: list[tuple[list[SegmentFacts], float]]) -> None:
    stretches = [
        (
            stretch_of(
                facts,
                clean_offset=0,
                start_offset=0,
                stable_offset=2**40,
                now_ms=NOW_MS,
                rules=Rules(least, 0, 2**63 - 1),
            ),
            least,
        )
        for facts, least in logs
    ]
    chosen = dirtiest(stretches)
    due = [place for place, (stretch, least) in enumerate(stretches) if stretch.dirty_bytes and stretch.ratio > least]
    if chosen is None:
        assert not due
    else:
        assert chosen in due
        assert stretches[chosen][0].ratio == max(stretches[place][0].ratio for place in due)


def test_structs_are_as_large_as_the_map_says() -> None:
    assert struct.calcsize("<QQQ") == SLOT_BYTES
