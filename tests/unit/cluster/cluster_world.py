"""A broker's control plane in one thread: real mailboxes and rings, reactors that a test turns by hand, a log whose
syncs the test decides, and a disk that forgets in a crash what was not synced."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from millstream.cluster.client import ControllerClient
from millstream.cluster.controller import Controller
from millstream.cluster.follower import Follower
from millstream.cluster.load import load_cluster
from millstream.cluster.metadata import MetadataCache, MetadataListener
from millstream.cluster.producer_ids import ProducerIds
from millstream.cluster.snapshots import Snapshots
from millstream.cluster.state_files import SnapshotStore, controller_log_directory
from millstream.cluster.topic_table import TopicMeta
from millstream.config.settings import Settings
from millstream.core.controller.commands import AnyCommand, decode_command
from millstream.core.controller.requests import AnyRequest, CreateTopic, CreateTopics, Results
from millstream.errors import MillstreamError
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.shard.context import Shard
from millstream.shard.mailbox import Mailbox
from millstream.shard.mesh import Mesh
from millstream.storage.disk import make_directories, write_all
from millstream.storage.log.owner import LogOwner
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.records import iter_batches, iter_records, parse_header

DATA = "/data"

open_worlds: list[World] = []
"""Worlds whose descriptors are still open; closed after each test."""


class Crash(BaseException):
    """The process is gone at this very point."""


class Steps:
    """Counts what happens, and ends the process at one step."""

    def __init__(self, crash_at: int = -1) -> None:
        self.taken = 0
        self.crash_at = crash_at

    def __call__(self) -> None:
        if self.taken == self.crash_at:
            raise Crash
        self.taken += 1


class Inode:
    def __init__(self, durable: bytes = b"") -> None:
        self.now = bytearray(durable)
        self.durable = durable


class MemoryFile:
    def __init__(self, path: str, inode: Inode, steps: Steps) -> None:
        self.path = path
        self.inode = inode
        self.steps = steps

    def pwritev(self, buffers: Sequence[Any], position: int) -> int:
        self.steps()
        data = b"".join(bytes(buffer) for buffer in buffers)
        now = self.inode.now
        if len(now) < position:
            now += bytes(position - len(now))
        now[position : position + len(data)] = data
        return len(data)

    def preadv(self, buffers: Sequence[Any], position: int) -> int:
        total = 0
        for buffer in buffers:
            part = self.inode.now[position + total : position + total + len(buffer)]
            buffer[: len(part)] = part
            total += len(part)
        return total

    def preadv_cached(self, buffers: Sequence[Any], position: int) -> int:
        return self.preadv(buffers, position)

    def sync(self) -> None:
        self.steps()
        self.inode.durable = bytes(self.inode.now)

    def size(self) -> int:
        return len(self.inode.now)

    def truncate(self, size_bytes: int) -> None:
        self.steps()
        del self.inode.now[size_bytes:]

    def close(self) -> None: ...


class MemoryDisk:
    """Files and directories in memory. Names and contents are durable only once they were synced."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.names: dict[str, Inode | None] = {DATA: None}
        self.durable_names: dict[str, Inode | None] = {DATA: None}
        self.full = False

    def crashed(self, steps: Steps) -> MemoryDisk:
        """What a machine finds after it lost its power."""
        other = MemoryDisk(steps)
        other.names = {
            path: None if inode is None else Inode(inode.durable) for path, inode in self.durable_names.items()
        }
        other.durable_names = dict(other.names)
        return other

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(path)
            if self.full:
                raise OSError(28, "No space left on device", path)
            self.steps()
            inode = self.names[path] = Inode()
        return MemoryFile(path, inode, self.steps)

    def size(self, path: str) -> int:
        if path not in self.names:
            raise FileNotFoundError(path)
        inode = self.names[path]
        return 0 if inode is None else len(inode.now)

    def list(self, directory: str) -> list[str]:
        if directory not in self.names:
            raise FileNotFoundError(directory)
        return [os.path.basename(path) for path in self.names if os.path.dirname(path) == directory]

    def make_directory(self, path: str) -> bool:
        if path in self.names:
            return False
        if os.path.dirname(path) not in self.names:
            raise FileNotFoundError(path)
        self.steps()
        self.names[path] = None
        return True

    def remove_directory(self, path: str) -> None:
        raise AssertionError("nothing here removes a directory")

    def rename(self, source: str, target: str) -> None:
        self.steps()
        self.names[target] = self.names.pop(source)

    def unlink(self, path: str) -> None:
        self.steps()
        del self.names[path]

    def sync_directory(self, path: str) -> None:
        self.steps()
        for known in (self.names, self.durable_names):
            for name in list(known):
                if os.path.dirname(name) == path:
                    if name in self.names:
                        self.durable_names[name] = self.names[name]
                    else:
                        self.durable_names.pop(name, None)

    def watch(self, path: str) -> None:
        """Nobody else syncs this disk."""

    def sync_all(self, path: str) -> None:
        raise AssertionError("nothing here syncs everything")

    def free_bytes(self, path: str) -> int:
        return 1 << 40


