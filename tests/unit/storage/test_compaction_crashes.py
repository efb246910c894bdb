"""A power failure at every single file operation of a compaction: what is found afterwards is the log before it or
after it, or a part of it after it, and never without a key's last value."""

import errno
import random
from typing import Any

import pytest
from compaction_support import COMPACTED, compacted_shard, files_of, last_values, overwrite, put, records_of
from storage_support import settle

from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, Stopped, recover_locally


def a_log_with_something_to_do(seed: int) -> tuple[LocalShard, Any, dict[bytes, bytes]]:
    """A log of which a part is compacted, as it is when the next compaction is due."""
    shard = compacted_shard(seed, SimDisk(random.Random(seed)))
    log = shard.open(1, **{**COMPACTED, "file_delete_delay_ms": 10})
    overwrite(shard, log, 6)
    log.roll()
    shard.run(lambda: log.files.clean_offset > 0)
    wanted = overwrite(shard, log, 3)
    log.roll()
    put(shard, log, (b"key3", b"in the active segment"))
    settle(shard)
    return shard, log, {**wanted, b"key3": b"in the active segment"}


def until_clean_and_tidy(shard: LocalShard, log: Any) -> None:
    """Through the second compaction, the removal of old files, and the checkpoint that notes it."""
    compaction = shard.storage.compaction
    shard.run(lambda: not compaction.is_busy and not compaction.stretch(log).dirty_bytes)
    shard.run(lambda: len(files_of(shard, log)) == len([one for one in log.segments() if one.bytes]))
    shard.call(shard.storage.checkpoint)


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_file_operation_loses_nothing(torn: bool) -> None:
    shard, log, wanted = a_log_with_something_to_do(5)
    first = shard.disk.operations
    until_clean_and_tidy(shard, log)
    operations = shard.disk.operations - first
    assert operations > 40
    before = 0
    for crash_at in range(1, operations + 1):
        shard, log, wanted = a_log_with_something_to_do(5)
        known = {record.offset: record for record in records_of(shard, log)}
        end = log.next_offset
        shard.disk.crash_at = shard.disk.operations + crash_at
        try:
            until_clean_and_tidy(shard, log)
        except (PowerFailure, Stopped):
            before += 1
        shard.disk.crash_at = -1
        shard.disk.crash(torn=torn)
        assert not recover_locally(shard.disk).faults
        again = compacted_shard(crash_at, shard.disk)
        log = again.open(1, **{**COMPACTED, "file_delete_delay_ms": 10})
        found = records_of(again, log)
        assert last_values(found) == wanted, f"crash at {crash_at}"
        assert log.next_offset == end
        assert all(known[record.offset] == record for record in found)
        assert not [name for name in again.disk.list(log.directory) if name.endswith(".cleaned")]
        log.roll()
        until_clean_and_tidy(again, log)
        assert last_values(records_of(again, log)) == wanted
        assert len(records_of(again, log)) == len(wanted)
    assert before > 40


def test_a_full_disk_ends_the_pass_and_the_next_one_succeeds() -> None:
    shard, log, wanted = a_log_with_something_to_do(6)
    shard.disk.capacity_bytes = (1 << 40) - shard.disk.free_bytes("/data") + 100
    shard.run(lambda: False, limit_us=400_000)
    assert last_values(records_of(shard, log)) == wanted
    assert log.files.clean_offset < log.segments()[-1].base_offset
    shard.disk.capacity_bytes = None
    shard.run(lambda: shard.storage.accepts_writes)
    until_clean_and_tidy(shard, log)
    assert last_values(records_of(shard, log)) == wanted


def test_a_disk_without_room_for_a_name_ends_the_pass_and_not_the_shard() -> None:
    shard, log, wanted = a_log_with_something_to_do(6)
    refused: list[str] = []

    def fail(kind: str, path: str) -> int:
        if kind == "rename" and path.endswith(".log"):
            refused.append(path)
            return errno.ENOSPC
        return 0

    shard.disk.fail = fail
    shard.run(lambda: bool(refused) and not shard.storage.compaction.is_busy)
    assert not log.files.replacing
    shard.run(lambda: not any(name.endswith(".cleaned") for name in shard.disk.list(log.directory)), 1_000_000)
    assert not any(name.endswith(".cleaned") for name in shard.disk.list(log.directory))
    shard.disk.fail = lambda kind, path: 0
    until_clean_and_tidy(shard, log)
    assert last_values(records_of(shard, log)) == wanted


def test_every_stop_in_the_middle_leaves_a_log_that_opens_cleanly() -> None:
    for steps in range(0, 240, 11):
        shard, log, wanted = a_log_with_something_to_do(steps)
        for _ in range(steps):
            if not shard.step():
                shard.reactor.sleep(shard.reactor.now_us() + 10**9)
        shard.stop()
        assert not [name for name in shard.disk.list(log.directory) if name.endswith(".cleaned")]
        again = compacted_shard(steps, shard.disk)
        assert again.clean
        log = again.open(1, **COMPACTED)
        assert last_values(records_of(again, log)) == wanted
        again.disk.crash(torn=False)
        last = compacted_shard(steps, again.disk)
        log = last.open(1, **COMPACTED)
        assert last_values(records_of(last, log)) == wanted
