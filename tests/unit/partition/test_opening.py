"""A replica that is opened on a full disk is opened once there is room; another failure ends that partition."""

import errno
import random
from types import SimpleNamespace

from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.partition.append.checks import append
from millstream.partition.opening import open_with_room
from millstream.partition.replica.members import Members
from millstream.partition.replica.moving import Place
from millstream.partition.table import Elsewhere, Waiting
from millstream.storage.segments.index import index_path
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.storage.life import Life
from sim.storage.models import TopicModel


class Host:
    """A reactor and a storage, as far as they are asked here."""

    def __init__(self) -> None:
        self.stopping = False
        self.failures: list[str] = []
        self.later = []
        self.reactor = SimpleNamespace(call_later=lambda _, call: self.later.append(call))

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


def attempt(host, errors, wanted=lambda: True):
    got = []

    def opened():
        if errors:
            raise OSError(errors.pop(0), "refused")
        return "partition"

    open_with_room(host.reactor, host, "t/0", wanted, opened, got.append)
    return got


def test_it_is_opened_at_once_if_there_is_room():
    host = Host()
    assert attempt(host, []) == ["partition"]
    assert not host.later and not host.failures


def test_a_full_disk_is_waited_for():
    host = Host()
    got = attempt(host, [errno.ENOSPC, errno.EDQUOT])
    assert not got
    host.later.pop()()
    assert not got
    host.later.pop()()
    assert got == ["partition"]
    assert not host.later and not host.failures


def test_what_is_not_wanted_any_more_is_not_opened():
    host = Host()
    wanted = [True, False]
    got = attempt(host, [errno.ENOSPC], lambda: wanted.pop(0))
    host.later.pop()()
    assert not got and not host.later


def test_nothing_is_opened_while_the_shard_stops():
    host = Host()
    host.stopping = True
    assert not attempt(host, [])


SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 4 * 65_536}


def start(disk: SimDisk, topics: list[TopicModel]) -> Life:
    return Life(disk, random.Random(1), topics, shards=1, now_ms=1_700_000_000_000, settings=SETTINGS)


def without_an_index(topics: list[TopicModel]) -> tuple[SimDisk, str]:
    """A disk on which the topics have a batch each and the first of them has no index; the path of that index."""
    disk = SimDisk(random.Random(1))
    life = start(disk, topics)
    for topic in topics:
        data = build_batch([(None, bytes(500), (), 1000)], producer_id=1, producer_epoch=0, base_sequence=0)
        append(life.partition(topic), [memoryview(data)], len(data), 1000, accepts_writes=True)
    shard = life.shard(1)
    shard.run(lambda: shard.storage.wal.idle)
    shard.call(shard.storage.checkpoint)
    (segment,) = life.partition(topics[0]).log.segments()
    disk.crash(torn=False)
    path = index_path(segment.path)
    disk.unlink(path)
    return disk, path


class FullFor:
    """No room for one file; recovery before it finds some."""

    def __init__(self, disk: SimDisk, path: str, code: int) -> None:
        self.disk = disk
        self.path = path
        self.code = code
        disk.fail = self

    def __call__(self, kind: str, path: str) -> int:
        return self.code if kind == "create" and path.startswith(self.path) else 0

    def end(self) -> None:
        self.code = 0


def test_a_partition_is_opened_after_the_start_once_there_is_room_for_its_index() -> None:
    topics = [TopicModel(1, "waits", {}), TopicModel(2, "there", {})]
    disk, path = without_an_index(topics)
    full = FullFor(disk, path, errno.ENOSPC)
    life = start(disk, topics)
    table = life.cell(1).table
    assert isinstance(table.find("waits", 0), Waiting)
    assert life.partition(topics[1]).log.next_offset == 1
    assert not life.fault(topics[0])
    life.shard(1).run(lambda: False, 3_000_000)
    assert isinstance(table.find("waits", 0), Waiting)
    full.end()
    life.shard(1).run(lambda: table.local("waits", 0) is not None, 3_000_000)
    assert life.partition(topics[0]).log.next_offset == 1
    assert table.by_group[1] is life.partition(topics[0])
    life.stop()


def test_a_topic_that_is_deleted_while_it_waits_for_room_is_not_opened_and_its_files_go() -> None:
    topics = [TopicModel(1, "waits", {})]
    disk, path = without_an_index(topics)
    full = FullFor(disk, path, errno.ENOSPC)
    life = start(disk, topics)
    life.delete(topics[0])
    full.end()
    life.shard(1).run(lambda: False, 3_000_000)
    assert life.cell(1).table.find("waits", 0) is None
    directory = path.rpartition("/")[0]
    assert not any(name.startswith(directory) for name, _ in disk.files())
    life.stop()


def test_a_replica_that_moves_away_while_it_waits_for_room_is_not_opened_and_its_files_go() -> None:
    topics = [TopicModel(1, "waits", {})]
    disk, path = without_an_index(topics)
    full = FullFor(disk, path, errno.ENOSPC)
    life = start(disk, topics)
    cell, topic = life.cell(1), topics[0]
    waiting = cell.table.find("waits", 0)
    assert isinstance(waiting, Waiting)
    group, index = RaftGroupId(1), PartitionIndex(0)
    cell.lifecycle.change_replicas(Place("waits", topic.topic_id, index, group, None, waiting.config, Members()))
    full.end()
    life.shard(1).run(lambda: False, 3_000_000)
    assert type(cell.table.find("waits", 0)) is Elsewhere
    directory = path.rpartition("/")[0]
    assert not any(name.startswith(directory) for name, _ in disk.files())
    life.stop()


def test_a_disk_that_fails_at_the_start_ends_the_partition_whose_files_it_cannot_write() -> None:
    topics = [TopicModel(1, "waits", {}), TopicModel(2, "there", {})]
    disk, path = without_an_index(topics)
    full = FullFor(disk, path, errno.EIO)
    life = start(disk, topics)
    assert "Input/output error" in life.fault(topics[0])
    assert life.partition(topics[1]).log.next_offset == 1
    full.end()
    assert start(disk, topics).partition(topics[0]).log.next_offset == 1
