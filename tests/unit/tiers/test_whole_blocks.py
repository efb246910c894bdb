"""Blocks are as large as a fetch, fill the slots of the warm cache, and are read whole, with the same batches."""

import random
import uuid

import pytest

from millstream.format.archive import BLOCK_BYTES, ends_before
from millstream.format.manifest import ArchiveId
from millstream.objects import open_store
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import reading, uploading
from millstream.tiers.hot_tier import Hint, HotTier
from millstream.tiers.hot_tier.filling import WarmBlocks
from millstream.tiers.hot_tier.slots import PIECE_BYTES, FileSlots, MemorySlots, slots_of
from millstream.tiers.hot_tier.slotted import SlottedTier
from millstream.tiers.messages import Read, Target, Upload
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.uploading import Pace, upload
from millstream.wire.records import build_batch

OWNER = ArchiveId(uuid.UUID(int=5), 0)


def blocks_of(sizes):
    """How a sequence of batches is cut."""
    blocks, gathered = [], 0
    for size in sizes:
        if ends_before(gathered, size):
            blocks.append(gathered)
            gathered = 0
        gathered += size
    return blocks  # the last one is the rest


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([100], id="one small record"),
        pytest.param([1_092], id="1 KB"),
        pytest.param([16_384], id="Java's batch.size"),
        pytest.param([131_072], id="128 KiB"),
        pytest.param([262_144, 300_000, 349_525], id="a third"),
        pytest.param([400_000, 524_288, 600_000], id="around a half"),
        pytest.param([630_000, 650_000], id="two fill a slot"),
        pytest.param([700_000, 786_432, 900_000], id="three quarters"),
        pytest.param([999_900, 1_000_000], id="librdkafka's batch.size, Spark's sink"),
        pytest.param([1_048_576], id="message.max.bytes"),
    ],
)
def test_slots_are_more_than_half_full_and_no_block_of_a_mebibyte_needs_two(sizes):
    chance = random.Random(1)
    for chosen in (*([one] for one in sizes), sizes):
        blocks = blocks_of(chance.choice(chosen) for _ in range(40_000_000 // max(chosen)))
        assert len(blocks) > 20
        assert all(slots_of(one) == 1 for one in blocks)
        assert sum(blocks) > 0.53 * len(blocks) * PIECE_BYTES, (chosen, sum(blocks) / len(blocks))
        if max(chosen) <= BLOCK_BYTES // 4:
            assert max(blocks) <= BLOCK_BYTES, "a fetch of a mebibyte takes it whole"


def test_batches_of_any_one_size_fill_half_of_a_slot():
    for size in range(100, BLOCK_BYTES + 1, 997):
        block = 0
        while not ends_before(block, size):
            block += size
        assert PIECE_BYTES // 2 <= block <= PIECE_BYTES, size


class World:
    """An archived segment of several blocks."""

    def __init__(self, directory, seed, warm):
        chance = random.Random(seed)
        (directory / "bucket").mkdir()
        store = open_store(f"file://{directory}/bucket")
        self.batches, offset = [], 7
        for _ in range(120):
            count = chance.randint(1, 4)
            data = build_batch(
                [(None, chance.randbytes(chance.choice([5, 60, 700])), (), 1000 + offset)] * count, base_offset=offset
            )
            self.batches.append((offset, offset + count, data))
            offset += count
        self.end = offset
        log = b"".join(data for *_, data in self.batches)
        path = directory / f"{7:020}.log"
        path.write_bytes(log)
        command = Upload(1, OWNER, str(path), 7, 7, offset, len(log), 1, [], 0)
        self.segment = upload(store, SystemDisk(), command, Pace(1e12))
        tier = None
        if warm is not None:
            slots = MemorySlots() if warm == "memory" else FileSlots(f"{directory}/cache", "shard-0", warm)
            provider = SlottedTier(slots, "lru", 100, 60_000, 0.0)
            tier = WarmBlocks(HotTier(provider, StatsSlab(0, "archive")), "read", 10_000, warm, 1)
            tier.filling.put = lambda owner, base, block, hint: provider.put(owner, base, block, hint)
        self.served = []
        self.reader = ArchiveReader(store, 0, warm=tier, served=self.served.append)

    def expected(self, offset, end, room, max_bytes, minimum_one):
        found = []
        for first, after, data in self.batches:
            if after <= offset:
                continue
            size = sum(map(len, found)) + len(data)
            if first >= end or (size > min(room, max_bytes) and (found or not minimum_one)):
                break
            if size > room:
                return None
            found.append(data)
        return b"".join(found)

    def read(self, offset, end, room, max_bytes, minimum_one):
        buffer, cut = bytearray(room), random.Random(offset).randrange(room + 1)
        command = Read(1, OWNER, Target.of(self.segment), offset, end, max_bytes, minimum_one, [0, room])
        views = [memoryview(buffer)[:cut], memoryview(buffer)[cut:]]
        found = self.reader.read(command, views)
        return None if found.need_bytes else bytes(buffer[: found.size_bytes])


@pytest.mark.parametrize("warm", [None, "memory", "direct", "buffered"])
@pytest.mark.parametrize("seed", range(3))
def test_a_read_gives_the_batches_that_were_asked_for(tmp_path, monkeypatch, seed, warm):
    monkeypatch.setattr(uploading, "BLOCK_BYTES", 3000)
    world = World(tmp_path, seed, warm)
    chance = random.Random(seed)
    walked = []
    batches = reading._batches
    monkeypatch.setattr(reading, "_batches", lambda *of: (walked.append(1), batches(*of))[1])
    ended_early = 0
    for _ in range(300):
        offset = chance.randrange(7, world.end)
        end = chance.choice([world.end, chance.randint(offset, world.end)])
        room, max_bytes = chance.choice([500, 4000, 20_000, 1 << 20]), chance.choice([1, 2900, 9000, 1 << 20])
        minimum_one = chance.random() < 0.7
        wanted = world.expected(offset, end, room, max_bytes, minimum_one)
        found, case = world.read(offset, end, room, max_bytes, minimum_one), (offset, end, room, max_bytes)
        if found != wanted:
            assert found is not None and wanted is not None, case
            assert wanted.startswith(found) and 8 * len(found) >= 7 * min(room, max_bytes), case
            ended_early += 1
    assert ended_early < 60
    assert len(walked) < 0.7 * len(world.served), "most blocks are taken whole"
    assert ("hot_tier" in world.served) == (warm is not None)


def test_a_reader_of_everything_walks_no_block(tmp_path, monkeypatch):
    monkeypatch.setattr(uploading, "BLOCK_BYTES", 3000)
    world = World(tmp_path, 5, None)
    monkeypatch.setattr(reading, "_batches", None)
    assert world.read(7, world.end, 1 << 20, 1 << 20, True) == b"".join(data for *_, data in world.batches)


@pytest.mark.parametrize("io", ["memory", "direct", "buffered"])
def test_a_slot_with_a_block_of_another_size_is_no_hit(tmp_path, io):
    slots = MemorySlots() if io == "memory" else FileSlots(f"{tmp_path}/cache", "shard-0", io)
    provider = SlottedTier(slots, "lru", 10, 60_000, 0.0)
    tier = HotTier(provider, StatsSlab(0, "archive"))
    for size in (10, 4096, 4097, 500_000):
        block = memoryview(random.Random(size).randbytes(size))
        assert provider.put(OWNER, size, block, Hint(1000))
        assert bytes(provider.get(OWNER, size)) == block
    (place,) = [one for one in provider._places.values() if one.size_bytes == 4096]
    slots.write(place.slots[0], OWNER, 4096, memoryview(bytes(4000)))
    assert tier.get(OWNER, 4096, 0) is None
    provider.close()
