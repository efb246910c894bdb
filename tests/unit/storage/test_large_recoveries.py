"""A start after a crash of a broker with many logs, or with offsets that are far apart."""


from storage_support import new_shard, read_everything, settle

from millstream.testing.local_storage import LocalShard, plain_batch, recover_locally


def test_segments_roll_for_their_offsets_in_a_replay_as_they_did() -> None:
    shard = new_shard()
    log = shard.open(1)
    for _ in range(6):
        count = 2**31 - 1
        data = plain_batch(0, count, bytes(20_000))
        log.append([memoryview(data)], len(data), log.next_offset, log.next_offset + count - 1, 0, 1000)
        settle(shard)
    written = read_everything(shard, log)
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert report.faults == ()
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    found = shard.open(1)
    assert len(found.segments_list) == len(log.segments_list) == 6
    assert read_everything(shard, found) == written