class FakeTimer:
    def __init__(self, deadline_us: int, callback: Callable[[], None]) -> None:
        self.deadline_us = deadline_us
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandReactor:
    """A reactor that runs when the test says so. Its clock is the real one plus what the test adds."""

    def __init__(self, shard_id: int, steps: Steps) -> None:
        self.shard_id = shard_id
        self.stats = StatsSlab()
        self.steps = steps
        self.skew_us = 0
        self.ready: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.enders: list[Callable[[], None]] = []
        self.timers: list[FakeTimer] = []
        self.readers: dict[int, Callable[[], None]] = {}

    def now_us(self) -> int:
        return time.perf_counter_ns() // 1000 + self.skew_us

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        self.ready.append((callback, args))

    def end_of_turn(self, callback: Callable[[], None]) -> None:
        self.enders.append(callback)

    def call_at(self, deadline_us: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(deadline_us, callback)
        self.timers.append(timer)
        return timer

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> FakeTimer:
        return self.call_at(self.now_us() + delay_us, callback)

    def background(
        self, work: str, generator: Generator[None, None, None], share: float, done: Callable[[], None] | None = None
    ) -> None:
        def step() -> None:
            try:
                next(generator)
            except StopIteration:
                if done is not None:
                    done()
            else:
                self.call_soon(step)

        self.call_soon(step)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readers[fd] = callback

    def stop(self, exit_code: int = 0, reason: str = "") -> None:
        raise AssertionError(f"the shard stops with {exit_code}: {reason}")

    def turn(self) -> bool:
        """One turn; whether anything happened."""
        waiting = select.poll()  # select() takes no descriptor above 1023, and a long session has such
        for fd in self.readers:
            waiting.register(fd, select.POLLIN)
        readable = [fd for fd, _ in waiting.poll(0)]
        work: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self.readers[fd], ()) for fd in readable]
        now_us = self.now_us()
        for timer in self.timers:
            if timer.callback is not None and timer.deadline_us <= now_us:
                work.append((timer.callback, ()))
                timer.callback = None
        self.timers = [timer for timer in self.timers if timer.callback is not None]
        work += self.ready
        self.ready.clear()
        for callback, args in work:
            self.steps()
            callback(*args)
        while self.enders:
            enders, self.enders = self.enders, []
            for callback in enders:
                callback()
        return bool(work)


