"""Reads of a partition's chunks: what was appended is read back, through rotation and restart, bounded and checked."""

import random

import pytest
from chunk_log import ChunkLog
from chunk_support import batch_bytes

from millstream.config.event_partition import BufferPools, PoolShape
from millstream.errors import Corruption, Rejected
from millstream.format.events import (
    ChunkLimits,
    DataDescriptor,
    Segment,
    StrideView,
    SubView,
    UnstructuredView,
    decode_descriptor,
    encode_descriptor,
    partition_directory_name,
)
from millstream.format.events.batch import Producer, split
from millstream.format.events.descriptor import decode_location, descriptor_of_event
from millstream.storage.chunks import WantedData
from millstream.storage.chunks.open_files import ChunkFileCache
from sim.engine.disk import LOST, SimDisk, SimFile

DIRECTORY = f"/data/{partition_directory_name('t', bytes(16), 0)}"
SMALL = ChunkLimits(max_chunk_size=1 << 20, max_events_per_chunk=5)


def fresh_disk(seed=1):
    disk = SimDisk(random.Random(seed))
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def opened(disk, limits=SMALL, capacity=64):
    return ChunkLog(disk, DIRECTORY, limits, capacity)


def batches(count, seed=0, per_batch=3, first=0):
    rng = random.Random(seed)
    made, at = [], first
    for number in range(count):
        events = [(b"m%d/%d" % (number, n), rng.randbytes(rng.randrange(50))) for n in range(rng.randint(1, per_batch))]
        made.append(
            (
                batch_bytes(events, base_offset=at, leader_epoch=2, now_ms=1000 + number, producer=Producer(5, 1, at)),
                events,
            )
        )
        at += len(events)
    return made


def fed(store, start=0, max_events=100, max_bytes=1 << 20):
    """(metadata, descriptor, time) of all events from ``start`` on."""
    found = []
    while (part := store.reads.feed(start, store.next_offset, max_events, max_bytes)) is not None:
        assert part.first_offset == start
        times = [one.timestamp for one in part.times for _ in range(one.events)]
        metas = map(bytes, split(part.metadata, part.metadata_sizes))
        descs = map(bytes, split(part.descriptors, part.descriptor_sizes))
        found += zip(metas, descs, times, strict=True)
        start += len(part.metadata_sizes)
    return found


def data_of(store, descriptors, start=0, max_bytes=1 << 20):
    wanted = [WantedData(start + n, one) for n, one in enumerate(descriptors)]
    return [b"".join(one) if isinstance(one, list) else one for one in store.reads.fetch_data(wanted, max_bytes)]


def check(store, made):
    """The store has exactly these batches."""
    events = [event for _, one in made for event in one]
    found = fed(store)
    assert [meta for meta, _, _ in found] == [meta for meta, _ in events]
    assert data_of(store, [desc for _, desc, _ in found]) == [data for _, data in events]
    assert [b"".join(one) for one in store.reads.read_batches(0, 1 << 30)] == [batch for batch, _ in made]


@pytest.mark.parametrize("capacity", [1, 2, 64])
def test_what_is_appended_is_read_back_through_rotation_and_restart(capacity):
    disk = fresh_disk()
    store = opened(disk, capacity=capacity)
    made = batches(12)
    for batch, _ in made:
        store.append(batch)
    assert len(store.chunks) > 3
    assert all(chunk.ends.events >= 5 for chunk in store.chunks[:-1])
    check(store, made)
    assert len(store.disk.files) <= capacity
    store.sync()
    store.close()
    again = opened(disk.crashed(random.Random(1), LOST))
    check(again, made)
    more = batches(3, seed=9, first=again.next_offset)
    for batch, _ in more:
        again.append(batch)
    check(again, made + more)


def test_times_come_with_the_events_and_find_them():
    store = opened(fresh_disk())
    made = batches(6)
    for batch, _ in made:
        store.append(batch)
    assert [time for _, _, time in fed(store)] == [1000 + n for n, (_, events) in enumerate(made) for _ in events]
    bases = [sum(len(events) for _, events in made[:n]) for n in range(6)]
    assert [store.reads.offset_at(1000 + n) for n in range(6)] == bases
    assert store.reads.offset_at(0) == 0
    assert store.reads.offset_at(1006) is None


