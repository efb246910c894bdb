"""A shard looks only at what is in the files of its replicas."""

import random

from millstream.partition.replica.repairing import written_end
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, plain_batch, recover_locally


def test_the_look_ends_with_the_last_sealed_segment_that_is_written() -> None:
    disk = SimDisk(random.Random(3))
    recover_locally(disk)
    shard = LocalShard(disk, random.Random(3), clean=True)
    log = shard.open(1, segment_bytes=1_000)
    assert written_end(log) == 0
    for number in range(30):
        batch = plain_batch(number, 1, bytes(100))
        log.append([memoryview(bytearray(batch))], len(batch), number, number, 0, 1)  # type: ignore[arg-type]
    assert written_end(log) == 0, "all of it is in memory alone"
    shard.run(lambda: log.durable_offset == 30)
    shard.call(shard.storage.checkpoint)
    assert 0 < written_end(log) < log.next_offset
    assert written_end(log) == log.files.segments.active.base_offset
