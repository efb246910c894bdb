"""What the benches change in the archive process fits the process as it is: each is run in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

READS = """
import sys, uuid
from bench import {hook}
{hook}.{install}(None)
from millstream.format.manifest import ArchiveId
from millstream.objects import open_store
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import HotTier, WarmBlocks
from millstream.tiers.hot_tier.slots import MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier
from millstream.tiers.messages import Read, Target, Upload
from millstream.tiers.kept import Kept
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.uploading import Pace, upload
from millstream.wire.records import build_batch

directory, owner, offsets = sys.argv[1], ArchiveId(uuid.UUID(int=5), 0), range(0, 12)
log = b"".join(build_batch([(None, bytes(400_000), (), 1_000)], base_offset=one, leader_epoch=1) for one in offsets)
path = f"{{directory}}/{{0:020}}.log"
open(path, "wb").write(log)
store = open_store(f"file://{{directory}}/bucket")
command = Upload(1, owner, path, 0, 0, len(offsets), len(log), 1, [], 0)
segment = upload(store, SystemDisk(), command, Pace(1e12))
stats = StatsSlab(0, "archive")
tier = HotTier(SlottedTier(MemorySlots(), "lru", 8, 10**15), stats)
warm = WarmBlocks(tier, "read", 10, "memory", 1 << 30)
served = []
reader = ArchiveReader(store, warm=warm if {with_warm} else None, served=served.append)
if {memory_bytes}:
    reader._blocks = Kept({memory_bytes}, len)

def read():
    offset = 0
    while offset < len(offsets):
        buffer = memoryview(bytearray(500_000))
        found = reader.read(Read(1, owner, Target.of(segment), offset, len(offsets), 450_000, True, [0, 0]), [buffer])
        assert found.size_bytes > 400_000
        offset += 1

read()
{between}
read()
print(" ".join(served))
"""


def run(tmp_path, hook, install, *, memory_bytes, with_warm=True, between="", **env):
    """What served each block, while a segment of four blocks is read twice."""
    script = READS.format(hook=hook, install=install, memory_bytes=memory_bytes, with_warm=with_warm, between=between)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[3],
        env={"PATH": "", **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FILLED = "import time; [time.sleep(0.01) for _ in range(3000) if stats.counter('hot_tier_fills').value < 4]"


def test_hits_of_the_warm_cache_are_noted(tmp_path):
    hits = tmp_path / "hits"
    served = run(tmp_path, "warm_hooks", "install", memory_bytes=1, between=FILLED, MILLSTREAM_HITS=str(hits))
    rows = [line.split() for line in hits.read_text().splitlines()]
    assert len(rows) == served.count("hot_tier") > 3
    assert all(float(at_s) > 1e9 and float(took_us) >= 0 for at_s, took_us in rows)


def test_a_reader_of_unread_blocks_alone_asks_the_store_for_each_block_again(tmp_path):
    served = run(
        tmp_path,
        "warm_hooks",
        "unread_only",
        memory_bytes=0,
        with_warm=False,
        MILLSTREAM_HITS=str(tmp_path / "h"),
    )
    half = len(served) // 2
    assert served[:half] == served[half:], "the second reader is served as the first was"
    assert served[:half].count("store") >= 1
    assert served[:half].count("memory") > served[:half].count("store"), "what one reader goes on with is kept"


def test_a_trace_has_a_line_for_each_block_that_was_read_from_below_the_memory(tmp_path):
    trace = tmp_path / "trace"
    run(tmp_path, "trace_reads", "install", memory_bytes=0, with_warm=False, MILLSTREAM_TRACE=str(trace))
    rows = [line.split() for line in trace.read_text().splitlines()]
    bases = {int(row[4]) for row in rows if row[0] == "read"}
    assert {0, 2} <= bases <= {0, 2, 4, 6, 8}, "what was read ahead is in memory"
    assert {int(row[4]) for row in rows if row[0] == "at"} > bases - {0}, "a reader goes on at offsets in memory, too"
    assert {row[2] for row in rows} == {"1", "2"}
    times = [int(row[1]) for row in rows]
    assert times == sorted(times)


@pytest.mark.parametrize("install", ["slow_store:install", "warm_hooks:install", "warm_hooks:unread_only"])
def test_the_hooks_of_the_arms_have_a_name_that_is_there(install):
    import importlib

    module, _, name = install.partition(":")
    assert callable(getattr(importlib.import_module(f"bench.{module}"), name))
