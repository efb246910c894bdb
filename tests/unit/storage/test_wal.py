"""Group commit: a turn is one frame; appends gather while one is out; pacing under load only; files go round."""

from storage_support import append, fill, new_shard, read_everything, settle

from sim.engine.local_storage import LocalShard, recover_locally


def ticks(shard: LocalShard) -> int:
    return shard.stats.counter("wal_ticks").value


def test_one_turn_is_one_tick_for_all_logs() -> None:
    shard = new_shard()
    logs = [shard.open(n) for n in range(1, 6)]
    settle(shard)
    for log in logs * 3:
        append(log)
    settle(shard)
    assert ticks(shard) == 1
    assert shard.stats.counter("wal_records").value == 15


def test_a_lone_append_does_not_wait_and_those_behind_it_gather() -> None:
    shard = new_shard(settings={"wal_pacing_us": 500})
    log = shard.open(1)
    fill(shard, log, 1)
    before = ticks(shard)
    begun = shard.reactor.now_us()
    append(log)
    assert shard.reactor.turn()
    assert shard.processes._rings == 1
    for _ in range(7):
        append(log)
    settle(shard)
    assert shard.reactor.now_us() == begun
    assert ticks(shard) == before + 2


def test_under_load_ticks_start_at_least_the_pace_apart() -> None:
    shard = new_shard(settings={"wal_pacing_us": 500})
    log = shard.open(1)
    fill(shard, log, 1)
    for _ in range(6):
        for _ in range(10):
            append(log)
        shard.run(lambda: shard.storage.wal.idle)
    begun, before = shard.reactor.now_us(), ticks(shard)
    for _ in range(10):
        for _ in range(10):
            append(log)
        shard.run(lambda: shard.storage.wal.idle)
    assert ticks(shard) == before + 10
    assert shard.reactor.now_us() - begun >= 9 * 500


def test_a_big_tick_is_not_paced() -> None:
    shard = new_shard(settings={"wal_pacing_us": 500, "wal_file_bytes": 1 << 20, "wal_bytes": 4 << 20})
    log = shard.open(1)
    fill(shard, log, 1)
    for _ in range(6):
        for _ in range(10):
            append(log, 1, 20_000)
        shard.run(lambda: shard.storage.wal.idle)
    begun = shard.reactor.now_us()
    for _ in range(10):
        append(log, 1, 20_000)
    shard.run(lambda: shard.storage.wal.idle)
    assert shard.reactor.now_us() == begun


def test_files_are_used_again_in_turn_once_a_checkpoint_freed_them() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 3000, 900)
    settle(shard)
    names = [name for name in shard.disk.list("/data/wal/0") if name.endswith(".wal")]
    assert len(names) <= 8
    assert shard.stats.counter("wal_written_bytes").value > 16 * 65536
    assert shard.stats.counter("checkpoints").value > 4
    assert shard.storage.wal.durable_sequence == shard.storage.wal.next_sequence - 1


def test_appends_during_the_callbacks_of_a_tick_go_with_the_next() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 1)
    seen: list[int] = []

    def again(end: int) -> None:
        seen.append(end)
        if end < 6:
            append(log)

    log.owner.on_durable = again
    append(log)
    settle(shard)
    assert seen == [2, 3, 4, 5, 6]


def test_a_checkpoint_that_is_asked_for_while_a_tick_is_told_does_not_cover_it() -> None:
    shard = new_shard()
    one, other = shard.open(1), shard.open(2)
    done: list[int] = []
    one.owner.on_durable = lambda end: shard.storage.checkpoint(lambda: done.append(end))
    append(one)
    written = append(other)
    shard.run(lambda: bool(done))
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(2)) == written