class HandLog:
    """Group 0's log: batches in memory, durable when the test syncs."""

    def __init__(self, batches: Sequence[bytes], start_offset: int = 0) -> None:
        self.batches = list(batches)  # those that are still there
        self.history: list[AnyCommand] = []  # everything ever appended since this log object exists
        self.start_offset = start_offset
        self.next_offset = parse_header(self.batches[-1]).next_offset if self.batches else start_offset
        self.durable_offset = self.next_offset
        self.owner = LogOwner()
        self.refuse: Exception | None = None

    def make_room(self, views: Sequence[memoryview], size: int, last_offset: int, epoch: int) -> None:
        if self.refuse is not None:
            raise self.refuse

    def write(
        self,
        views: Sequence[memoryview],
        size: int,
        base_offset: int,
        last_offset: int,
        epoch: int,
        max_timestamp: int,
        pieces: None,
    ) -> None:
        assert base_offset == self.next_offset
        batch = bytearray(b"".join(views))
        assert len(batch) == size
        batch[:8] = base_offset.to_bytes(8, "big")
        batch[12:16] = epoch.to_bytes(4, "big")
        self.batches.append(bytes(batch))
        self.history += [decode_command(record.value or b"") for record in iter_records(batch)]
        self.next_offset = last_offset + 1

    def sync(self) -> None:
        """What was appended so far is durable."""
        if self.durable_offset < self.next_offset:
            self.durable_offset = self.next_offset
            assert self.owner.on_durable is not None
            self.owner.on_durable(self.durable_offset)

    def trim_prefix(self, offset: int) -> None:
        """Each batch is a segment of its own here."""
        assert offset <= self.durable_offset
        self.batches = [batch for batch in self.batches if parse_header(batch).next_offset > offset]
        self.start_offset = max(self.start_offset, offset)

    def durable_batches(self) -> list[bytes]:
        return [batch for batch in self.batches if parse_header(batch).next_offset <= self.durable_offset]


class Recorder(MetadataListener):
    """Writes down what a shard's listeners are told; takes two steps to open a topic."""

    def __init__(self, cache: MetadataCache) -> None:
        self.cache = cache
        self.events: list[tuple[Any, ...]] = []

    def topic_created(self, topic: TopicMeta) -> Generator[None, None, None]:
        assert self.cache.topic(topic.name) is topic
        yield
        self.events.append(("created", topic.name, len(topic.partitions)))

    def topic_deleted(self, topic: TopicMeta) -> None:
        assert self.cache.topic_by_id(topic.topic_id) is None
        self.events.append(("deleted", topic.name))

    def partitions_added(self, topic: TopicMeta, first_index: int) -> None:
        self.events.append(("grown", topic.name, first_index, len(topic.partitions)))

    def configs_changed(self, topic: TopicMeta) -> None:
        self.events.append(("configs", topic.name, topic.config.retention_ms))

    def settings_changed(self, settings: Settings) -> None:
        self.events.append(("settings", settings.log_retention_ms))


class Node:
    """One shard of the world."""

    def __init__(self, world: World, shard_id: int) -> None:
        self.reactor = HandReactor(shard_id, world.steps)
        reactor: Any = self.reactor
        mailbox = Mailbox(shard_id, world.mesh, reactor, [])
        arenas: Any = [None] * world.shards
        self.shard = Shard(shard_id, world.shards, reactor, arenas, mailbox, self.reactor.stats)
        self.cache = MetadataCache(world.loaded.state, world.loaded.placement.homes, world.settings)
        self.recorder = Recorder(self.cache)
        self.cache.subscribe(self.recorder)
        self.follower = Follower(self.shard, self.cache)
        self.client = ControllerClient(self.shard, self.cache)
        self.producer_ids = ProducerIds(self.client, self.shard.reactor)


