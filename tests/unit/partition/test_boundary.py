"""A fault of one partition ends that partition: whatever line of its verbs raises, the others do not notice, nothing
that is shared is lost, and what was acknowledged is there when the partition is opened again.
"""

import random
import sys
from pathlib import Path

import pytest

from millstream.iobuf import MemoryClass
from millstream.model.error_code import ErrorCode
from millstream.partition.append.checks import append, settle
from millstream.partition.append.markers import Marker, append_marker
from millstream.partition.boundary import SHARED
from millstream.partition.delete_records import delete_records
from millstream.partition.partition import Partition
from millstream.partition.read.batches import read_here, read_older
from millstream.partition.read.epoch_end import epoch_end
from millstream.partition.read.list_offsets import list_offset
from millstream.partition.read.request import ReadRequest
from millstream.partition.replica.members import Members
from millstream.partition.table import Faulty
from millstream.wire.batch import unpack_header
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.life import Life
from sim.storage.models import TopicModel

NOW = 1_700_000_000_000
SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 16 * 65_536, "checkpoint_bytes": 1 << 30}
STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


class Fault(Exception):
    """What no verb raises."""


class Acks:
    """A producer's request with one batch."""

    def __init__(self):
        self.results = [None]
        self.answers = []

    def acked(self, slot):
        self.answers.append(self.results[slot].error_code)

    def failed(self, slot, error):
        self.answers.append(int(error))

    def expire(self, now_us):
        raise AssertionError


class RaisesAt:
    """Raises at the n-th line of some modules that is executed, outside of what partitions share."""

    def __init__(self, place, modules):
        self.left = place
        self.modules = modules
        self.where = ""

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _call(self, frame, event, argument):
        module = frame.f_globals.get("__name__", "")
        traced = module.startswith(self.modules) and not module.startswith(SHARED)
        return self._line if traced and frame.f_code.co_name not in DOORS else None

    def _line(self, frame, event, argument):
        if event == "line" and not self.where:
            self.left -= 1
            if self.left < 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise Fault(self.where)
        return self._line


DOORS = frozenset(
    (
        *("append", "settle", "append_marker", "attempt", "_try", "read_here", "read_older", "list_offset"),
        *("epoch_end", "delete_records", "failed", "guard", "__init__"),
    )
)
"""Functions whose lines are the boundary, and the making of small records by them."""

VERBS = ("millstream.partition.append", "millstream.raft", "millstream.storage.log", "millstream.core.producer_state")


class Bench:
    """Two partitions of one shard: one fails, the other must not notice."""

    def __init__(self, **config):
        self.disk = SimDisk(random.Random(1))
        self.topics = [TopicModel(1, "fails", config), TopicModel(2, "other", config)]
        self.seed = 0
        self.start()

    def start(self):
        self.seed += 1
        self.life = Life(self.disk, random.Random(self.seed), self.topics, shards=1, now_ms=NOW, settings=SETTINGS)
        self.cell = self.life.cell(1)
        self.shard = self.life.shard(1)

    @property
    def failing(self):
        return self.cell.table.find("fails", 0)

    @property
    def other(self):
        return self.life.partition(self.topics[1])

    def settle(self):
        self.shard.run(lambda: self.shard.storage.wal.idle and not self.shard.reactor.ready)

    def checkpoint(self):
        self.shard.call(self.shard.storage.checkpoint)

    def reopen(self):
        """What a repair does."""
        entry = self.failing
        assert isinstance(entry, Faulty)
        if entry.raft_group in self.shard.storage.checkpointer.failed_logs:
            self.checkpoint()
        opened = self.cell.lifecycle.reopen(self.topics[0].topic_id, entry, self.other.config, Members())
        assert isinstance(opened, Partition), opened.reason
        return opened

    def check_memory(self, where=""):
        """All memory of the log cache is that of open logs."""
        held = sum(
            one.fragment.capacity
            for log in self.shard.storage.logs.values()
            for one in log.cache.live()
            if one.fragment
        )
        assert self.shard.arena.reserved_bytes(MemoryClass.CACHE) == held, where
        assert not self.shard.storage.memory._aside


