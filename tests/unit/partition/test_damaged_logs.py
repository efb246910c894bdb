"""A partition whose segment cannot be walked is refused by name when the broker starts; the others are served."""

import random

from millstream.partition.append.checks import append
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.life import Life
from sim.storage.models import TopicModel

SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 4 * 65_536}


def start(disk: SimDisk, topics: list[TopicModel]) -> Life:
    return Life(disk, random.Random(1), topics, shards=1, now_ms=1_700_000_000_000, settings=SETTINGS)


def test_a_batch_without_a_header_costs_one_partition_and_not_the_start() -> None:
    disk = SimDisk(random.Random(1))
    topics = [TopicModel(1, "damaged", {}), TopicModel(2, "sound", {})]
    life = start(disk, topics)
    for topic in topics:
        for sequence in range(3):
            data = build_batch([(None, bytes(500), (), 1000)], producer_id=1, producer_epoch=0, base_sequence=sequence)
            append(life.partition(topic), [memoryview(data)], len(data), 1000, accepts_writes=True)
    shard = life.shard(1)
    shard.run(lambda: shard.storage.wal.idle)
    shard.call(shard.storage.checkpoint)
    (segment,) = life.partition(topics[0]).log.segments()
    disk.crash(torn=False)
    disk.flip(segment.path, segment.bytes // 3 + 16)  # the second batch's format
    life = start(disk, topics)
    assert segment.path in life.fault(topics[0])
    assert life.partition(topics[1]).log.next_offset == 3
    life.stop()
