"""A node that adopts the files of another, as tests of replicas of records and of events use it."""

import random
from types import SimpleNamespace
from typing import Any, cast

from append_support import batch
from lagging_support import LaggingGroup

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.format.events.batch import Producer, build_event_batch
from millstream.format.names import staged_directory
from millstream.model.quantities import TimestampMs
from millstream.model.replication import LogPoint, Term
from millstream.partition.append.checks import append
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.table import PartitionTable
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.exporting import choose_end, describe, read_batches
from millstream.storage.log.importing import LogImport, StagedFiles
from sim.engine.disk import SimDisk
from sim.engine.local_storage import DATA_DIR, LocalShard, recover_locally

TOPIC = bytes(15) + b"\x07"


OURS = {"producer_id": 5, "producer_epoch": 0}


class Groups:
    """Groups whose role the test gives."""

    def open(
        self, group: Any, log: Any, first: Any, least_term: Any, first_term: Any = 0, *, created: bool = False
    ) -> Any:
        opened = LaggingGroup(log)
        opened.committed_offset = opened.high_watermark = log.raft.controls.base.offset
        return opened

    def close(self, group: Any) -> None:
        group.closed = True


class Node:
    """A shard with one partition of three replicas."""

    def __init__(self, seed: int, *, events: bool = False) -> None:
        rng = random.Random(seed)
        disk: Any = ChunkDisk(SimDisk(rng)) if events else SimDisk(rng)
        recover_locally(disk)
        self.events = events
        self.shard = LocalShard(disk, rng)
        settings: Any = SimpleNamespace(producer_id_expiration_ms=2**62, producer_ids_max=100, data_dir=DATA_DIR)
        self.table = PartitionTable()
        self.lifecycle = Lifecycle(
            self.shard.context, settings, self.shard.storage, self.table, cast(Any, None), clean=True,
            groups=Groups(),
        )  # fmt: skip
        limits = {"topic.kind": "events", "events.partition": '{"max_events_per_chunk": 6}'}
        config = topic_config(limits if events else {}, Settings(data_dir="/nowhere"))
        if not events:
            config.__dict__.update(segment_bytes=2000)
        self.lifecycle.open("t", TOPIC, 0, 7, 0, config, fresh=True, voters=cast(Any, (1, 2, 3)))

    @property
    def partition(self) -> Partition:
        found = self.table.local("t", 0)
        assert found is not None
        return found

    def fill(self, sequences: range) -> None:
        partition = self.partition
        group = cast(Any, partition.group)
        if partition.refusal:
            group.lead()
        for sequence in sequences:
            data = memoryview(
                event_batch(sequence) if self.events else batch([bytes(300)], base_sequence=sequence, **OURS)
            )
            assert append(partition, [data], len(data), 1_700_000_000_000, accepts_writes=True).error_code == 0
            self.shard.run(lambda: self.shard.storage.wal.idle)
            group.commit(partition.log.next_offset)
        self.shard.call(self.shard.storage.checkpoint)


def event_batch(sequence: int) -> bytes:
    identity = Producer(OURS["producer_id"], OURS["producer_epoch"], sequence)
    return b"".join(
        build_event_batch([b"%d" % sequence], [[bytes([sequence]) * 300]], now_ms=TimestampMs(5), producer=identity)
    )


def received(source: Node, target: Node) -> StagedFiles:
    """Have the log of one node received by the other."""
    log = source.partition.log
    end = choose_end(log, log.durable_offset)
    description = describe(log, end, b"")
    staging = LogImport(target.partition.log, description)
    while not staging.is_complete:
        part = source.shard.call(read_batches, log, source.shard.storage.reads.cold, staging.next_offset, end, 10_000)
        failure = target.shard.call(staging.add, part.buf.views(), part.next_offset)
        part.buf.release()
        assert failure is None
    assert target.shard.call(staging.finish) is None
    position = description.log_state.base.position
    assert staging.directory == staged_directory(target.partition.log.directory, position)
    return StagedFiles(staging.directory, LogPoint(position, Term(4)), end)
