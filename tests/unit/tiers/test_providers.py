"""What every warm cache must do, asked of the broker's own and of the example of another one, found by its name."""

import os
import shutil
import sys
import tomllib
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.config.errors import ConfigError
from millstream.config.settings import Settings
from millstream.errors import Rejected
from millstream.format.manifest import ArchiveId
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import Hint, TierOptions, open_warm_blocks
from millstream.tiers.hot_tier.provider import EVERY_OFFSET, find_provider
from millstream.tiers.hot_tier.slots import PIECE_BYTES, FileSlots, MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier

EXAMPLE = Path(__file__).parents[3] / "examples" / "hot_tier"
ONE, TWO = ArchiveId(uuid.UUID(int=1), 0), ArchiveId(uuid.UUID(int=2), 0)
NOW_MS = 1_700_000_000_000
SLOTS = 4


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example as an installer would leave it."""
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = tmp_path / "site" / f"{declared['name'].replace('-', '_')}-{declared['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 1\n")
    ((group, names),) = declared["entry-points"].items()
    (about / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()))
    shutil.copy(EXAMPLE / "compressed_tier.py", about.parent)
    monkeypatch.syspath_prepend(str(about.parent))
    yield "compressed"
    sys.modules.pop("compressed_tier", None)


@pytest.fixture(params=["memory", "nvme", "compressed"])
def provider(request, tmp_path, installed, monkeypatch):
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_blocks=100, f_bavail=50))
    if request.param == "compressed":
        size_bytes = SLOTS * 100_100  # of blocks that cannot be compressed
        made = find_provider(installed)(
            TierOptions(0, size_bytes, PIECE_BYTES, 600_000, str(tmp_path / "cache"), "lru", "auto", 0.1)
        )
    else:
        slots = MemorySlots() if request.param == "memory" else FileSlots(str(tmp_path / "cache"), "shard-0")
        made = SlottedTier(slots, "lru", SLOTS, 600_000, now_ms=lambda: NOW_MS)
    yield made
    made.close()


def block(number):
    return memoryview(bytes([number]) + os.urandom(100_000))


def test_a_provider_returns_what_it_was_given_or_nothing(provider):
    blocks = {(owner, number): block(number) for owner in (ONE, TWO) for number in range(5)}
    for (owner, number), data in blocks.items():
        assert provider.put(owner, number, data, Hint(NOW_MS))
    found = {key: provider.get(*key) for key in blocks}
    assert sum(data is not None for data in found.values()) == SLOTS == provider.stats().blocks
    assert all(data in (None, blocks[key]) for key, data in found.items())
    assert provider.stats().evicted["capacity"] == len(blocks) - SLOTS


def test_a_lease_outlives_the_block(provider):
    data = block(1)
    provider.put(ONE, 1, data, Hint(NOW_MS))
    lease = provider.get(ONE, 1)
    for number in range(2, 2 + 2 * SLOTS):
        provider.put(ONE, number, block(number), Hint(NOW_MS))
    provider.invalidate(None, 0, EVERY_OFFSET)
    assert lease == data


def test_a_provider_forgets_what_it_is_told_to(provider):
    for owner, number in ((ONE, 1), (ONE, 2), (TWO, 1)):
        provider.put(owner, number, block(number), Hint(NOW_MS))
    provider.invalidate(ONE, 0, 2)
    assert [provider.get(*key) is None for key in ((ONE, 1), (ONE, 2), (TWO, 1))] == [True, False, False]
    provider.invalidate(None, 0, EVERY_OFFSET)
    assert (provider.stats().blocks, provider.stats().size_bytes) == (0, 0)
    provider.sweep()


def test_an_installed_cache_is_found_by_its_name(tmp_path, installed):
    settings = Settings(data_dir=str(tmp_path), shards=1, cache_type=installed)
    warm = open_warm_blocks(settings, 0, StatsSlab(0, "archive"))
    assert (warm.name, type(warm.tier._provider).__name__) == ("compressed", "CompressedTier")


def test_a_cache_that_is_not_installed_is_named_with_those_that_are(tmp_path, installed):
    with pytest.raises(Rejected, match="there are none, memory, nvme, compressed"):
        find_provider("redis")
    assert open_warm_blocks(Settings(data_dir=str(tmp_path), cache_type="redis"), 0, StatsSlab(0, "archive")) is None


def test_warmup_is_another_name_for_how_it_is_filled():
    assert open_warm_blocks(Settings(shards=1, cache_type="memory", cache_warmup=False), 0, StatsSlab()).fills_on_write
    with pytest.raises(ConfigError, match="contradicts"):
        Settings(cache_warmup=False, cache_fill="both")
    with pytest.raises(ConfigError, match="contradicts"):
        Settings(cache_warmup=True, cache_fill="write")
    assert Settings(cache_warmup=False, cache_fill="write").cache_fill == "write"