def test_a_feed_is_bounded_in_events_and_bytes_and_by_what_is_committed():
    store = opened(fresh_disk(), limits=ChunkLimits())
    made = batches(8)
    for batch, _ in made:
        store.append(batch)
    whole = fed(store)
    for events in (1, 2, 7):
        assert fed(store, max_events=events) == whole
    for room in (1, 60, 150):
        assert fed(store, max_bytes=room) == whole
        part = store.reads.feed(2, store.next_offset, 100, room)
        assert len(part.metadata_sizes) == 1 or len(part.metadata) + len(part.descriptors) <= room
    assert len(store.reads.feed(0, 4, 100, 1 << 20).metadata_sizes) == 4
    assert store.reads.feed(4, 4, 100, 1 << 20) is None
    assert store.reads.feed(store.next_offset, store.next_offset, 100, 1 << 20) is None
    assert fed(store, start=5) == whole[5:]


def test_only_the_selected_ranges_are_read(monkeypatch):
    store = opened(fresh_disk(), limits=ChunkLimits())
    payload = bytes(range(256)) * 4096
    store.append(batch_bytes([(b"{}", payload), (b"{}", payload[::-1])]))
    (_, first, _), (_, second, _) = fed(store)
    views = [
        decode_descriptor(first).narrowed(SubView(1000, 500)).narrowed(StrideView(0, 5, 10, 90)),
        decode_descriptor(second).narrowed(UnstructuredView((Segment(5, 5), Segment(1 << 19, 7)))),
    ]
    read = []
    plain = SimFile.preadv

    def preadv(self, buffers, position):
        read.append((self.path, sum(map(len, buffers))))
        return plain(self, buffers, position)

    monkeypatch.setattr(SimFile, "preadv", preadv)
    found = data_of(store, [encode_descriptor(one) for one in views])
    assert found == [
        b"".join(payload[1000 + n * 100 : 1010 + n * 100] for n in range(5)),
        payload[::-1][5:10] + payload[::-1][1 << 19 : (1 << 19) + 7],
    ]
    assert sum(size for path, size in read if path.endswith(".data")) <= 1.2 * sum(map(len, found))