def put(partition, value=b"v", **options):
    """Produce one batch; the answers that it gets."""
    data = build_batch([(None, value, (), NOW)], **options)
    call = Acks()
    if isinstance(partition, Faulty):
        call.answers.append(STORAGE_ERROR)
        return call.answers
    outcome = append(partition, (memoryview(data),), len(data), NOW, accepts_writes=True)
    settle(partition, outcome, call, 0, own_sync=False)
    return call.answers


def stored(bench, partition):
    """The sizes of all records that readers get, by offset."""
    found, offset = {}, partition.log.start_offset
    while offset < partition.high_watermark:
        data = partition.log.read(offset, partition.high_watermark, 1 << 20, True)
        if data is None:
            data = bench.shard.call(partition.log.read_cold, offset, partition.high_watermark, 1 << 20, True)
        raw = bytes(data)
        data.release()
        at = 0
        while at < len(raw):
            header = unpack_header(memoryview(raw)[at:])
            if header[0] >= offset:
                found[header[0]] = header[1]
            offset = header[0] + header[6] + 1
            at += header[1] + 12
    return found


def test_a_thousand_faults_at_any_line_of_an_append_end_that_partition_and_nothing_else():
    bench = Bench(segment_bytes=100_000)
    places, place, number = set(), 0, 0
    acknowledged = {}
    arena_at_start = bench.shard.arena.in_use_bytes
    for faults in range(1000):
        while True:
            number += 1
            partition = bench.failing
            offset = partition.log.next_offset
            parked, before = put(bench.other, b"parked"), put(partition, b"before")
            value = (b"x", bytes(9000), bytes(40_000))[number % 3]
            with RaisesAt(place, VERBS) as fault:
                call = put(partition, value)
            if fault.where:
                break
            place = 0  # the append was over before that line came: begin again with another kind
            bench.settle()
            assert parked == before == call == [0]
            acknowledged |= stored_since(bench, partition, offset)
        places.add(fault.where)
        place += 1
        beside = put(bench.other, b"beside")
        assert put(partition) == [STORAGE_ERROR]
        bench.settle()
        assert parked == beside == [0], fault.where
        assert len(before) == len(call) == 1, fault.where
        assert isinstance(bench.failing, Faulty), fault.where
        bench.check_memory(fault.where)
        if faults % 11 == 10:
            bench.disk.crash(torn=False)
            bench.start()
        elif faults % 11 == 5:
            bench.life.stop()
            bench.start()
        else:
            bench.reopen()
        found = stored(bench, bench.failing)
        if before == [0]:
            assert offset in found, fault.where
            acknowledged[offset] = found[offset]
        assert acknowledged.items() <= found.items(), fault.where
        if faults % 20 == 19:  # the log need not grow for ever
            for one in (bench.failing, bench.other):
                one.log.trim_prefix(one.high_watermark)
            bench.settle()
            bench.checkpoint()
            acknowledged.clear()
    assert len(places) > 50, sorted(places)
    assert bench.shard.arena.in_use_bytes - bench.shard.arena.reserved_bytes(MemoryClass.CACHE) <= arena_at_start


def stored_since(bench, partition, offset):
    return {base: size for base, size in stored(bench, partition).items() if base >= offset}


class RaisesIn(RaisesAt):
    """Raises at the n-th line that is executed by something of one partition, whatever entry has led to it."""

    def __init__(self, place, partition):
        super().__init__(place, "millstream.")
        log = partition.log
        self.own = {id(one) for one in (partition, log, partition.group, log.behind, log.cache, log.files.segments)}
        self.own |= {
            id(one) for one in (log.raft.controls, log.files.snapshots, partition.producers, partition.transactions)
        }

    def _call(self, frame, event, argument):
        traced = super()._call(frame, event, argument)
        places = frame.f_locals
        mine = any(id(places.get(name)) in self.own for name in ("self", "log", "partition"))
        entry = frame.f_globals["__name__"].startswith(ENTRIES)
        return traced if traced is not None and mine and not entry else None


