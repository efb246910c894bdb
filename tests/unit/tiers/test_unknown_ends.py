"""After a start with the log in the store the end of a log is known when the store has what the disk has."""

import random
import uuid
from types import SimpleNamespace

import pytest

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.format.manifest import ArchiveId
from millstream.model.error_code import ErrorCode
from millstream.partition.delete_records import _judged
from millstream.partition.meters import Meters
from millstream.partition.partition import Partition
from millstream.partition.read.batches import read_here
from millstream.partition.read.list_offsets import LATEST, list_offset
from millstream.partition.read.request import ReadRequest
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import Archive
from millstream.tiers.partition_archive import StoredStart
from millstream.tiers.shared_wal import SharedWal
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, plain_batch, recover_locally


class NoLink:
    """Nothing reaches the store."""


class Watch:
    def arm(self, partition):
        """Nobody waits."""


@pytest.fixture
def opened():
    """A partition with ten records on its disk, as a start opens it, and its gate."""
    disk, rng = SimDisk(random.Random(1)), random.Random(2)
    recover_locally(disk)
    shard = LocalShard(disk, rng)
    log = shard.open(1)
    before = SoleVoterGroup(log, 1)
    data = plain_batch(0, 10)
    before.replicate((memoryview(data),), len(data), 10, 1000)
    shard.run(lambda: before.high_watermark == 10)
    group = SoleVoterGroup(log, 2)
    archive = SimpleNamespace(
        archive=Archive(0),
        log=log,
        group=group,
        owner=ArchiveId(uuid.UUID(int=1), 0),
        closed=False,
        start=StoredStart(log),
    )
    wal = SharedWal(
        shard.reactor, NoLink(), StatsSlab(0, "test"), 0, 1 << 20, lambda _: None, lambda _: None, held=True
    )
    wal.open(archive)
    config = topic_config({}, Settings(data_dir="/nowhere"))
    producers = ProducerState(60_000, ProducerBudget(10))
    partition = Partition("t", bytes(16), 0, 1, log, group, config, producers, Meters(StatsSlab()))
    return partition, wal


def latest(partition):
    answers = []
    list_offset(partition, LATEST, -1, 0, answers.append)
    return ErrorCode(answers[0][0]), answers[0][2]


def fetched(partition, offset):
    result = read_here(partition, ReadRequest(offset, 1000), Watch())
    return ErrorCode(result.error_code), result.high_watermark


def test_no_answer_names_an_end_before_that_of_the_life_before(opened):
    partition, wal = opened
    assert partition.high_watermark == 0
    assert latest(partition) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert fetched(partition, 0)[0] == fetched(partition, 10)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert _judged(partition, -1)[0] == _judged(partition, 5)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    (gate,) = wal._gates.values()
    wal._confirm(gate, 4, 0)
    partition.high_watermark = partition.group.high_watermark
    assert latest(partition)[0] == ErrorCode.OFFSET_NOT_AVAILABLE, "the store has a part of it"
    wal._confirm(gate, 10, 0)
    partition.high_watermark = partition.group.high_watermark
    assert latest(partition) == (ErrorCode.NONE, 10)
    assert fetched(partition, 10) == (ErrorCode.NONE, 10)
    assert _judged(partition, -1) == (ErrorCode.NONE, 10)