@pytest.mark.parametrize("whole", [False, True])
def test_one_percent_of_64_mebibytes_costs_little_more_than_its_own_bytes(monkeypatch, whole):
    store, size, count = opened(fresh_disk(), limits=ChunkLimits(max_chunk_size=16 << 20)), 64 << 10, 1024
    payload = random.Random(3).randbytes(size)
    for base in range(0, count, 64):
        store.append(batch_bytes([(b"{}", payload)] * 64, base_offset=base))
    descriptors = [descriptor for _, descriptor, _ in fed(store, max_events=count)]
    part = SubView(0, size) if whole else SubView(1000, size // 100)
    numbers = random.Random(4).sample(range(count), count // 100) if whole else range(count)
    wanted = [
        WantedData(n, encode_descriptor(decode_descriptor(descriptors[n]).narrowed(part))) for n in sorted(numbers)
    ]
    read = []
    plain = SimFile.preadv

    def preadv(self, buffers, position):
        read.append(sum(map(len, buffers)))
        return plain(self, buffers, position)

    monkeypatch.setattr(SimFile, "preadv", preadv)
    found = store.reads.fetch_data(wanted, 1 << 30)
    assert all(b"".join(one) == payload[part.offset : part.offset + part.size] for one in found)
    selected = len(wanted) * part.size
    assert 0.009 < selected / (size * count) < 0.011
    assert sum(read) <= 1.2 * selected, f"{sum(read)} bytes of all files were read for {selected}"


def test_data_are_bounded_but_the_first_event_comes_whole():
    store = opened(fresh_disk(), limits=ChunkLimits())
    store.append(batch_bytes([(b"", b"x" * 100), (b"", b"y" * 100), (b"", b""), (b"", b"z" * 100)]))
    descriptors = [desc for _, desc, _ in fed(store)]
    assert data_of(store, descriptors, max_bytes=1) == [b"x" * 100]
    assert data_of(store, descriptors, max_bytes=200) == [b"x" * 100, b"y" * 100, b""]
    assert len(data_of(store, descriptors, max_bytes=300)) == 4


def test_a_descriptor_of_another_event_or_of_none_reads_nothing():
    store = opened(fresh_disk(), limits=ChunkLimits())
    store.append(batch_bytes([(b"", b"secret"), (b"", b"public")]))
    (_, first, _), (_, second, _) = fed(store)
    bad = [
        (0, second),
        (0, b""),
        (0, first[:-1]),
        (0, encode_descriptor(DataDescriptor(decode_descriptor(first).location, 7))),
        (0, encode_descriptor(descriptor_of_event(1, decode_descriptor(first).base_size))),
        (0, encode_descriptor(descriptor_of_event(0, decode_descriptor(first).base_size + 1))),
        (0, encode_descriptor(DataDescriptor(b"elsewhere", 6))),
        (2, first),
        (-1, first),
        (1 << 62, first),
    ]
    results = store.reads.fetch_data([WantedData(*one) for one in bad], 1 << 20)
    assert len(results) == len(bad)
    assert all(isinstance(one, Rejected) for one in results)
    assert data_of(store, [second], start=1) == [b"public"]
    assert data_of(store, [encode_descriptor(descriptor_of_event(1, 6))], start=1) == [b"public"]


def test_a_descriptor_of_the_same_place_in_another_chunk_reads_nothing():
    store = opened(fresh_disk(), limits=ChunkLimits(max_events_per_chunk=1))
    for offset, data in enumerate((b"secret", b"public")):
        store.append(batch_bytes([(b"", data)], base_offset=offset))
    (_, first, _), (_, second, _) = fed(store)
    assert decode_location(decode_descriptor(first).location).position == 0
    assert decode_location(decode_descriptor(second).location).position == 0
    refused = store.reads.fetch_data([WantedData(0, second), WantedData(1, first)], 1 << 20)
    assert all(isinstance(one, Rejected) for one in refused)
    assert data_of(store, [first, second]) == [b"secret", b"public"]


def test_metadata_that_rot_while_the_store_is_open_are_noticed():
    disk = fresh_disk()
    store = opened(disk)
    for batch, _ in batches(3):
        store.append(batch)
    disk.flip(f"{DIRECTORY}/chunk-000000.meta", 1)
    with pytest.raises(Corruption, match=r"chunk-000000\.meta does not match"):
        fed(store)
    with pytest.raises(Corruption):
        store.reads.read_batches(0, 1 << 20)


def test_the_pools_of_the_seed_have_its_defaults():
    pools = BufferPools()
    assert pools.producers_metadata == pools.consumers_metadata == PoolShape(1, 0, 64 << 10, 4.0)
    assert (pools.producers_data.first_size, pools.consumers_desc.first_size) == (64 << 20, 4 << 10)
    pools.check()


@pytest.mark.parametrize(
    "shape",
    [PoolShape(0), PoolShape(65), PoolShape(num_buffers=-1), PoolShape(first_size=0), PoolShape(size_multiple=1)],
)
def test_shapes_outside_of_the_schema_are_refused_with_their_key(shape):
    with pytest.raises(Rejected, match=r"consumers\.desc_buffer_pool\.\w+ is .* is allowed"):
        BufferPools(consumers_desc=shape).check()


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_each_partition_has_its_own_capacity_of_open_files_and_none_in_use_is_closed(capacity):
    disk = fresh_disk()
    cache = ChunkFileCache(disk, 100)
    for directory in ("/data/a", "/data/b"):
        disk.make_directory(directory)
        cache.set_capacity(directory, capacity)
    held = [cache.acquire(f"/data/a/{n}", create=True) for n in range(capacity + 2)]
    assert (cache.overshot, len(cache)) == (2, capacity + 2)
    for file in held:
        assert file.size() == 0, "it was closed in use"
        cache.release(file)
    for n in range(20):
        cache.release(cache.acquire(f"/data/b/{n}", create=True))
    cache.release(cache.acquire("/data/a/new", create=True))
    assert (cache.overshot, len(cache)) == (2, 2 * capacity)
    reused = cache.reused
    cache.release(cache.acquire("/data/b/19"))
    assert cache.reused == reused + 1
    cache.forget("/data/b/19")
    assert len(cache) == 2 * capacity - 1
    cache.close()