ENTRIES = (
    "millstream.partition.boundary",
    "millstream.partition.table",
    "millstream.storage.registry",
    "millstream.storage.shard_storage",
    "millstream.storage.maintenance",
    "millstream.storage.compaction",
    "millstream.partition.asked",
)
"""Modules whose functions are called with a log or a partition, and are its entries or what it shares."""


def commit(bench, partition):
    put(partition, b"more")
    bench.settle()


def checkpoint(bench, partition):
    put(partition, bytes(30_000), producer_id=7, producer_epoch=0, base_sequence=0)
    bench.settle()
    bench.checkpoint()


def delete(bench, partition):
    delete_records(partition, partition.high_watermark, lambda _: None)
    bench.settle()
    bench.checkpoint()


def read(bench, partition):
    asked = []
    answer = read_here(partition, ReadRequest(0, 1 << 20, committed=True), NoWatch())
    if answer is not None and answer.data is not None:
        answer.data.release()
    read_older(partition, ReadRequest(0, 1 << 20, committed=True), asked.append)
    bench.settle()
    bench.shard.run(lambda: bool(asked))
    if asked[0].data is not None:
        asked[0].data.release()


def end_a_transaction(bench, partition):
    marker = Marker(9, 0, True, 1, 1)
    append_marker(partition, marker, NOW, lambda _: None)
    bench.settle()


def configure(bench, partition):
    bench.cell.lifecycle.configure("fails", bench.other.config)
    bench.settle()


def look_up(bench, partition):
    asked = []
    list_offset(partition, NOW, -1, 0, asked.append)
    bench.shard.run(lambda: bool(asked))
    epoch_end(partition, -1, 0)


def look_after(bench, partition):
    """Retention, compaction and sizes, as their timers have them."""
    storage = bench.shard.storage
    for generator in (storage.housekeeping.look_at_all(), storage.housekeeping.measure_all()):
        for _ in generator:
            pass
    storage.compaction.look()
    bench.settle()


class NoWatch:
    def arm(self, partition):
        """Not watched."""


@pytest.mark.parametrize("verb", [commit, checkpoint, delete, read, end_a_transaction, configure, look_up, look_after])
def test_a_fault_at_any_line_of_any_verb_ends_that_partition_and_nothing_else(verb):
    bench = Bench(segment_bytes=100_000)
    arena_at_start = bench.shard.arena.in_use_bytes
    place = 0
    while True:
        partition = bench.failing
        acknowledged = []
        for number in range(3):
            offset = partition.log.next_offset
            answers = put(partition, bytes(5000))
            bench.settle()
            assert answers == [0]
            acknowledged.append(offset)
            if number == 1:
                bench.checkpoint()
        before = stored(bench, partition)
        parked = put(bench.other, b"parked")
        with RaisesIn(place, partition) as fault:
            verb(bench, partition)
        beside = put(bench.other, b"beside")
        bench.settle()
        assert parked == beside == [0], fault.where
        if not fault.where:
            break
        place += 1
        assert isinstance(bench.failing, Faulty), fault.where
        bench.check_memory(fault.where)
        bench.reopen()
        if verb is not delete:
            assert before.items() <= stored(bench, bench.failing).items(), fault.where
        if place % 4 == 3:
            bench.failing.log.trim_prefix(bench.failing.high_watermark)
            bench.settle()
            bench.checkpoint()
    assert place > 10
    bench.check_memory()
    assert bench.shard.arena.in_use_bytes - bench.shard.arena.reserved_bytes(MemoryClass.CACHE) <= arena_at_start
