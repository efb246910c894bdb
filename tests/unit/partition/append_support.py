"""A partition to append to, and batches for it."""

import msgspec

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.iobuf import ArenaFull
from millstream.partition.append.checks import append
from millstream.partition.meters import Meters
from millstream.partition.partition import Partition
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.storage.log.owner import LogOwner
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.records import build_batch

NOW = 1_700_000_000_000


whole = msgspec.structs.astuple


class MemoryLog:
    """A log that keeps batches in a list and is durable when the test says so."""

    def __init__(self):
        self.name = "t/0"
        self.start_offset = 0
        self.next_offset = 0
        self.batches = []
        self.owner = LogOwner()
        self.full = False

    def make_room(self, views, size, last_offset, leader_epoch):
        if self.full:
            raise ArenaFull("full")

    def write(self, views, size, base_offset, last_offset, leader_epoch, max_timestamp, pieces):
        assert base_offset == self.next_offset
        assert size == sum(map(len, views))
        self.batches.append((base_offset, bytearray().join(views), leader_epoch, max_timestamp))
        self.next_offset = last_offset + 1

    def sync(self):
        self.owner.on_durable(self.next_offset)


class Acks:
    def __init__(self):
        self.acked_slots = []
        self.failed_slots = []

    def acked(self, slot):
        self.acked_slots.append(slot)

    def failed(self, slot, error):
        self.failed_slots.append((slot, error))

    def expire(self, now_us):
        raise AssertionError


def make(term=4, name="t", **overrides):
    settings = Settings(data_dir="/nowhere")
    config = topic_config({name.replace("_", "."): str(value) for name, value in overrides.items()}, settings)
    log = MemoryLog()
    group = SoleVoterGroup(log, term, write_caching=config.write_caching)
    producers = ProducerState(60_000, ProducerBudget(10))
    return Partition(name, bytes(16), 0, 7, log, group, config, producers, Meters(StatsSlab()))


def batch(values=(b"v",), timestamp=NOW, **options):
    return build_batch([(None, value, (), timestamp) for value in values], **options)


def put(partition, data, accepts_writes=True, pieces=1, **options):
    step = max(1, -(-len(data) // pieces))
    views = [memoryview(data)[i : i + step] for i in range(0, len(data), step)]
    return append(partition, views, len(data), NOW, accepts_writes=accepts_writes, **options)
