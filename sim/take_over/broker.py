"""One broker of a history: it starts, registers, applies commands, serves, is paused, and dies."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.app.log_in_store import LogInStore
from millstream.core.controller.commands import ReplicasChanged, TopicCreated
from millstream.core.controller.requests import RegisterBroker
from millstream.core.controller.state import ControllerState
from millstream.errors import MillstreamError, Rejected
from millstream.format.archive import TopicDescription, manifest_key
from millstream.format.manifest import decode_manifest, encode_manifest
from millstream.helper.link import CallId
from millstream.iobuf import ArenaFull
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.quantities import Offset, RaftGroupId, ShardId
from millstream.model.shared import ObjectId, SharedPartition
from millstream.partition.table import Restoring
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.storage.disk import exists
from millstream.storage.segments.files import remove_deleted
from millstream.tiers import Archive
from millstream.tiers.log_worker import LogWorker
from millstream.tiers.messages import Restored, Share, SharedPart
from millstream.tiers.packing import end_of
from millstream.tiers.partition_archive import StoredStart
from millstream.tiers.shared_wal import SharedWal
from millstream.tiers.wal_lives import begin_life
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, place_of, plain_batch, recover_locally
from sim.take_over.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.cluster import BrokerEpoch
    from millstream.storage.log.log import Log
    from sim.take_over.world import World

INTERVAL_US: Final = 20_000
ENTRY_BYTES: Final = 2_000
_AGAIN_US: Final = 200_000
_UPLOAD_BYTES: Final = 3_000


class Appended(NamedTuple):
    """A record on its way: where it is, and what it says."""

    offset: int
    value: bytes


class Served:
    """A partition that a broker believes to lead."""

    def __init__(self, log: Log, group: SoleVoterGroup, archive: Any) -> None:
        self.log = log
        self.group = group
        self.archive = archive
        self.waiting: deque[Appended] = deque()
        self.deletions: list[Offset] = []
        """Log starts that a client has asked for."""
        self.uploads = False
        """An object is on its way."""
        self.saves = False
        """The manifest object is on its way."""

    @property
    def archived_end(self) -> Offset:
        """End of what objects have, and the partition has committed."""
        return self.archive.archive.end_offset


def _ignore(*_: object) -> None:
    """A mailbox of the only shard."""


class Broker:
    """Lifecycle: `start` and `die`, any number of times; `step` while it is up and not paused."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = NodeId(node)
        self.disk = SimDisk(world.chance)
        self.incarnation = Incarnation(world.chance.randbytes(16))
        self.replace = False
        """The disk is empty, and takes the place of another."""
        self.life = 0
        self.up = self.paused = False
        self.in_store = True
        """``shared.wal=object`` since the last start."""
        self.state = ControllerState()
        self.applied = 0
        self.shard: LocalShard | None = None
        self.wal: SharedWal | None = None
        self.link: Link | None = None
        self.log_in_store: LogInStore | None = None
        self.epoch: BrokerEpoch | None = None
        self.ready = False
        self.served: dict[int, Served] = {}
        self.restoring: dict[int, Restoring] = {}
        self.removing: set[int] = set()
        self.archived: dict[int, Offset] = {}
        """On its disk: the archived end of each partition that it has."""

    def __str__(self) -> str:
        held = [group for group in self.world.groups if self._holds(group)]
        return (
            f"broker {self.node} up {self.up}, epoch {self.epoch}, ready {self.ready}, applied {self.applied}, holds "
            f"{held}, serves {list(self.served)}, restores {list(self.restoring)}, removes {list(self.removing)}"
        )

    # Life

    def start(self) -> None:
        """Start; the store may delay it."""
        self.life += 1
        self.up, self.paused, self.ready, self.epoch = True, False, False, None
        self.served, self.restoring, self.removing = {}, {}, set()
        self.wal = self.link = self.log_in_store = None
        self.world.later(self._begin, self.life)

    def _begin(self, life: int) -> None:
        if life != self.life:
            return
        writer = None
        if self.in_store:
            try:
                writer = begin_life(self.world.store, self.node, self.incarnation.hex(), 1)
            except MillstreamError:
                self.world.after(_AGAIN_US, self._begin, life)
                return
        gone = {group for group in self.world.groups if not self._holds(group)}
        now_ms = self.world.now // 1000
        report = recover_locally(self.disk, now_ms=now_ms, deleted=gone)
        assert not report.faults, report.faults
        self.shard = shard = LocalShard(
            self.disk, self.world.chance, now_ms=now_ms, memory_bytes=1 << 20, clean=report.clean
        )
        for group in gone:
            self._remove_files(group)
            self.archived.pop(group, None)
        if writer is not None:
            worker = LogWorker(self.world.store, self.world.store, self.disk, shard.arena.view, writer, ShardId(0))
            self.link = Link(self, worker)
            link: Any = self.link
            reactor: Any = shard.reactor
            self.wal = SharedWal(
                reactor, link, shard.stats, INTERVAL_US, ENTRY_BYTES, self._describe, self._begin_anew, held=True
            )
            self._join_take_overs(self.wal)
        for group in self.world.groups:
            if self._holds(group):
                self._open(group)
        self._register(life)

    def _join_take_overs(self, wal: SharedWal) -> None:
        assert self.shard is not None
        self._controller = SimpleNamespace(on_taken=lambda: None, submit=self._submit)
        near: Any = SimpleNamespace(
            id=0,
            count=1,
            reactor=self.shard.reactor,
            mailbox=SimpleNamespace(serve=_ignore, tell=_ignore),
        )
        table: Any = SimpleNamespace(by_id={b"": []})
        self._entries: list[Any] = table.by_id[b""]
        metadata: Any = SimpleNamespace(node_id=self.node)
        self._metadata = metadata
        controller: Any = self._controller
        self.log_in_store = LogInStore(near, table, wal, metadata, controller, self._begin_anew)

    def _register(self, life: int) -> None:
        if life != self.life:
            return
        if self.paused:
            self.world.later(self._register, life)
            return
        request = RegisterBroker(
            "", self.node, self.incarnation, self.world.profile(self.node, log_in_store=self.in_store)
        )
        if self.replace:
            request = RegisterBroker(
                "", self.node, self.incarnation, request.profile, replace=True, replacement=self.world.number()
            )
        (result,) = self.world.decide(request)
        if result.error:
            self.world.after(_AGAIN_US, self._register, life)  # the disk before counts as alive
        else:
            self.epoch, self.replace = result.broker_epoch, False

    def die(self, *, torn: bool) -> None:
        """The process ends without a word."""
        self.life += 1
        self.up = self.paused = self.ready = False
        self.wal = self.link = self.log_in_store = self.shard = None
        self.served = {}
        self.disk.crash(torn=torn)

    def lose_disk(self) -> None:
        """It comes back with an empty one."""
        self.disk = SimDisk(self.world.chance)
        self.incarnation = Incarnation(self.world.chance.randbytes(16))
        self.replace = True
        self.state, self.applied = ControllerState(), 0
        self.archived = {}

    def _begin_anew(self, why: str) -> None:
        self.world.note(f"starts again: {why.partition(':')[0]}")
        if self.up:
            self.die(torn=False)
            self.start()

    # Commands

    def apply(self) -> None:
        """The next command has come to this broker."""
        command = self.world.commands[self.applied]
        before = self.state.copy()
        self.state.apply(command)
        self.applied += 1
        if isinstance(command, ReplicasChanged) and self.shard is not None:
            self._replicas_changed(command, before)
        elif isinstance(command, TopicCreated) and self.shard is not None:
            for part in command.partitions:
                if part.replicas == (self.node,):
                    self._open(part.raft_group)
        if self.up and not self.ready:
            self._check_ready()

    def _replicas_changed(self, command: ReplicasChanged, before: ControllerState) -> None:
        partitions = before.topics.by_id[command.topic_id].partitions
        for change in command.changes:
            group = partitions[change.index].raft_group
            if change.replicas == (self.node,):
                self._open(group)
            else:
                self._leave(group)
        taken = any(partitions[change.index].replicas == (self.node,) for change in command.changes)
        if taken and self.ready and self.log_in_store is not None:
            self._controller.on_taken()

    def _check_ready(self) -> None:
        own = self.state.registry.brokers.get(self.node)
        if own is None or own.epoch != self.epoch or own.fenced or self.shard is None:
            return
        self.ready = True
        if self.log_in_store is not None:
            self._metadata.state = self.state
            self.log_in_store.registered()

    def _submit(self, request: Any, done: Callable[[Any], None]) -> None:
        """To the active controller; it may be lost, or late."""
        if self.world.chance.random() < 0.8:
            self.world.later(lambda: done(self.world.decide(request)))

    # Partitions

    def _holds(self, group: int) -> bool:
        place = self.world.place_in(self.state, group)
        return place is not None and place.replicas == (self.node,)

    def _describe(self, topic_id: bytes) -> TopicDescription | None:
        return TopicDescription("t", topic_id.hex(), len(self.world.groups), {}, "", 1)

    def _open(self, group: int) -> None:
        """As `partition.replica.moving` and `Lifecycle.open`."""
        shard = self.shard
        assert shard is not None
        if group in self.served or group in self.restoring:
            return
        directory = place_of(group).directory
        if group in self.removing:
            self.world.later(self._open_later, self.life, group)
        elif exists(self.disk, directory):
            self._opened(group)
        elif self.link is None:
            own = self.state.registry.brokers[self.node]
            if group not in self.state.origins and own.incarnation == self.incarnation:
                self._opened(group)  # no other disk ever had it; otherwise its group would wait for its members
        else:
            config: Any = None
            members: Any = None
            entry = Restoring("t", self.world.index(group), RaftGroupId(group), ShardId(0), config, directory, members)
            self.restoring[group] = entry
            self._ask(group, entry)

    def _open_later(self, life: int, group: int) -> None:
        if life == self.life and self._holds(group):
            self._open(group)

    def _ask(self, group: int, entry: Restoring) -> None:
        if self.restoring.get(group) is not entry or self.link is None:
            return
        entry.asked = True
        self.link.restore(self.world.owner(group), entry.directory, lambda reply: self._restored(group, entry, reply))

    def _restored(self, group: int, entry: Restoring, reply: Any) -> None:
        entry.answered()
        if self.restoring.get(group) is not entry:
            return
        if isinstance(reply, Restored):
            del self.restoring[group]
            self.world.note("restored" if reply.records else "restored nothing")
            self._opened(group)
        else:
            assert not isinstance(reply, Rejected), reply
            assert self.shard is not None
            self.shard.reactor.call_later(_AGAIN_US, lambda: self._ask(group, entry))

    def _opened(self, group: int) -> None:
        shard = self.shard
        assert shard is not None
        log = shard.open(group)
        served = SoleVoterGroup(log, self.world.next_term(group))
        end = max(self.archived.get(group, Offset(0)), log.files.local_start)
        self.archived[group] = end
        archive: Any = SimpleNamespace(
            log=log,
            owner=self.world.owner(group),
            group=served,
            archive=SimpleNamespace(start_offset=log.start_offset, end_offset=end),
            start=StoredStart(log),
        )
        if self.wal is not None:
            self.wal.open(archive)
        log.owner.on_trimmed = lambda: self._trimmed(group, archive)
        self.served[group] = Served(log, served, archive)
        self.world.leaders[group] = self.node

    def _leave(self, group: int) -> None:
        """Others hold it: its files go."""
        shard, life = self.shard, self.life
        assert shard is not None
        served, entry = self.served.pop(group, None), self.restoring.pop(group, None)
        self.archived.pop(group, None)
        if served is not None:
            self.removing.add(group)
            if self.wal is not None:
                self.wal.close(served.archive)
            shard.storage.delete_log(
                served.log,
                lambda: shard.storage.wal.when_durable(
                    lambda: shard.storage.checkpointer.request(lambda: self.removing.discard(group))
                ),
            )
        elif entry is not None:
            self.removing.add(group)

            def gone() -> None:
                if life == self.life:
                    self._remove_files(group)
                    self.removing.discard(group)

            entry.when_answered(gone)

    def _remove_files(self, group: int) -> None:
        directory = place_of(group).directory
        if exists(self.disk, directory):
            remove_deleted(self.disk, directory)
            self.disk.sync_directory(os.path.dirname(directory))

    # The archive

    def upload(self, group: int) -> None:
        """Put what the group has announced into an object, as `SharedUploads` does of many partitions."""
        served = self.served.get(group)
        if served is None or self.link is None or served.uploads or not self.ready:
            return
        begin, end = served.archived_end, Offset(served.group.high_watermark)
        if begin >= end:
            return
        found = served.log.read(begin, end, _UPLOAD_BYTES, minimum_one=True)
        if found is None or isinstance(found, MillstreamError) or not len(found):
            return
        spans = [at for piece, start, stop in found.parts for at in (piece.offset + start, piece.offset + stop)]
        last = end_of(found)
        owner = served.archive.owner
        partition = SharedPartition(owner.topic_id.bytes, owner.partition_index)
        part = SharedPart(partition, begin, last, spans, [])
        served.uploads = True
        self._share(self.life, served, Share(CallId(0), ObjectId(self.world.number()), [part]), found)

    def _share(self, life: int, served: Served, command: Share, data: Any) -> None:
        def done(error: MillstreamError | None) -> None:
            if error is not None and served.group.log.closed is False:
                self.world.after(_AGAIN_US, again)
                return
            data.release()
            served.uploads = False
            if error is None and self.wal is not None:
                self._commit(served, command.parts[0].end_offset)

        def again() -> None:
            if life == self.life:
                self._share(life, served, command, data)

        if self.link is not None:
            self.link.share(command, done)

    def _commit(self, served: Served, end_offset: Offset) -> None:
        """The partition knows the object."""
        group = next((one for one, other in self.served.items() if other is served), None)
        if group is not None:
            self.world.note("uploaded")
            served.archive.archive.end_offset = self.archived[group] = end_offset

    def _trimmed(self, group: int, archive: Any) -> None:
        """As `PartitionArchive.trimmed`."""
        end = max(archive.archive.end_offset, archive.log.start_offset)
        archive.archive.end_offset = self.archived[group] = end
        archive.archive.start_offset = archive.log.start_offset
        archive.start.moved()

    def save_start(self, served: Served) -> None:
        """Write the manifest object if the log starts later than the one in the store says, as the archiver does."""
        archive, link = served.archive, self.link
        if link is None or served.saves or not self.ready or archive.start.saved >= served.log.start_offset:
            return
        start = served.log.start_offset
        data = encode_manifest(Archive(start).manifest(archive.owner))
        served.saves = True

        def examined(found: Any) -> None:
            if isinstance(found, MillstreamError):
                served.saves = False
            elif found.data and decode_manifest(found.data).start_offset > start:
                served.saves = False  # another broker's
            else:
                link.replace(manifest_key(archive.owner), data, found.version, replaced)

        def replaced(found: Any) -> None:
            served.saves = False
            if not isinstance(found, MillstreamError):
                self.world.note("start saved")
                archive.start.saved = max(archive.start.saved, start)

        link.examine(manifest_key(archive.owner), examined)

    # Clients

    def delete(self, group: int, part: float) -> None:
        """A client deletes the first ``part`` of the records that this broker shows it."""
        served = self.served.get(group)
        if served is None or not self.ready or not served.group.knows_committed:
            return
        start = Offset(int(part * served.group.high_watermark))
        try:
            if start > served.log.start_offset:
                served.group.propose_log_start(start)
        except ArenaFull:
            return  # it is refused
        self.world.judge.asked(group, start)
        served.deletions.append(start)

    def produce(self, group: int, value: bytes) -> None:
        """A client sends a record to this broker, if it leads the partition to its own knowledge."""
        served = self.served.get(group)
        if served is None or not self.ready:
            return
        data = plain_batch(0, 1, value)
        try:
            base = served.group.replicate((memoryview(data),), len(data), 1, 1000)
        except ArenaFull:
            return  # it is refused
        served.waiting.append(Appended(base, value))

    def acknowledge(self) -> None:
        """Answer what the group has announced."""
        for group, served in self.served.items():
            while served.waiting and served.waiting[0].offset < served.group.high_watermark:
                self.world.judge.acknowledged(group, served.waiting.popleft(), self.node)
            if served.deletions:
                safe = served.archive.start.safe()
                for start in [one for one in served.deletions if one <= safe]:
                    self.world.judge.deleted(group, start)
                served.deletions = [one for one in served.deletions if one > safe]

    def step(self) -> None:
        """One thing happens here."""
        shard = self.shard
        if shard is not None:
            shard.step()
            if self.shard is shard:
                self.acknowledge()

    def wait(self, until_us: int) -> None:
        """Time goes by."""
        shard = self.shard
        while shard is not None and self.shard is shard and shard.reactor.sleep(until_us):
            pass
        if shard is not None and self.shard is shard:
            shard.reactor.advance(until_us - shard.reactor.now_us())

    @property
    def is_settled(self) -> bool:
        """Whether all that it holds is served, and the store has it."""
        held = [group for group in self.world.groups if self._holds(group)]
        if not self.ready or self.applied < len(self.world.commands) or not all(one in self.served for one in held):
            return False
        gates = () if self.wal is None else self.wal._gates.values()
        return all(one.confirmed >= one.archive.log.durable_offset for one in gates) and not any(
            one.waiting or one.deletions for one in self.served.values()
        )
