"""A log of events takes batches of events only, and one that has another kind anyway ends alone."""

import errno
import random

import pytest

from millstream.errors import Rejected
from millstream.format.events.batch import build_event_batch
from millstream.model.quantities import TimestampMs
from millstream.model.replication import TermRun
from millstream.partition.append.checks import append
from millstream.partition.table import Faulty
from millstream.storage.log.entries import parse_entries
from millstream.storage.log.event_log import EventLog
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.event_topics import events_config
from sim.storage.life import Life
from sim.storage.models import TopicModel

NOW = 1_700_000_000_000
RECORDS = build_batch([(None, b"no event", (), NOW)])
SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 16 * 65_536, "checkpoint_bytes": 1 << 30}


class Bench:
    """Two event topics of one shard."""

    def __init__(self):
        self.disk, rng = SimDisk(random.Random(1)), random.Random(2)
        self.topics = [TopicModel(group, name, events_config(rng)) for group, name in ((1, "fails"), (2, "other"))]
        self.start()

    def start(self):
        self.life = Life(self.disk, random.Random(3), self.topics, shards=1, now_ms=NOW, settings=SETTINGS)
        self.shard = self.life.shard(1)

    def log(self, number):
        return self.life.partition(self.topics[number]).log

    def settle(self):
        self.shard.run(lambda: self.shard.storage.wal.idle and not self.shard.reactor.ready)

    def put(self, number):
        data = b"".join(build_event_batch([b"{}"], [[b"data"]], now_ms=TimestampMs(NOW)))
        partition = self.life.partition(self.topics[number])
        assert not append(partition, [memoryview(data)], len(data), NOW, accepts_writes=True).error_code
        self.settle()
        assert partition.high_watermark == partition.log.next_offset


@pytest.fixture
def bench():
    found = Bench()
    for number in (0, 1):
        found.put(number)
    return found


def test_a_chunk_that_cannot_be_read_while_the_next_one_is_made_ends_that_partition_alone(bench):
    log, partition = bench.log(0), bench.life.partition(bench.topics[0])
    bench.shard.call(bench.shard.storage.checkpoint)
    log.roll()
    bench.put(0)
    bench.shard.processes.file_worker._disk._numbers.clear()  # as in a worker that has just started
    bench.disk.fail = lambda kind, path: errno.EIO if kind == "read" and "/fails-" in path else 0
    log.write_out()
    bench.shard.run(lambda: partition.has_failed)
    assert partition.has_failed
    bench.settle()
    bench.disk.fail = lambda kind, path: 0
    bench.put(1)
    bench.disk.crash(torn=False)
    bench.start()
    assert (bench.log(0).next_offset, bench.log(1).next_offset) == (2, 2)


def stored(base, epoch):
    return memoryview(base.to_bytes(8, "big") + RECORDS[8:12] + epoch.to_bytes(4, "big") + RECORDS[16:])


@pytest.mark.parametrize("way", ["leader", "follower"])
def test_records_are_refused_before_anything_of_a_log_of_events_changes(bench, way):
    log = bench.log(0)
    tick = bench.shard.storage.wal.tick.records
    with pytest.raises(Rejected, match="where events are due"):
        if way == "leader":
            log.append((memoryview(RECORDS),), len(RECORDS), log.next_offset, log.next_offset, 0, NOW)
        else:
            start, term = log.next_raft_position, log.raft.epoch
            log.check_room(parse_entries(start, [TermRun(start + 1, term)], [], [stored(log.next_offset, term)]))
    assert (log.next_offset, bench.shard.storage.wal.tick.records) == (1, tick)
    bench.put(0)


def test_records_in_a_log_of_events_end_that_partition_and_no_start(bench, monkeypatch, capfd):
    """As if a broker without the check had put them there."""
    monkeypatch.setattr(EventLog, "_require_events", lambda log, views: None)
    log = bench.log(0)
    end = log.next_offset
    partition = bench.life.partition(bench.topics[0])
    partition.group.replicate((memoryview(RECORDS),), len(RECORDS), 1, NOW)
    bench.settle()
    assert log.durable_offset == end + 1
    log.write_out()
    bench.shard.run(lambda: partition.has_failed)
    bench.settle()
    assert isinstance(bench.life.cell(1).table.find("fails", 0), Faulty)
    bench.put(1)
    bench.shard.call(bench.shard.storage.checkpoint)
    bench.disk.crash(torn=False)
    bench.start()
    assert bench.life.fault(bench.topics[0])
    assert bench.log(1).next_offset == 2
    bench.put(1)
    assert "no event batch" in capfd.readouterr().err
