"""A start never fails for one partition: a replay that raises ends for it, and its records wait beside its files."""

import random

import pytest

from millstream.partition.append.checks import append
from millstream.storage.recovery.cut_back import cut_back, look
from millstream.storage.recovery.replay import LogReplay
from millstream.storage.recovery.set_aside import is_set_aside
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.life import Life
from sim.storage.models import TopicModel

NOW = 1_700_000_000_000
SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 16 * 65_536, "checkpoint_bytes": 1 << 30}


def start(disk, topics, seed=1):
    return Life(disk, random.Random(seed), topics, shards=1, now_ms=NOW, settings=SETTINGS)


def put(life, topic, size=500):
    data = build_batch([(None, bytes(size), (), NOW)])
    outcome = append(life.partition(topic), (memoryview(data),), len(data), NOW, accepts_writes=True)
    assert not outcome.error_code


def settle(life):
    shard = life.shard(1)
    shard.run(lambda: shard.storage.wal.idle and not shard.reactor.ready)


@pytest.fixture
def crashed():
    """A disk after a crash: two topics, of each some records in segments and some in the write-ahead log only."""
    disk, topics = SimDisk(random.Random(1)), [TopicModel(1, "fails", {}), TopicModel(2, "other", {})]
    life = start(disk, topics)
    for number in range(10):
        for topic in topics:
            put(life, topic)
        if number == 5:
            settle(life)
            life.shard(1).call(life.shard(1).storage.checkpoint)
    settle(life)
    disk.crash(torn=False)
    return disk, topics


@pytest.mark.parametrize("verb", ["__init__", "apply", "flush", "finish", "describe"])
def test_a_replay_that_raises_leaves_the_other_partitions_to_be_served(crashed, monkeypatch, verb):
    disk, (fails, other) = crashed
    original = getattr(LogReplay, verb)

    def planted(self, *arguments):
        place = arguments[1] if verb == "__init__" else self.place
        if place.name.startswith("fails"):
            raise ZeroDivisionError("planted")
        return original(self, *arguments)

    monkeypatch.setattr(LogReplay, verb, planted)
    life = start(disk, [fails, other])
    assert "planted" in life.fault(fails)
    assert "fails/0" in life.report.aside[0]
    assert life.partition(other).log.next_offset == 10
    directory = life.cell(1).table.find("fails", 0).directory
    assert is_set_aside(disk, directory)
    put(life, other)
    settle(life)
    life.shard(1).call(life.shard(1).storage.checkpoint)
    disk.crash(torn=False)
    life = start(disk, [fails, other], seed=2)  # and once more
    assert life.fault(fails)
    life.stop()
    monkeypatch.undo()
    life = start(disk, [fails, other], seed=3)
    assert not life.fault(fails)
    assert life.partition(fails).log.next_offset == 10
    assert not is_set_aside(disk, directory)
    put(life, fails)


def test_a_log_is_cut_back_to_its_last_sound_batch():
    disk, topic = SimDisk(random.Random(1)), TopicModel(1, "fails", {"segment_bytes": 2500})
    life = start(disk, [topic])
    for _ in range(12):
        put(life, topic)
        settle(life)
    life.stop()
    log = life.cell(1).table.find("fails", 0).log
    second = log.segments()[1]
    file = disk.open(second.path)
    header = bytearray(1)
    file.preadv([header], second.bytes - 10)
    file.pwritev([bytes([header[0] ^ 255])], second.bytes - 10)
    file.sync()
    file.close()
    found = []
    for _ in look(disk, log.directory, found):
        pass
    (kept,) = found
    assert kept.end_offset == second.end_offset - 1
    assert kept.known_end == 12
    assert kept.lost == 12 - kept.end_offset
    start(disk, [topic], seed=3)  # a log is cut in a broker that runs; what the stop noted is void then
    disk.crash(torn=False)
    cut_back(disk, log.directory, kept)
    life = start(disk, [topic], seed=2)
    assert life.partition(topic).log.next_offset == kept.end_offset
    put(life, topic)
    settle(life)
    assert sum(name.endswith(".damaged") for name in disk.list(log.directory)) >= 2
