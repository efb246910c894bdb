"""What raises in a helper process, in a command about one log, ends that log."""

import pytest
from storage_support import append, new_shard, settle

from millstream.errors import MillstreamError
from millstream.model.quantities import Offset, TimestampMs
from millstream.storage.compaction.cleaner import Cleaner
from millstream.storage.processes.boundary import HelperFault
from millstream.storage.segments.files import SegmentFiles
from millstream.storage.segments.reads import Reader


def planted(*_):
    raise ZeroDivisionError("planted")


@pytest.fixture
def bench():
    shard = new_shard(settings={"wal_bytes": 1 << 20})
    log, other = shard.open(1), shard.open(2)
    failures = []
    log.on_failed = lambda verb, error: failures.append((verb, error))
    for one in (log, other):
        for _ in range(5):
            append(one, size=500)
    settle(shard)
    return shard, log, other, failures


def test_a_write_that_raises_ends_that_log(bench, monkeypatch):
    shard, log, other, failures = bench
    original = SegmentFiles.write
    monkeypatch.setattr(
        SegmentFiles, "write", lambda self, command: planted() if command.group == 1 else original(self, command)
    )
    log.behind.write(log.durable_position)
    shard.run(lambda: bool(failures))
    (failure,) = failures
    assert failure[0] == "write behind" and isinstance(failure[1], HelperFault)
    assert "planted" in str(failure[1]) and "Traceback" in str(failure[1])
    other.behind.write(other.durable_position)
    shard.run(lambda: other.written_position == other.durable_position)


@pytest.mark.parametrize("verb", ["read", "find"])
def test_a_read_that_raises_is_answered_and_ends_that_log(bench, monkeypatch, verb):
    shard, log, _, failures = bench
    shard.call(shard.storage.checkpoint)
    monkeypatch.setattr(Reader, verb, planted)
    if verb == "read":
        answer = shard.call(log.read_cold, Offset(0), log.durable_offset, 1 << 16, True)
    else:
        answer = shard.call(log.offset_for_timestamp, TimestampMs(1), log.durable_offset)
    assert isinstance(answer, MillstreamError)
    assert len(failures) == 1


@pytest.mark.parametrize("verb", ["_gather", "_rewrite"])
def test_a_pass_that_raises_leaves_a_log_that_is_served(monkeypatch, verb):
    shard = new_shard(settings={"wal_bytes": 1 << 20})
    log = shard.open(1, cleanup_policy=("compact",), segment_bytes=2000, min_cleanable_dirty_ratio=0.0)
    for _ in range(12):
        append(log, size=500)
        settle(shard)
    monkeypatch.setattr(Cleaner, verb, planted)
    compaction = shard.storage.compaction
    shard.run(lambda: log.group in compaction._uncleanable)
    assert not compaction.is_busy and not log.closed
    append(log)
    settle(shard)
    assert log.durable_offset == 13
