"""A checkpoint writes at leisure as long as nobody waits for it, and logs that fill evenly are not written together."""

from itertools import pairwise

import pytest
from storage_support import append, kill, new_shard, read_everything, reopened, settle

from millstream.storage.log.write_behind import WRITE_BYTES_MIN
from millstream.storage.messages.commands import SYNCS_LANE, Checkpoint, Command, Hurry, Reply
from millstream.storage.wal.wal import WalFull
from sim.engine.local_storage import LocalShard, recover_locally

LOGS = 32
BYTES = 64 * 1024
ROOMY = {"wal_bytes": 32 << 20, "wal_file_bytes": 4 << 20, "checkpoint_bytes": 8 << 20}


def filled() -> tuple[LocalShard, list, list[bytes]]:
    """Two MiB in 32 logs, none of it in a segment yet."""
    shard = new_shard(settings=ROOMY, memory_bytes=32 << 20)
    shard.storage.write_bytes_min = 1 << 30
    logs = [shard.open(n) for n in range(1, LOGS + 1)]
    data = [append(log, 1, BYTES) for log in logs]
    settle(shard)
    assert shard.stats.counter("checkpoints").value == 0
    assert not any(written(logs))
    return shard, logs, data


def written(logs: list) -> list[bool]:
    return [log.ends.written_position > 0 for log in logs]


def pass_time(shard: LocalShard, duration_us: int) -> None:
    shard.run(lambda: False, duration_us)


def test_a_checkpoint_that_nobody_waits_for_writes_sixteen_mebibytes_a_second() -> None:
    shard, logs, data = filled()
    shard.storage.checkpointer.request()
    pass_time(shard, 50_000)
    assert 10 <= sum(written(logs)) <= 16
    pass_time(shard, 100_000)
    assert all(written(logs))
    assert shard.stats.counter("checkpoints").value == 1
    assert shard.storage.wal.files.used_bytes <= ROOMY["wal_file_bytes"]
    shard, first = reopened(kill(shard), recover_locally(shard.disk))
    assert read_everything(shard, first) == data[0]


def test_whoever_waits_for_a_checkpoint_hurries_the_one_that_runs() -> None:
    shard, logs, _ = filled()
    shard.storage.checkpointer.request()
    pass_time(shard, 10_000)
    assert not all(written(logs))
    begun = shard.reactor.now_us()
    shard.call(shard.storage.checkpoint)
    assert all(written(logs))
    assert shard.reactor.now_us() - begun <= 20_000


def test_a_checkpoint_keeps_up_with_the_write_ahead_log() -> None:
    shard, logs, _ = filled()
    other = shard.open(LOGS + 1)
    shard.storage.checkpointer.request()
    for _ in range(4):
        append(other, 1, 1 << 20)
        settle(shard)
    pass_time(shard, 25_000)
    assert all(written(logs))


def commands(shard: LocalShard, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What the worker is asked for from now on that has to do with checkpoints."""
    seen: list[Command] = []
    carry_out = shard.processes.file_worker.carry_out

    def watched(command: Command) -> Reply | None:
        if isinstance(command, Checkpoint | Hurry):
            seen.append(command)
        return carry_out(command)

    monkeypatch.setattr(shard.processes.file_worker, "carry_out", watched)
    return seen


def test_the_worker_is_told_that_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, _, _ = filled()
    seen = commands(shard, monkeypatch)
    shard.storage.checkpointer.request()
    pass_time(shard, 1_000_000)
    shard.call(shard.storage.checkpoint)
    assert [command.throttled for command in seen if isinstance(command, Checkpoint)] == [True, False]
    assert not any(isinstance(command, Hurry) for command in seen)


@pytest.mark.parametrize("why", ["somebody waits", "the log grew"])
def test_a_checkpoint_that_the_worker_is_at_is_hurried(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    shard, _, _ = filled()
    other = shard.open(LOGS + 1)
    seen = commands(shard, monkeypatch)
    shard.processes.hang(SYNCS_LANE, 1_000_000)
    shard.storage.checkpointer.request()
    pass_time(shard, 500_000)
    assert not seen
    if why == "somebody waits":
        shard.storage.checkpoint(lambda: None)
    else:
        for _ in range(5):
            append(other, 1, 1 << 20)
            settle(shard)
    pass_time(shard, 1_000_000)
    first, second = seen[:2]
    assert isinstance(first, Hurry)
    assert isinstance(second, Checkpoint)
    assert first.id == second.id
    assert second.throttled


def test_a_full_write_ahead_log_waits_for_no_leisurely_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = new_shard(settings={**ROOMY, "wal_bytes": 8 << 20}, memory_bytes=64 << 20)
    log = shard.open(1)
    append(log, 1, BYTES)
    settle(shard)
    shard.processes.hang(SYNCS_LANE, 1_000_000)
    shard.storage.checkpointer.request()
    pass_time(shard, 100_000)
    with pytest.raises(WalFull):
        for _ in range(100):
            append(log, 1, 1 << 20)
            pass_time(shard, 1000)
    seen = commands(shard, monkeypatch)
    pass_time(shard, 5_000_000)
    assert shard.storage.wal.idle
    first, *others = [command.throttled for command in seen if isinstance(command, Checkpoint)]
    assert first
    assert others
    assert not others[0]


def test_logs_that_fill_evenly_are_first_written_one_after_the_other() -> None:
    shard = new_shard(settings=ROOMY, memory_bytes=32 << 20)
    starts = sorted(-shard.open(n).behind.target for n in range(1, 129))
    assert starts[0] >= 0
    assert starts[-1] < WRITE_BYTES_MIN
    assert max(after - before for before, after in pairwise(starts)) < WRITE_BYTES_MIN // 40
