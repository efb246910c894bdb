"""The local start of a log: archived segments leave the disk, while the log's start, its end and its positions stay."""

import random

import pytest
from storage_support import append, fill, new_shard, read_everything, settle

from millstream.errors import Rejected, Retriable
from millstream.iobuf import IoBuf
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, Stopped

SMALL = {"segment_bytes": 4096}


def read_from(shard: LocalShard, log, offset: int) -> bytes:
    found = shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
    assert isinstance(found, IoBuf), found
    data = bytes(found)
    found.release()
    return data


def trimmed_locally(shard: LocalShard, log, segments: int) -> int:
    """Let the first segments go from this disk; the new local start."""
    shard.run(lambda: log.ends.written_position == log.ends.durable_position)
    start = log.segments()[segments].base_offset
    after = log.trim_local(start)
    shard.call(shard.storage.checkpoint)
    after()
    shard.run()
    return start


def files(shard: LocalShard, log) -> list[int]:
    return sorted(int(name[:20]) for name in shard.disk.list(log.directory) if name.endswith(".log"))


def test_segments_before_the_local_start_go_and_the_log_start_stays() -> None:
    shard = new_shard(segment_bytes=4096)
    log = shard.open(1, **SMALL)
    written = fill(shard, log, 40)
    start = trimmed_locally(shard, log, 3)
    assert start > 0
    assert files(shard, log)[0] == log.first_local_offset == start
    assert (log.start_offset, log.next_offset) == (0, 40)
    assert read_from(shard, log, start).startswith(written[start])
    refused = shard.call(log.read_cold, start - 1, log.next_offset, 1 << 20, True)
    assert isinstance(refused, Retriable), refused
    shard.stop()
    again = new_shard(2, shard.disk, segment_bytes=4096)
    log = again.open(1, **SMALL)
    assert (log.start_offset, log.first_local_offset, log.next_offset) == (0, start, 40)
    append(log, 1, 100)
    settle(again)
    again.call(log.trim_prefix, start + 2)
    assert (log.start_offset, log.first_local_offset) == (start + 2, start)
    refused = again.call(log.read_cold, start, log.next_offset, 1 << 20, True)
    assert isinstance(refused, Rejected), "what was deleted is no matter of the archive"


def test_a_log_of_which_every_segment_is_archived_keeps_its_end() -> None:
    shard = new_shard(segment_bytes=4096)
    log = shard.open(1, **SMALL)
    fill(shard, log, 20)
    log.roll()
    trimmed_locally(shard, log, len(log.segments()) - 1)
    assert files(shard, log) == []
    shard.stop()
    for clean in (True, False):
        if not clean:
            shard.disk.crash(torn=False)
        shard = new_shard(3, shard.disk, segment_bytes=4096)
        log = shard.open(1, **SMALL)
        assert (log.start_offset, log.first_local_offset, log.next_offset) == (0, 20, 20)
    append(log)
    settle(shard)
    shard.disk.crash(torn=False)
    shard = new_shard(4, shard.disk, segment_bytes=4096)
    assert shard.open(1, **SMALL).next_offset == 21


@pytest.mark.parametrize("torn", [False, True])
def test_a_power_failure_at_any_file_operation_loses_nothing_that_is_to_stay(torn: bool) -> None:
    def prepared() -> tuple[LocalShard, object, list[bytes]]:
        shard = new_shard(7, SimDisk(random.Random(7)), segment_bytes=2048)
        log = shard.open(1, segment_bytes=2048)
        written = fill(shard, log, 12)
        return shard, log, written

    shard, log, written = prepared()
    first = shard.disk.operations
    start = trimmed_locally(shard, log, 2)
    shard.call(shard.storage.checkpoint)
    operations = shard.disk.operations - first
    assert operations > 10
    for crash_at in range(1, operations + 1):
        shard, log, written = prepared()
        shard.disk.crash_at = shard.disk.operations + crash_at
        try:
            trimmed_locally(shard, log, 2)
            shard.call(shard.storage.checkpoint)
        except (PowerFailure, Stopped):
            pass
        shard.disk.crash_at = -1
        shard.disk.crash(torn=torn)
        again = new_shard(crash_at, shard.disk, segment_bytes=2048)
        log = again.open(1, segment_bytes=2048)
        assert (log.start_offset, log.next_offset) == (0, 12), f"crash at {crash_at}"
        assert log.first_local_offset in (0, start), f"crash at {crash_at}"
        offset, data = int(log.first_local_offset), b""
        while offset < 12:
            data += read_from(again, log, offset)
            offset = log.first_local_offset + len(data) // len(written[0])
        assert data == b"".join(written[log.first_local_offset :]), f"crash at {crash_at}"


def test_nothing_is_read_twice_when_the_log_start_follows() -> None:
    shard = new_shard(segment_bytes=4096)
    log = shard.open(1, **SMALL)
    written = fill(shard, log, 40)
    start = trimmed_locally(shard, log, 3)
    shard.call(log.trim_prefix, start)
    assert read_everything(shard, log) == b"".join(written[start:])
