"""The warm cache: what it keeps, what leaves it, and that nothing that happens to it reaches a reader."""

import errno
import os
import uuid
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from millstream.core.eviction import ReaderId
from millstream.errors import Rejected
from millstream.format.manifest import ArchiveId
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import Hint, HotTier, TierStats
from millstream.tiers.hot_tier.slots import PAGE_BYTES, PIECE_BYTES, SLOT_BYTES, FileSlots, MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier

OWNER = ArchiveId(uuid.UUID(int=1), 0)
OTHER = ArchiveId(uuid.UUID(int=1), 1)
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def a_disk_with_space(monkeypatch):
    """The tests' own disk may be nearly full."""
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_blocks=100, f_bavail=50))


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def block(number, size=1000):
    return memoryview(bytes([number % 256]) * size)


class Made:
    """A tier with its parts. Blocks are checked against the checksum of what ``block`` makes."""

    def __init__(self, directory=None, slots_max=4, policy="lru", age_max_ms=600_000, io="auto"):
        self.clock = Clock()
        self.stats = StatsSlab(0, "archive")
        self.slots = MemorySlots() if directory is None else FileSlots(str(directory / "cache"), "shard-0", io)
        now_ms = lambda: int(1000 * self.clock.now_s)  # noqa: E731
        self.provider = SlottedTier(self.slots, policy, slots_max, age_max_ms, 0.1, now_ms, self.clock)
        self.tier = HotTier(self.provider, self.stats, self.clock)

    def put(self, number, data=None, appended_ms=NOW_MS, owner=OWNER):
        self.tier.put(owner, number, block(number) if data is None else data, Hint(appended_ms))

    def get(self, number, data=None, owner=OWNER):
        return self.tier.get(owner, number, crc32c(block(number) if data is None else data))

    def refused(self, reason):
        return self.stats.counter("hot_tier_refused_fills", reason=reason).value

    def left(self, reason):
        return self.stats.counter("hot_tier_evictions", reason=reason).value


@pytest.mark.parametrize("io", [None, "auto", "direct", "buffered"])
def test_blocks_are_found_again_until_others_take_their_place(tmp_path, io):
    made = Made() if io is None else Made(tmp_path, io=io)
    for number in range(6):
        made.put(number)
    assert [made.get(number) for number in range(2)] == [None, None]
    assert [made.get(number) for number in range(2, 6)] == [block(number) for number in range(2, 6)]
    assert made.get(5, owner=OTHER) is None
    assert made.left("capacity") == 2
    assert made.stats.gauge("hot_tier_size_bytes").value == 4000
    assert made.stats.gauge("hot_tier_hit_rate").value == 4 * 1_000_000 // 7
    if io is not None:
        assert (tmp_path / "cache" / "shard-0").stat().st_size <= 4 * SLOT_BYTES, "the size is a hard limit"


@pytest.mark.parametrize("io", [None, "auto", "direct", "buffered"])
@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 2_000_000, 4 * PIECE_BYTES])
def test_blocks_of_large_batches_are_kept_in_several_slots(tmp_path, io, size):
    made = Made() if io is None else Made(tmp_path, io=io)
    large = memoryview(os.urandom(size))
    made.put(1, large)
    assert made.get(1, large) == large
    made.put(2)
    made.put(3, large)
    assert made.get(3, large) == large
    assert made.tier.stats().size_bytes <= 4 * PIECE_BYTES
    made.tier.invalidate(OWNER)
    for number in range(4, 8):
        made.put(number)
    assert all(made.get(number) == block(number) for number in range(4, 8)), "their slots are free again"
    if io is not None:
        assert (tmp_path / "cache" / "shard-0").stat().st_size <= 4 * SLOT_BYTES, "the size is a hard limit"


def test_old_data_are_kept_for_their_time_in_the_cache(tmp_path):
    made = Made(tmp_path)
    made.put(1, appended_ms=NOW_MS - 400 * 86_400_000)
    made.clock.now_s += 599
    made.tier.sweep()
    assert made.get(1) == block(1)
    made.clock.now_s += 2
    made.tier.sweep()
    assert (made.get(1), made.left("age")) == (None, 1)


def test_what_is_not_kept_is_counted_with_its_reason(tmp_path, monkeypatch):
    made = Made(tmp_path, policy="age")
    made.put(1, memoryview(bytes(4 * PIECE_BYTES + 1)))
    assert made.refused("too_large") == 1
    for number in range(2, 6):
        made.put(number)
    made.put(6, appended_ms=NOW_MS - 1)
    assert made.refused("worth_less") == 1
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_blocks=100, f_bavail=5))
    made.clock.now_s += 6
    made.put(7)
    assert made.refused("low_disk") == 1
    made.tier._off("of the test")
    made.put(8)
    assert made.refused("off") == 1


def test_what_the_next_reader_needs_first_stays():
    made = Made(policy="interval", slots_max=3)
    made.tier.reader_at(OWNER, ReaderId(1), 10, NOW_MS - 50_000)
    for number in range(3):
        made.put(10 + number, appended_ms=NOW_MS - 50_000 + 1000 * number)
    made.put(0, appended_ms=NOW_MS - 60_000)
    assert made.get(0) is None, "no reader is behind it"
    assert all(made.get(10 + number) is not None for number in range(3))


