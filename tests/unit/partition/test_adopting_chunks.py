"""Chunks that a leader sends: a power failure before every operation of the disk leaves the old log or the new one."""

import random
from typing import Any, cast

import pytest
from adopting_support import TOPIC, Node, event_batch, received

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.format.events.chunk import ChunkLimits, log_directory
from millstream.model.events import PartitionIndex
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.exporting import read_batches
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import recover
from sim.engine.disk import KEPT, LOST, TORN, SimDisk
from sim.engine.local_storage import DATA_DIR, LocalShard

OLD = 3
SENT = 40


def found_on(disk: SimDisk, seed: int) -> int:
    """Recover what a power failure left; how many events there are, all of which are checked."""
    chunks: Any = ChunkDisk(disk)
    directory = log_directory(DATA_DIR, TOPIC, "t", PartitionIndex(0), events=True)
    place = LogPlace(directory, "t/0", 1 << 30, replicated=True, chunk_limits=ChunkLimits(max_events_per_chunk=6))
    report = recover(chunks, DATA_DIR, lambda group: place if group == 7 else None, shards=1, now_ms=1)
    assert not report.faults, report.faults
    shard = LocalShard(chunks, random.Random(seed), clean=report.clean)
    limits = {"topic.kind": "events", "events.partition": '{"max_events_per_chunk": 6}'}
    config = topic_config(limits, Settings(data_dir="/nowhere"))
    log = shard.storage.registry.open_partition_log(7, TOPIC, "t", 0, config, clean=report.clean, replicated=True)
    end, offset, data = log.next_offset, 0, b""
    while offset < end:
        part = shard.call(read_batches, log, shard.storage.reads.cold, offset, end, 1 << 20)
        data, offset = data + bytes(part.buf), part.next_offset
        part.buf.release()
    for offset in range(end):
        size = len(event_batch(offset))
        assert data[:8] == offset.to_bytes(8, "big") and data[16:size] == event_batch(offset)[16:]
        data = data[size:]
    assert not data
    return end


@pytest.mark.parametrize("left", [LOST, TORN, KEPT])
def test_a_power_failure_while_chunks_are_received_leaves_the_old_log_or_the_new_one(left: str) -> None:
    source, target = Node(31, events=True), Node(32, events=True)
    source.fill(range(SENT))
    target.fill(range(OLD))
    disk: SimDisk = cast(Any, target.shard.disk)._disk
    rng = random.Random(33)
    ends: list[int] = []

    def look(kind: str, path: str) -> None:
        if kind != "read" and rng.random() < (0.4 if kind in ("rename", "sync_directory") else 0.07):
            ends.append(found_on(disk.crashed(rng, left), len(ends)))

    disk.before = look
    files = received(source, target)
    cast(Any, target.partition.group).events.on_install(files)
    target.shard.run(lambda: target.table.local("t", 0) is not None)
    target.shard.call(target.shard.storage.checkpoint)
    disk.before = None
    assert set(ends) == {OLD, files.end_offset}
    assert ends[0] == OLD and ends == sorted(ends), "once the new log is there it stays"
    assert found_on(disk.crashed(rng, LOST), 0) == files.end_offset, "what was adopted is durable"
    target.shard.stop()
