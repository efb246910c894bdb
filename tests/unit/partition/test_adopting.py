"""A partition whose log is replaced by files of its leader: closed, replaced, opened again, or deleted meanwhile."""

import random
from types import SimpleNamespace
from typing import Any, cast

from test_append import batch
from test_replica import LaggingGroup

from millstream.config.settings import Settings
from millstream.config.topic_properties import topic_config
from millstream.format.events.batch import Producer, build_event_batch
from millstream.format.names import partition_directory, staged_directory
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.model.replication import LogPoint, Term
from millstream.partition.append import append
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.table import Adopting, PartitionTable
from millstream.storage.chunks import ChunkDisk
from millstream.storage.disk import exists
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
        opened.committed_offset = opened.high_watermark = log.controls.base.offset
        return opened

    def close(self, group: Any) -> None:
        group.closed = True


class Waiter:
    """A fetch that waits for data."""

    def __init__(self, told: list[Any]) -> None:
        self.wake = told.append


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
        part = source.shard.call(read_batches, log, source.shard.storage.cold_reads, staging.next_offset, end, 10_000)
        failure = target.shard.call(staging.add, part.buf.views(), part.next_offset)
        part.buf.release()
        assert failure is None
    assert target.shard.call(staging.finish) is None
    position = description.log_state.base.position
    assert staging.directory == staged_directory(target.partition.log.directory, position)
    return StagedFiles(staging.directory, LogPoint(position, Term(4)), end)


def test_the_partition_is_opened_again_on_the_new_files() -> None:
    source, target = Node(1), Node(2)
    source.fill(range(40))
    target.fill(range(3))
    files = received(source, target)
    before = target.partition
    acks = cast(Any, SimpleNamespace(failed=lambda slot, error: told.append(error)))
    told: list[Any] = []
    before.data_waiters.add(cast(Any, Waiter(told)))
    before.acks.append((99, acks, 0))
    cast(Any, before.group).events.on_install(files)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 7]
    assert isinstance(target.table.find("t", 0), Adopting) and target.table.by_group == {}
    target.shard.run(lambda: target.table.local("t", 0) is not None)
    after = target.partition
    assert after is not before and before.closed
    assert (after.log.next_offset, after.high_watermark) == (files.end_offset, files.end_offset)
    assert target.table.by_group == {7: after}
    assert after.producers.check(5, 0, files.end_offset, 1).name == "APPEND", "duplicates are known as before"
    target.shard.stop()


def test_chunks_of_an_event_topic_are_received_as_chunks() -> None:
    source, target = Node(21, events=True), Node(22, events=True)
    source.fill(range(40))
    target.fill(range(3))
    files = received(source, target)
    cast(Any, target.partition.group).events.on_install(files)
    target.shard.run(lambda: target.table.local("t", 0) is not None)
    log = target.partition.log
    assert log.next_offset == files.end_offset >= 30
    end = files.end_offset
    assert [one.base_offset for one in log.segments_list.all()] == [*range(0, end + 1, 6)]
    data, offset = b"", 0
    while offset < end:
        part = target.shard.call(read_batches, log, target.shard.storage.cold_reads, offset, end, 1 << 20)
        data, offset = data + bytes(part.buf), part.next_offset
        part.buf.release()
    for offset in range(end):
        size = len(event_batch(offset))
        assert data[:8] == offset.to_bytes(8, "big") and data[16:size] == event_batch(offset)[16:]
        data = data[size:]
    names = target.shard.disk.list(log.directory)
    assert "chunk-000000.idx" in names and not any("-1.log" in one for one in names)
    cast(Any, target.partition.group).lead()
    target.fill(range(end, end + 10))
    assert target.partition.log.next_offset == end + 10
    target.shard.stop()


def test_a_topic_that_is_deleted_meanwhile_leaves_nothing() -> None:
    source, target = Node(3), Node(4)
    source.fill(range(40))
    target.fill(range(3))
    cast(Any, target.partition.group).events.on_install(received(source, target))
    target.lifecycle.delete("t", TOPIC)
    assert target.table.find("t", 0) is None
    directory = partition_directory(DATA_DIR, TOPIC, 0).rpartition("/")[0]
    target.shard.run(lambda: not exists(target.shard.disk, directory))
    assert not exists(target.shard.disk, directory)


def test_without_room_it_is_tried_again_and_a_stop_meanwhile_keeps_the_files() -> None:
    source, target = Node(5), Node(6)
    source.fill(range(40))
    target.fill(range(3))
    files = received(source, target)
    wal = target.shard.storage.wal
    add_note, refused = wal.add_note, [1, 2]

    def full(*arguments: Any) -> None:
        if refused:
            refused.pop()
            raise ArenaFull("full")
        add_note(*arguments)

    wal.add_note = full  # type: ignore[method-assign]
    cast(Any, target.partition.group).events.on_install(files)
    target.shard.run(lambda: not refused and target.shard.storage.checkpointer.changing)
    target.shard.stop()
    report = recover_locally(target.shard.disk, replicated=True)
    assert report.clean
    shard = LocalShard(target.shard.disk, random.Random(1), clean=True)
    config: Any = shard.config()
    log = shard.storage.open_partition_log(7, TOPIC, "t", 0, config, clean=True, replicated=True)
    assert log.next_offset == files.end_offset


def test_files_that_can_not_be_opened_are_put_aside_and_asked_for_again() -> None:
    source, target = Node(7), Node(8)
    source.fill(range(40))
    target.fill(range(3))
    files = received(source, target)
    epochs = f"{files.directory}/epochs"
    target.shard.disk.flip(epochs, target.shard.disk.size(epochs) - 1)  # type: ignore[attr-defined]
    cast(Any, target.partition.group).events.on_install(files)
    target.shard.run(lambda: isinstance(target.table.find("t", 0), Partition))
    opened = target.table.find("t", 0)
    assert isinstance(opened, Partition)
    assert opened.log.lost
    assert opened.log.next_offset == 0
