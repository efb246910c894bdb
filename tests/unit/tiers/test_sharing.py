"""Shared objects: made of checked batches, read by the archive's reader, swept when nobody needs them, found again."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharing_support import TOPIC, A, B, batches, read, share

from millstream.errors import Corruption
from millstream.format.archive import topic_key
from millstream.format.manifest import ArchivedSegment, ArchiveId, pack_run, unpack_run
from millstream.objects import ObjectKey
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import HotTier, WarmBlocks
from millstream.tiers.hot_tier.slots import MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier
from millstream.tiers.messages import Find, Read, SharedStart, Sweep, Target
from millstream.tiers.packing import archive_id
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.sweeping import StoredRange, Sweeper, longest_chain, stored_ranges
from sim.engine.objects import MemoryStore
from waits import until


def test_the_batches_of_each_partition_are_read_back_byte_for_byte():
    store, ours, theirs = MemoryStore(), batches(10, 30, 90_000), batches(0, 3)
    filled = []
    first, second = share(
        store, 77, (B, 10, 70, ours, [(9, 12, 14)]), (A, 0, 6, theirs, []), on_block=lambda *block: filled.append(block)
    )
    assert (first.base_offset, first.end_offset, first.size_bytes, first.object_id) == (10, 70, len(ours), 77)
    assert (first.min_timestamp, first.max_timestamp, first.term) == (1010, 1068, 3)
    assert read(store, A, second, 0, 6) == (theirs, [])
    assert read(store, B, first, 10, 70, 8 << 20)[0] == ours
    assert read(store, B, first, 12, 16, 8 << 20) == (batches(12, 2, 90_000), [(9, 12, 14)])
    assert len(filled) > 3
    assert sum(len(block[2]) for block in filled) == len(ours) + len(theirs)
    found = ArchiveReader(store).find(Find(1, archive_id(B), Target.of(first), 1033, 10, 70))
    assert (found.offset, found.timestamp, found.leader_epoch) == (34, 1034, 3)


def test_the_same_upload_may_come_twice_and_another_one_under_the_number_is_refused():
    store, data = MemoryStore(), batches(0, 3)
    assert share(store, 77, (A, 0, 6, data, [])) == share(store, 77, (A, 0, 6, data, []))
    with pytest.raises(Corruption):
        share(store, 77, (A, 6, 12, batches(6, 3), []))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_batch_is_not_uploaded(seed):
    store, data = MemoryStore(), bytearray(batches(0, 4))
    at = random.Random(seed).randrange(17, len(data))
    data[at] ^= 1
    with pytest.raises(Corruption):
        share(store, 77, (A, 0, 8, data, []))
    assert not list(store.list("shared/"))


@pytest.mark.parametrize(
    ("data", "first", "end"),
    [
        (batches(0, 2) + batches(6, 1), 0, 8),
        (batches(0, 2), 0, 6),
        (batches(2, 2), 0, 6),
        (batches(2, 1) + batches(0, 1), 2, 2),
        (batches(0, 2)[:-1], 0, 4),
        (b"", 0, 4),
    ],
)
def test_batches_with_a_gap_or_without_an_offset_are_not_uploaded(data, first, end):
    with pytest.raises(Corruption):
        share(MemoryStore(), 77, (A, first, end, data, []))


def test_a_damaged_object_serves_no_byte_and_keeps_its_other_blocks():
    store, ours = MemoryStore(), batches(0, 30, 90_000)
    first, second = share(store, 77, (A, 0, 60, ours, []), (B, 0, 6, batches(0, 3), []))
    (info,) = store.list("shared/")
    data = bytearray(store.get(info.key, 0, info.size_bytes))
    data[5000] ^= 1
    store.put(info.key, [bytes(data)])
    with pytest.raises(Corruption, match="checksum"):
        read(store, A, first, 0, 60, 8 << 20)
    assert read(store, B, second, 0, 6)[0] == batches(0, 3)
    with pytest.raises(Corruption, match="does not have the offsets"):
        read(store, B, ArchivedSegment(0, 8, 6, 0, 0, 0, 0, object_id=77), 0, 8)


def sweep(store, starts, topics=(TOPIC.bytes,)):
    known = [SharedStart(*partition, start, start) for partition, start in starts.items()]
    command = Sweep(1, known, list(topics), "")
    return Sweeper(store).sweep(command).removed


def test_an_object_goes_when_no_partition_needs_it():
    store = MemoryStore()
    share(store, 77, (A, 0, 6, batches(0, 3), []), (B, 0, 4, batches(0, 2), []))
    share(store, 78, (A, 6, 10, batches(6, 2), []))
    assert sweep(store, {A: 6, B: 3}) == []
    assert sweep(store, {A: 6}) == []  # nobody knows about B now, but its topic is there
    assert sweep(store, {A: 9, B: 4}) == [77]
    assert sweep(store, {A: 10, B: 4}) == [78]


def test_objects_of_a_topic_that_nobody_knows_go_only_without_its_description():
    store = MemoryStore()
    share(store, 77, (A, 0, 6, batches(0, 3), []))
    key = ObjectKey(topic_key(ArchiveId(TOPIC, 0)))
    store.put(key, [b"{}"])
    assert sweep(store, {}, ()) == []
    store.delete([key])
    assert sweep(store, {}, ()) == [77]


def test_a_sweep_goes_on_where_it_stopped_and_leaves_what_it_cannot_read(monkeypatch):
    monkeypatch.setattr("millstream.tiers.sweeping.READ_AT_ONCE", 3)
    store, sweeper = MemoryStore(), None
    for number in range(1, 9):
        share(store, number, (A, 2 * number, 2 * number + 2, batches(2 * number, 1), []))
    store.put(ObjectKey("shared/" + "f" * 16), [b"no object"])
    sweeper, after, removed = Sweeper(store), "", []
    for _ in range(9):
        found = sweeper.sweep(Sweep(1, [SharedStart(*A, 12, 12)], [TOPIC.bytes], after))
        removed += found.removed
        after = found.after
        if not after:
            break
    assert sorted(removed) == [1, 2, 3, 4, 5]
    assert len(list(store.list("shared/"))) == 4


def stored(base, end, object_id):
    return StoredRange(ArchivedSegment(base, end, 1, 0, 0, 0, 1, object_id=object_id), ())


def test_what_a_crash_left_twice_is_found_once():
    ranges = [stored(0, 10, 1), stored(10, 30, 2), stored(10, 25, 3), stored(25, 40, 4), stored(60, 70, 0)]
    found = [one.segment.object_id for one in longest_chain(ranges[:4])]
    assert found == [1, 3, 4]
    assert longest_chain([]) == []
    assert [one.segment.object_id for one in longest_chain(ranges)] == [0]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.data())
def test_the_whole_log_is_found_whatever_orphans_there_are(lengths, data):
    ends = list(itertools.accumulate(lengths))
    ranges = [stored(end - length, end, 100 + at) for at, (length, end) in enumerate(zip(lengths, ends, strict=True))]
    ranges += [
        stored(base, base + data.draw(st.integers(1, ends[-1] - base)), data.draw(st.integers(1, 300)))
        for base in data.draw(st.lists(st.sampled_from([0, *ends[:-1]]), max_size=5))
    ]
    chain = longest_chain(data.draw(st.permutations(ranges)))
    assert (chain[0].segment.base_offset, chain[-1].segment.end_offset) == (0, ends[-1])
    assert all(one.segment.end_offset == two.segment.base_offset for one, two in itertools.pairwise(chain))


def test_what_objects_have_is_found_from_the_objects_alone():
    store = MemoryStore()
    segments = share(store, 77, (A, 0, 6, batches(0, 3), []), (B, 0, 4, batches(0, 2), []))
    segments += share(store, 78, (A, 6, 10, batches(6, 2), []))
    found = stored_ranges(store)
    assert [one.segment for one in longest_chain(found[A])] == [segments[0], segments[2]]
    assert [one.segment for one in found[B]] == [segments[1]]
    assert found[A][0].epochs == ((3, 0),)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**62), st.integers(0, 99)), min_size=1, max_size=64))
def test_a_run_keeps_the_numbers_of_shared_objects(shape):
    segments, at = [], 5
    for length, object_id, index_bytes in shape:
        segments.append(
            ArchivedSegment(at, at + length, 9, 3, 1, 2, 4, 0 if object_id else index_bytes, object_id=object_id)
        )
        at += length
    assert unpack_run(pack_run(segments)) == segments


def test_ranges_of_shared_objects_are_kept_warm_as_segments_are(monkeypatch):
    """A block of a shared object that was read once comes from the warm cache when memory has forgotten it, and counts
    there.
    """
    monkeypatch.setattr("millstream.tiers.hot_tier.filling._QUEUE_MAX", 100)
    store, data = MemoryStore(), batches(0, 20, 90_000)
    segment, _ = share(store, 77, (A, 0, 40, data, []), (B, 0, 2, batches(0, 1), []))
    slots = SlottedTier(MemorySlots(), "lru", 8, 10**15)
    warm = WarmBlocks(HotTier(slots, StatsSlab(0, "archive")), "read", 10, "memory", 1 << 30)
    command = Read(1, archive_id(A), Target.of(segment), 0, 40, 8 << 20, True, [0, 8 << 20])

    def read_by_a_new_reader():
        served, buffer = [], bytearray(8 << 20)
        found = ArchiveReader(store, warm=warm, served=served.append).read(command, [memoryview(buffer)])
        assert bytes(buffer[: found.size_bytes]) == data
        return set(served)

    assert "store" in read_by_a_new_reader()
    until(lambda: warm.tier.stats().blocks >= 4, "the blocks are not kept")
    assert read_by_a_new_reader() == {"hot_tier"}
