"""The arena gives out memory once, takes it back, and says when it is full."""

import ctypes
import os
import re

import pytest

from millstream.iobuf import Arena, ArenaFull, MemoryClass
from millstream.iobuf.sizes import ALLOC_TABLE, BLOCK_BYTES, SLAB_BYTES


def arena_of(slabs, **options):
    return Arena.create(0, slabs * SLAB_BYTES, **options)


@pytest.mark.parametrize("size", ALLOC_TABLE)
def test_a_fragment_has_the_size_of_its_class_and_shows_its_part_of_the_arena(size):
    arena = arena_of(2)
    fragment = arena.allocate(size)
    fragment.view[:] = b"x" * size
    assert fragment.capacity == size == len(fragment.view)
    assert bytes(arena.view[fragment.offset : fragment.offset + size]) == b"x" * size


def test_a_released_fragment_is_handed_out_again():
    arena = arena_of(1)
    first = arena.allocate(1000)
    offset = first.offset
    first.release()
    assert arena.allocate(1000).offset == offset


def test_a_shared_fragment_comes_back_only_with_its_last_release():
    arena = arena_of(1)
    fragment = arena.allocate(SLAB_BYTES)
    fragment.share()
    fragment.release()
    assert arena.live_fragments == 1
    with pytest.raises(ArenaFull):
        arena.allocate(SLAB_BYTES)
    fragment.release()
    assert arena.live_fragments == 0
    arena.allocate(SLAB_BYTES)


def test_releasing_once_too_often_is_an_invariant_broken():
    arena = arena_of(1)
    fragment = arena.allocate(10)
    fragment.release()
    with pytest.raises(AssertionError, match="more often"):
        fragment.release()


def test_a_full_arena_says_so_and_takes_nothing():
    arena = arena_of(2)
    held = [arena.allocate(SLAB_BYTES), arena.allocate(SLAB_BYTES)]
    with pytest.raises(ArenaFull):
        arena.allocate(512)
    assert arena.in_use_bytes == 2 * SLAB_BYTES
    held.pop().release()
    assert arena.allocate(512).capacity == 512


def test_a_slab_that_stands_idle_serves_another_class():
    arena = arena_of(3)
    small = [arena.allocate(512) for _ in range(3 * 256)]
    for fragment in small:
        fragment.release()
    large = [arena.allocate(SLAB_BYTES) for _ in range(3)]
    assert len({fragment.offset for fragment in large}) == 3
    for fragment in large:
        fragment.release()
    assert len([arena.allocate(66432) for _ in range(3)]) == 3


def test_one_live_fragment_keeps_its_slab_from_other_classes():
    arena = arena_of(2)
    small = [arena.allocate(512) for _ in range(2 * 256)]
    for fragment in small[1:-1]:
        fragment.release()
    with pytest.raises(ArenaFull):
        arena.allocate(SLAB_BYTES)
    small[0].release()
    arena.allocate(SLAB_BYTES)


def test_a_cache_is_asked_to_make_room_before_an_allocation_fails():
    arena = arena_of(1)
    cached = [arena.allocate(SLAB_BYTES)]
    asked = []

    def make_room(size):
        asked.append(size)
        cached.pop().release()

    arena.on_pressure = make_room
    assert arena.allocate(700).capacity == 768
    assert asked == [768]


def test_a_block_is_in_one_piece_and_none_is_taken_where_slabs_are():
    arena = arena_of(20)
    slab = arena.allocate(SLAB_BYTES)
    blocks = [arena.allocate_block(), arena.allocate_block()]
    assert [block.capacity for block in blocks] == [BLOCK_BYTES] * 2
    assert {block.offset for block in blocks} == {4 * SLAB_BYTES, 12 * SLAB_BYTES}
    assert arena.allocate_block() is None, "of what is left, three slabs"
    for number, block in enumerate(blocks, 1):
        block.view[:] = bytes([number]) * BLOCK_BYTES
    usage = arena.usage()
    assert (usage.live_fragments, usage.in_use_bytes) == (3, SLAB_BYTES + 2 * BLOCK_BYTES)
    assert usage.slab_bytes == 17 * SLAB_BYTES
    assert arena.live_by_size() == {SLAB_BYTES: 1, BLOCK_BYTES: 2}
    blocks[0].release()
    again = arena.allocate_block()
    assert again.offset == blocks[0].offset, "a block that was released is handed out again"
    assert [arena.allocate(SLAB_BYTES).offset for _ in range(3)] == [1 * SLAB_BYTES, 2 * SLAB_BYTES, 3 * SLAB_BYTES]
    with pytest.raises(ArenaFull):
        arena.allocate(512)
    assert bytes(blocks[1].view) == bytes([2]) * BLOCK_BYTES
    slab.release()


