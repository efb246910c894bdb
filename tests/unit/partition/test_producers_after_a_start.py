"""What a partition knows of its producers after a crash is what its log says, whatever was deleted or cut off."""

import random
from typing import Any

import pytest

from millstream.core.producer_state import Append, Duplicate
from millstream.partition.append.checks import append
from millstream.partition.delete_records import delete_records
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.storage.log import header_replay
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.life import Life
from sim.storage.models import TopicModel

SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 4 * 65_536}
TOPIC = TopicModel(1, "topic", {})


def start(disk: SimDisk) -> Life:
    life = Life(disk, random.Random(1), [TOPIC], shards=1, now_ms=1_700_000_000_000, settings=SETTINGS)
    life.shard(1).storage.checkpointer.snapshot_bytes = 1
    return life


def produce(life: Life, producer: int, sequences: range) -> Any:
    for sequence in sequences:
        data = build_batch(
            [(None, bytes(500), (), 1000)], producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        outcome = append(life.partition(TOPIC), [memoryview(data)], len(data), 1000, accepts_writes=True)
        assert not outcome.error_code
    settle(life)
    return life.partition(TOPIC)


def settle(life: Life) -> None:
    shard = life.shard(1)
    shard.run(lambda: shard.storage.wal.idle)


def test_a_producer_goes_on_though_all_behind_the_snapshot_was_deleted() -> None:
    disk = SimDisk(random.Random(1))
    life = start(disk)
    produce(life, 1, range(3))
    life.shard(1).call(life.shard(1).storage.checkpoint)
    partition = produce(life, 1, range(3, 6))
    life.shard(1).call(lambda done: delete_records(partition, -1, done))
    disk.crash(torn=False)
    partition = start(disk).partition(TOPIC)
    assert partition.log.start_offset == partition.log.next_offset == 6
    assert partition.producers.check(1, 0, 6, 1) is Append


def test_a_batch_is_known_again_though_the_log_starts_inside_of_it() -> None:
    disk = SimDisk(random.Random(1))
    life = start(disk)
    data = build_batch([(None, b"v", (), 1000)] * 10, producer_id=1, producer_epoch=0, base_sequence=0)
    append(life.partition(TOPIC), [memoryview(data)], len(data), 1000, accepts_writes=True)
    settle(life)
    partition = life.partition(TOPIC)
    life.shard(1).call(lambda done: delete_records(partition, 5, done))
    before = partition.producers.check(1, 0, 0, 10)
    assert before == Duplicate(0, 10, 1000)
    disk.crash(torn=False)
    assert start(disk).partition(TOPIC).producers.check(1, 0, 0, 10) == before


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_a_start_does_not_read_a_log_that_has_no_producers(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(random.Random(1))
    life = start(disk)
    data = build_batch([(None, bytes(500), (), 1000)])
    for _ in range(20):
        append(life.partition(TOPIC), [memoryview(data)], len(data), 1000, accepts_writes=True)
    settle(life)
    if end == "stop":
        life.stop()
    else:
        life.shard(1).call(life.shard(1).storage.checkpoint)
        disk.crash(torn=False)
    monkeypatch.setattr(header_replay, "_segment", _no_reading)
    assert start(disk).partition(TOPIC).log.next_offset == 20


def _no_reading(*_: object) -> None:
    raise AssertionError("the log is read")


def test_a_snapshot_of_what_was_cut_off_does_not_come_back() -> None:
    disk = SimDisk(random.Random(1))
    life = start(disk)
    partition = produce(life, 1, range(3))
    life.shard(1).call(life.shard(1).storage.checkpoint)
    assert any(path.endswith("3.producers") for path, _ in disk.files())
    life.shard(1).call(partition.log.truncate_suffix, 1)
    partition.group = SoleVoterGroup(partition.log, partition.group.term + 1)
    produce(life, 2, range(5))
    disk.crash(torn=False)  # the note is durable, the deletion of the snapshot is not
    partition = start(disk).partition(TOPIC)
    assert partition.log.next_offset == 6
    assert [one[:3] for one in partition.producers.active()] == [(1, 0, 0), (2, 0, 4)]
