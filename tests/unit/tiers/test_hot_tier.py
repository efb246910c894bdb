"""The warm cache: what it keeps, what leaves it, and that nothing that happens to it reaches a reader."""

import errno
import os
import uuid
from types import SimpleNamespace

import pytest

from millstream.core.eviction import ReaderId
from millstream.errors import Rejected
from millstream.format.manifest import ArchiveId
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import SLOT_BYTES, FileSlots, HotTier, MemorySlots

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


def made(tmp_path=None, slots_max=4, policy="lru", age_max_ms=600_000):
    clock = Clock()
    stats = StatsSlab(0, "archive")
    slots = MemorySlots() if tmp_path is None else FileSlots(str(tmp_path / "cache"), "shard-0", clock)
    return HotTier(slots, policy, slots_max, age_max_ms, stats, lambda: NOW_MS, clock), slots, clock, stats


@pytest.mark.parametrize("on_disk", [False, True])
def test_blocks_are_found_again_until_others_take_their_place(tmp_path, on_disk):
    tier, _, _, stats = made(tmp_path if on_disk else None)
    for number in range(6):
        tier.put(OWNER, number, block(number), NOW_MS)
    assert [tier.get(OWNER, number) for number in range(2)] == [None, None]
    assert [tier.get(OWNER, number) for number in range(2, 6)] == [block(number) for number in range(2, 6)]
    assert tier.get(OTHER, 5) is None
    assert stats.counter("hot_tier_evictions", reason="capacity").value == 2
    assert stats.gauge("hot_tier_size_bytes").value == 4000
    if on_disk:
        assert (tmp_path / "cache" / "shard-0").stat().st_size <= 4 * SLOT_BYTES, "the size is a hard limit"


def test_old_data_and_large_blocks_stay_out(tmp_path):
    tier, _, _, _ = made(tmp_path, age_max_ms=1000)
    tier.put(OWNER, 1, block(1), NOW_MS - 1001)
    tier.put(OWNER, 2, block(2, SLOT_BYTES), NOW_MS)
    tier.put(OWNER, 3, block(3, SLOT_BYTES - 100), NOW_MS)
    assert [tier.get(OWNER, number) is None for number in (1, 2, 3)] == [True, True, False]


def test_what_the_next_reader_needs_first_stays():
    tier, _, _, _ = made(policy="interval", slots_max=3)
    tier.reader_at(OWNER, ReaderId(1), 10, NOW_MS - 50_000)
    for number in range(3):
        tier.put(OWNER, 10 + number, block(number), NOW_MS - 50_000 + 1000 * number)
    tier.put(OWNER, 0, block(9), NOW_MS - 60_000)
    assert tier.get(OWNER, 0) is None, "no reader is behind it"
    assert all(tier.get(OWNER, 10 + number) is not None for number in range(3))


def test_a_damaged_block_is_a_miss_and_three_switch_the_tier_off_for_a_minute(tmp_path):
    tier, _, clock, stats = made(tmp_path)
    for number in range(4):
        tier.put(OWNER, number, block(number), NOW_MS)
    with (tmp_path / "cache" / "shard-0").open("r+b") as file:
        for number in range(3):
            file.seek(number * SLOT_BYTES + 500)
            file.write(b"damage")
    assert [tier.get(OWNER, number) for number in range(3)] == [None] * 3
    assert tier.get(OWNER, 3) is None, "it is off"
    tier.put(OWNER, 7, block(7), NOW_MS)
    assert tier.get(OWNER, 7) is None
    clock.now_s += 61
    tier.put(OWNER, 7, block(7), NOW_MS)
    assert tier.get(OWNER, 7) == block(7)
    assert stats.counter("hot_tier_evictions", reason="fault").value == 4


def test_a_truncated_file_is_a_miss(tmp_path):
    tier, _, _, _ = made(tmp_path)
    tier.put(OWNER, 1, block(1), NOW_MS)
    os.truncate(tmp_path / "cache" / "shard-0", 100)
    assert tier.get(OWNER, 1) is None


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_disk_that_fails_switches_the_tier_off(tmp_path, verb):
    tier, slots, clock, _ = made(tmp_path)
    tier.put(OWNER, 1, block(1), NOW_MS)

    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    setattr(slots, verb, fails)
    tier.put(OWNER, 2, block(2), NOW_MS)
    assert tier.get(OWNER, 1) is None
    delattr(slots, verb)
    clock.now_s += 61
    tier.put(OWNER, 2, block(2), NOW_MS)
    assert tier.get(OWNER, 2) == block(2)


def test_a_disk_with_little_space_takes_no_more(tmp_path, monkeypatch):
    tier, _, clock, _ = made(tmp_path)
    tier.put(OWNER, 1, block(1), NOW_MS)
    with monkeypatch.context() as little:
        little.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_blocks=100, f_bavail=5))
        clock.now_s += 6
        tier.put(OWNER, 2, block(2), NOW_MS)
        assert (tier.get(OWNER, 1), tier.get(OWNER, 2)) == (block(1), None)
    clock.now_s += 6
    tier.put(OWNER, 2, block(2), NOW_MS)
    assert tier.get(OWNER, 2) == block(2)


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