def test_an_idle_block_becomes_slabs_and_is_none_while_one_of_them_is_in_use():
    arena = arena_of(16, poison=True)
    blocks = [arena.allocate_block(), arena.allocate_block()]
    blocks[1].release()
    slabs = [arena.allocate(SLAB_BYTES) for _ in range(8)]
    begin = blocks[1].offset
    assert sorted(slab.offset for slab in slabs) == list(range(begin, begin + BLOCK_BYTES, SLAB_BYTES))
    with pytest.raises(ArenaFull):
        arena.allocate(700)
    small = slabs.pop()
    for slab in slabs:
        slab.release()
    assert not any(arena.allocate_block() for _ in range(200)), "one of the eight is in use"
    small.release()
    assert arena.allocate(700).capacity == 768
    assert not any(arena.allocate_block() for _ in range(200))


def test_slabs_become_a_block_wherever_eight_lie_idle_side_by_side():
    arena = arena_of(12, poison=True)
    held = [arena.allocate(SLAB_BYTES) for _ in range(12)]
    held.sort(key=lambda fragment: fragment.offset)
    for fragment in held[2:11]:
        fragment.release()
    block = next(block for block in (arena.allocate_block() for _ in range(200)) if block)
    assert block.offset in {2 * SLAB_BYTES, 3 * SLAB_BYTES}
    assert arena.live_fragments == 4
    assert not arena.allocate_block()
    block.release()
    assert len([arena.allocate(SLAB_BYTES) for _ in range(9)]) == 9


def test_a_class_may_not_reserve_beyond_its_limit():
    arena = arena_of(8, shares={MemoryClass.RECEIVE: 0.5, MemoryClass.FETCH: 0.25})
    limit = arena.limit_bytes(MemoryClass.RECEIVE)
    assert limit == 4 * SLAB_BYTES
    assert arena.reserve(MemoryClass.RECEIVE, limit)
    assert not arena.reserve(MemoryClass.RECEIVE, 1)
    assert arena.reserve(MemoryClass.FETCH, SLAB_BYTES), "another class has its own limit"
    arena.unreserve(MemoryClass.RECEIVE, 10)
    assert arena.reserve(MemoryClass.RECEIVE, 10)
    assert not arena.reserve(MemoryClass.CACHE, 1), "a class without a share has none"


def test_giving_back_more_than_was_reserved_is_an_invariant_broken():
    arena = arena_of(4)
    arena.reserve(MemoryClass.FETCH, 10)
    with pytest.raises(AssertionError, match="FETCH"):
        arena.unreserve(MemoryClass.FETCH, 11)


def test_shares_beyond_the_whole_are_refused():
    with pytest.raises(ValueError):
        arena_of(4, shares={MemoryClass.RECEIVE: 0.6, MemoryClass.CACHE: 0.6})


def test_a_poisoning_arena_overwrites_what_is_released():
    arena = arena_of(1, poison=True)
    fragment = arena.allocate(512)
    kept = fragment.view
    kept[:5] = b"hello"
    fragment.release()
    assert bytes(kept) == b"\xdb" * 512


def test_a_poisoning_arena_finds_a_write_after_release():
    arena = arena_of(1, poison=True)
    fragment = arena.allocate(512)
    kept = fragment.view
    fragment.release()
    kept[3] = 0
    with pytest.raises(AssertionError, match="after its release"):
        arena.allocate(512)