class World:
    """A broker with its controller on shard 0."""

    def __init__(
        self,
        shards: int = 2,
        *,
        disk: MemoryDisk | None = None,
        steps: Steps | None = None,
        log: HandLog | None = None,
        interval_us: int = 60_000_000,
        node_id: int = 1,
        **settings: object,
    ) -> None:
        self.shards = shards
        self.steps = steps or Steps()
        self.disk = disk or MemoryDisk(self.steps)
        self.settings = Settings(data_dir=DATA, shards=shards, node_id=node_id, **settings)
        self.options = {"interval_us": interval_us, **settings}
        made: Any = self.disk
        self.loaded = load_cluster(made, self.settings)
        self.mesh = Mesh(shards)
        open_worlds.append(self)
        self.log = log or HandLog([], self.loaded.state.revision)
        self.nodes = [Node(self, shard_id) for shard_id in range(shards)]
        first = self.nodes[0]
        hand_log: Any = self.log
        self.group = SoleVoterGroup(hand_log, 0)
        self.store = SnapshotStore(made, DATA)
        reactor: Any = first.reactor
        self.snapshots = Snapshots(
            reactor, first.cache, self.store, hand_log, made, DATA, self.loaded.placement, interval_us
        )
        self.controller = Controller(
            first.shard, self.group, first.cache, first.follower, self.loaded.placement, self.snapshots
        )

    def close(self) -> None:
        """Give the descriptors back; the world is not turned any more."""
        if self in open_worlds:
            open_worlds.remove(self)
            for bell in self.mesh.bells:
                os.close(bell.fd)

    def start(self) -> World:
        started: list[object] = []
        self.controller.start(started.append)
        self.run()
        assert started == [None]
        return self

    def run(self, *, sync: bool = True) -> None:
        """Let every shard do what it has to do, until nothing is left; with ``sync`` the log is synced when it can."""
        idle = 0
        while idle < 2:
            busy = [node.reactor.turn() for node in self.nodes]
            if sync and self.log.durable_offset < self.log.next_offset:
                self.steps()
                self.log.sync()
                busy.append(True)
            idle = 0 if any(busy) else idle + 1

    def restart(self, *, steps: Steps | None = None, shards: int | None = None) -> World:
        """Power off, power on: what was not durable is gone, recovery writes the log's durable part into segments."""
        self.close()
        steps = steps or Steps()
        disk = self.disk.crashed(Steps())
        log = HandLog(self.log.durable_batches(), self.log.start_offset)
        directory = controller_log_directory(DATA)
        made: Any = disk
        for changed in make_directories(made, directory):
            disk.sync_directory(changed)
        for name in disk.list(directory):
            disk.unlink(os.path.join(directory, name))
        for batch in log.batches:
            file: Any = disk.open(os.path.join(directory, f"{parse_header(batch).base_offset:020d}.log"), create=True)
            write_all(file, [batch], 0)
            file.sync()
        disk.sync_directory(directory)
        disk.steps = steps
        return World(self.shards if shards is None else shards, disk=disk, steps=steps, log=log, **self.options)

    def submit(self, request: AnyRequest, shard: int = 0, timeout_ms: int = 30_000) -> list[Results | MillstreamError]:
        answers: list[Results | MillstreamError] = []
        self.nodes[shard].client.submit(request, answers.append, timeout_ms)
        return answers

    def create(self, name: str, partitions: int = 1, shard: int = 0, **configs: str) -> list[Results | MillstreamError]:
        pairs = tuple((key.replace("_", "."), value) for key, value in configs.items())
        return self.submit(CreateTopics((CreateTopic(name, partitions, configs=pairs),)), shard)

    def stop(self) -> None:
        stopped: list[None] = []
        self.controller.stop(lambda: stopped.append(None))
        self.run()
        assert stopped == [None]

    def caches_agree(self) -> bool:
        caches = [node.cache for node in self.nodes]
        views = [
            [(topic.name, topic.topic_id, topic.partitions, topic.configs) for topic in cache.topics()]
            for cache in caches
        ]
        return all(cache.state == caches[0].state for cache in caches) and all(view == views[0] for view in views)


def history_of(world: World, before: Sequence[AnyCommand] = ()) -> list[AnyCommand]:
    return [*before, *world.log.history]


def batches_of(data: bytes) -> list[bytes]:
    return [bytes(batch) for batch in iter_batches(data)]
