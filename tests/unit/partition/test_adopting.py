"""A partition whose log is replaced by files of its leader: closed, replaced, opened again, or deleted meanwhile."""

import random
from types import SimpleNamespace
from typing import Any, cast

from adopting_support import TOPIC, Node, event_batch, received

from millstream.format.names import partition_directory
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.partition.table import Adopting
from millstream.storage.disk import exists
from millstream.storage.log.exporting import read_batches
from sim.engine.local_storage import DATA_DIR, LocalShard, recover_locally


class Waiter:
    """A fetch that waits for data."""

    def __init__(self, told: list[Any]) -> None:
        self.wake = lambda: told.append("woken")


def test_the_partition_is_opened_again_on_the_new_files() -> None:
    source, target = Node(1), Node(2)
    source.fill(range(40))
    target.fill(range(3))
    files = received(source, target)
    before = target.partition
    acks = cast(Any, SimpleNamespace(failed=lambda slot, error: told.append(error)))
    told: list[Any] = []
    before.waiters.readers.add(cast(Any, Waiter(told)))
    before.waiters.acks.append((99, acks, 0))
    cast(Any, before.group).events.on_install(files)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER, "woken"]
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
    assert [one.base_offset for one in log.files.segments.all()] == [*range(0, end + 1, 6)]
    data, offset = b"", 0
    while offset < end:
        part = target.shard.call(read_batches, log, target.shard.storage.reads.cold, offset, end, 1 << 20)
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
    target.shard.run(lambda: not refused and target.shard.storage.checkpointer.changes)
    target.shard.stop()
    report = recover_locally(target.shard.disk, replicated=True)
    assert report.clean
    shard = LocalShard(target.shard.disk, random.Random(1), clean=True)
    config: Any = shard.config()
    log = shard.storage.registry.open_partition_log(7, TOPIC, "t", 0, config, clean=True, replicated=True)
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
    assert opened.log.files.lost
    assert opened.log.next_offset == 0