def test_a_poisoning_arena_says_who_leaked():
    arena = arena_of(2, poison=True)
    arena.allocate(512)
    arena.allocate(600).release()
    (leak,) = arena.leaks()
    assert "test_a_poisoning_arena_says_who_leaked" in leak


def test_the_environment_switches_poisoning_on(monkeypatch):
    monkeypatch.setenv("MILLSTREAM_POISON", "1")
    arena = arena_of(1)
    view = arena.allocate(512).view
    assert bytes(view) == b"\xdb" * 512


def resident_bytes(view):
    """What the mapping that a view lies in costs this process."""
    address, lies_in_it = ctypes.addressof(ctypes.c_char.from_buffer(view)), False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as smaps:
        for line in smaps:
            words = line.split()
            if bounds := re.fullmatch(r"([0-9a-f]+)-([0-9a-f]+)", words[0]):
                lies_in_it = int(bounds[1], 16) <= address < int(bounds[2], 16)
            elif lies_in_it and words[0] == "Rss:":
                return int(words[1]) * 1024
    raise AssertionError("it is not mapped")


def test_untouched_memory_costs_nothing():
    arena = arena_of(2048)  # 256 MiB
    fragments = [arena.allocate(512) for _ in range(10)]
    for fragment in fragments:
        fragment.view[:] = bytes(512)
    assert 10 * 512 <= resident_bytes(arena.view) < 256 * 1024


def test_the_descriptor_of_an_arena_is_closed_once_it_is_mapped(monkeypatch):
    made = []
    make = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda *args: made.append(make(*args)) or made[-1])
    arena = arena_of(1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
    assert len(arena.view) == SLAB_BYTES


def test_a_forked_process_sees_bytes_and_accounting():
    arena = arena_of(4)
    fragment = arena.allocate(1000)
    fragment.view[:3] = b"abc"
    arena.reserve(MemoryClass.CACHE, 77)
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        usage = arena.usage()
        seen = bytes(arena.view[fragment.offset : fragment.offset + 3])
        text = f"{seen.decode()} {usage.live_fragments} {usage.in_use_bytes} {usage.reserved_bytes[MemoryClass.CACHE]}"
        os.write(writable, text.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(readable, 100) == b"abc 1 1152 77"
    os.close(readable)
    os.close(writable)


def test_usage_counts_live_fragments_by_size():
    arena = arena_of(4)
    held = [arena.allocate(512), arena.allocate(512), arena.allocate(100_000)]
    assert arena.live_by_size() == {512: 2, 131072: 1}
    held[0].release()
    usage = arena.usage()
    assert (usage.live_fragments, usage.in_use_bytes) == (2, 512 + 131072)


def of_mapping(field):
    """A line of /proc/self/smaps of the first mapping of arena 77, as a number."""
    with open("/proc/self/smaps") as smaps:
        part = smaps.read().partition("memfd:millstream-arena-77")[2]
    return int(re.search(rf"^{field}:\s+(\d+) kB", part, re.MULTILINE)[1])


def test_a_locked_arena_is_in_memory_as_a_whole():
    arena = Arena.create(77, 1 << 20)
    assert of_mapping("Rss") < 1024
    arena.lock()
    assert of_mapping("Rss") >= 1024
    assert of_mapping("Locked") >= 1024


def test_a_bound_arena_takes_its_pages_from_its_node():
    arena = Arena.create(78, 1 << 20)
    if not os.path.exists("/proc/self/numa_maps"):
        pytest.skip("this kernel has no memory policies")
    arena.bind(0)
    arena.view[:] = bytes(len(arena.view))
    with open("/proc/self/numa_maps") as maps:
        mapping = next(line for line in maps if "millstream-arena-78" in line)
    assert " bind:0 " in mapping
    assert " N0=" in mapping


def test_a_node_that_is_not_there_is_refused():
    if not os.path.exists("/proc/self/numa_maps"):
        pytest.skip("this kernel has no memory policies")
    with pytest.raises(OSError, match="nvalid"):
        Arena.create(79, 1 << 20).bind(900)