def test_damaged_blocks_are_misses_and_others_stay(tmp_path):
    made = Made(tmp_path, io="buffered")
    for number in range(4):
        made.put(number)
    with (tmp_path / "cache" / "shard-0").open("r+b") as file:
        for number, place in enumerate((PAGE_BYTES + 500, 10, PAGE_BYTES)):  # data, header, data
            file.seek(number * SLOT_BYTES + place)
            file.write(b"damage")
    assert [made.get(number) for number in range(3)] == [None] * 3
    assert made.get(3) == block(3)
    assert made.left("fault") == 3
    made.put(1)
    assert made.get(1) == block(1)


def test_a_truncated_file_is_a_miss(tmp_path):
    made = Made(tmp_path)
    made.put(1)
    os.truncate(tmp_path / "cache" / "shard-0", 100)
    assert made.get(1) is None
    made.put(2)
    assert made.get(2) == block(2)


@pytest.mark.parametrize("verb", ["read", "write", "free_share"])
def test_a_disk_that_fails_switches_the_tier_off(tmp_path, verb):
    made = Made(tmp_path)
    made.put(1)

    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    setattr(made.slots, verb, fails)
    made.clock.now_s += 6
    made.put(2)
    assert made.get(1) is None
    delattr(made.slots, verb)
    made.clock.now_s += 61
    made.put(2)
    assert made.get(2) == block(2)


def test_a_disk_with_little_space_shrinks_the_cache_until_there_is_space_again(tmp_path, monkeypatch):
    made = Made(tmp_path, slots_max=10)
    path = tmp_path / "cache" / "shard-0"
    for number in range(10):
        made.put(number, block(number, 500_000))
    blocks = path.stat().st_blocks
    for free, kept in ((5, 8), (12, 8), (20, 10)):
        with monkeypatch.context() as little:
            little.setattr(os, "fstatvfs", lambda fd, free=free: SimpleNamespace(f_blocks=100, f_bavail=free))
            made.clock.now_s += 6
            made.tier.sweep()
            for number in (20, 21):
                made.put(number, block(number, 500_000))
        assert made.tier.stats().blocks == kept, free
        if free == 5:
            assert path.stat().st_blocks < blocks, "the space is given back"
    assert made.left("low_disk") == 2


def test_blocks_that_nobody_can_ask_for_leave_at_once():
    made = Made()
    for number in (1, 2, 3):
        made.put(number)
    made.put(1, owner=OTHER)
    made.tier.invalidate(OWNER, 0, 3)
    assert [made.get(1), made.get(2), made.get(3)] == [None, None, block(3)]
    assert made.get(1, owner=OTHER) == block(1)
    assert made.left("invalid") == 2


def test_a_block_that_is_given_up_while_it_is_written_is_not_found():
    made = Made()
    write = made.slots.write

    def slow(*arguments):
        made.tier.invalidate(OWNER)
        write(*arguments)

    made.slots.write = slow
    made.put(1)
    made.slots.write = write
    assert made.get(1) is None
    for number in range(2, 6):
        made.put(number)
    assert all(made.get(number) == block(number) for number in range(2, 6)), "its slot is free again"


def test_old_blocks_leave_with_the_sweep():
    made = Made(age_max_ms=1000)
    made.put(1)
    made.clock.now_s += 1.002
    made.tier.sweep()
    assert (made.tier.stats().blocks, made.left("age")) == (0, 1)


class Hostile:
    """A provider with an error for everything."""

    def __getattr__(self, verb):
        def fails(*_):
            raise RuntimeError(verb)

        return fails


def test_no_error_of_a_provider_reaches_a_reader():
    clock = Clock()
    tier = HotTier(Hostile(), StatsSlab(0, "archive"), clock)
    for _ in range(2):
        assert tier.get(OWNER, 1, 0) is None
        clock.now_s += 61
        tier.put(OWNER, 1, block(1), Hint(NOW_MS))
        clock.now_s += 61
        tier.reader_at(OWNER, ReaderId(1), 1, NOW_MS)
        tier.invalidate(OWNER)
        tier.sweep()
        assert tier.stats() == TierStats()
        assert not tier.is_on


def test_a_directory_that_others_may_enter_or_that_is_in_use_is_refused(tmp_path):
    os.mkdir(tmp_path / "open", 0o755)
    os.symlink(tmp_path / "open", tmp_path / "link")
    for path, reason in ((str(tmp_path / "open"), "0700"), (str(tmp_path / "link"), "0700"), ("cache", "absolute")):
        with pytest.raises(Rejected, match=reason):
            FileSlots(path, "shard-0")
    held = FileSlots(str(tmp_path / "cache"), "shard-0")
    with pytest.raises(Rejected, match="in use"):
        FileSlots(str(tmp_path / "cache"), "shard-0")
    held.close()


def test_old_blocks_of_a_range_that_was_replaced_are_no_damage():
    made = Made()
    for number in range(4):
        made.put(number)
    made.tier.replaced(OWNER, 0, 3)
    assert [made.get(number) is None for number in range(4)] == [True, True, True, False]
    for _ in range(5):
        made.put(1)  # by a reader that began before
        assert made.get(1, block(9)) is None
    assert made.tier.is_on
    assert made.left("fault") == 0
    made.put(4)
    assert made.get(4, block(9)) is None
    assert made.left("fault") == 1, "elsewhere it is damage"
