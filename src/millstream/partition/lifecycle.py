"""Open and close partitions as the controller's commands say, on whichever shard is their home.

Every shard applies the same metadata. For each partition the table gets an entry; the home shard also opens the log,
rebuilds what the log implies (term, idempotent producers) and only then lets requests in. A partition whose log
recovery found faulty is entered as such: it is refused by name, and the others are served.

The term of a partition (its leader epoch) never falls, and it is another one after each crash: a suffix that was
visible but not synced (``write.caching``) and was lost must not be mistaken for what takes its place (KIP-101), and a
client that has seen a term believes no lower one (KIP-320). A log remembers only the terms that something was written
in, so the last of them counts together with what the state of the write-ahead log says of crashes (`WalState.term`).
A new partition has term 0, as Kafka's has. With several replicas the term is that of their votes, and the first leader
has term 0 if it is assigned (`core.raft.beginning`).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from millstream.config.settings import Settings
from millstream.config.topic_properties import TopicConfig
from millstream.core.controller.cuts import Cut
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.core.raft.messages import Configuration
from millstream.errors import Corruption
from millstream.format.events.chunk import log_directory
from millstream.format.manifest import ArchiveId
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset, RaftGroupId, ShardId
from millstream.model.replication import NO_REPLICA, NO_TERM, ReplicaId, Term
from millstream.partition.append.admission import Admission
from millstream.partition.append.known_producers import enter_batch
from millstream.partition.boundary import Boundary, is_of_the_shard, words_of
from millstream.partition.events.partition import EventsPartition
from millstream.partition.meters import Meters
from millstream.partition.opening import open_with_room
from millstream.partition.partition import Opened, Partition
from millstream.partition.replica.adopting import Adoption
from millstream.partition.replica.emptied import ask_store
from millstream.partition.replica.following import follow_group
from millstream.partition.replica.members import Members
from millstream.partition.replica.moving import Place, change_replicas
from millstream.partition.replica.repairing import Looks, Repairs, put_aside_at_start
from millstream.partition.replica.restoring import Restoration
from millstream.partition.table import Adopting, Elsewhere, Faulty, PartitionTable, Remote, Restoring, Waiting
from millstream.raft.group import Group, GroupRole
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.shard.context import Shard
from millstream.storage.disk import FULL
from millstream.storage.log.importing import StagedFiles
from millstream.storage.log.log import Log
from millstream.storage.log.lost import has_log
from millstream.storage.log.opening import repair_note
from millstream.storage.recovery.set_aside import is_set_aside
from millstream.storage.recovery.unclean import begin_empty, gives_way
from millstream.storage.segments.files import names_in
from millstream.storage.shard_storage import ShardStorage
from millstream.telemetry.log import log as operator_log
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.archiver import Archiver
from millstream.tiers.partition_archive import PartitionArchive

EXPIRY_SHARE: Final = 0.1

SHOW_US: Final = 10_000_000
"""How old the number of producers in ``/metrics`` may be."""


class ReplicatedGroups(Protocol):
    """The groups with several voters of one shard (`raft.shard.RaftShard`)."""

    def open(
        self,
        group: RaftGroupId,
        log: Log,
        first: Configuration,
        least_term: Term = NO_TERM,
        first_term: Term | None = None,
        *,
        created: bool = False,
    ) -> Group:
        """Bring up this broker's replica of a group on its log."""
        ...

    def close(self, group: Any) -> None:
        """Close a replica that ``open`` gave, before its log is deleted."""
        ...

    def vote_on(self, log: Log, set_aside: Callable[[], None], *, has_led: bool) -> None:
        """The replica of a log that has failed votes on."""
        ...

    def stop_voting(self, group: RaftGroupId) -> None:
        """It is silent from now on."""
        ...

    def lead_alone(self, number: RaftGroupId) -> None:
        """Lead a group as its only voter, without an election (`core.raft.forcing`)."""
        ...


class _Counts:
    """What the metrics say of the partitions of one shard."""

    __slots__ = ("_failed", "_faulty", "_served", "_table", "expired", "producer_ids")

    def __init__(self, stats: StatsSlab, table: PartitionTable) -> None:
        self._table = table
        self._served = stats.gauge("partitions", state="served")
        self._failed = stats.gauge("partitions", state="failed")
        self._faulty = stats.gauge("log_faulty")
        self.producer_ids = stats.gauge("kafka_producer_ids")
        self.expired = stats.counter("kafka_producer_ids_expired")

    def show_partitions(self) -> None:
        """Partitions came or went."""
        self._served.set(len(self._table.by_group))
        failed = self._table.failed.values()
        self._failed.set(len(failed))
        self._faulty.set(sum(one.damaged for one in failed))


class Lifecycle:
    """Keeps the partition table in step with the metadata.

    Shard: one each.
    """

    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        storage: ShardStorage,
        table: PartitionTable,
        admission: Admission,
        *,
        clean: bool,
        groups: ReplicatedGroups | None = None,
    ) -> None:
        """``groups`` opens the replicas of partitions that have several; a single node needs none."""
        self._shard = shard
        self._groups = groups
        self._settings = settings
        self._storage = storage
        self._table = table
        self._admission = admission
        self._clean = clean
        self.me: ReplicaId = NO_REPLICA
        """This broker in the configurations of Raft groups."""
        self.archiver: Archiver | None = None
        """Archives tiered topics; set before the first partition is opened."""
        self._budget = ProducerBudget(settings.producer_ids_max)
        self.meters = Meters(shard.stats)
        self.boundary = Boundary(shard.reactor, storage, table, (self._close_archive, self._vote_on, self._close_group))
        self._removing: dict[int, Place | None] = {}
        """Raft groups whose files are being removed, because this broker holds them no more; what is to be done then.
        """
        if groups is not None:
            self.repairs = Repairs(shard.reactor, storage, table, self._install)
        self._began_ms = shard.reactor.wall_ms() - shard.reactor.now_us() // 1000
        """Wall clock at the zero of the monotonic one, as of this process's start."""
        self._counts = _Counts(shard.stats, table)
        table.on_count = self._counts.show_partitions

    def open(
        self,
        name: str,
        topic_id: bytes,
        index: int,
        raft_group: RaftGroupId,
        home: int,
        config: TopicConfig,
        *,
        fresh: bool,
        voters: tuple[ReplicaId, ...] = (),
        members: Members | None = None,
        known_term: Term = NO_TERM,
        on_open: Callable[[Partition], None] | None = None,
    ) -> None:
        """Enter one partition; ``fresh`` says that it was created now, so that its log is empty.

        ``voters`` are the first members of its group, in order of preference for leadership, this broker's
        among them; empty for a partition that has this one alone. ``members`` says more than that. ``known_term`` is
        the last one of which the cluster knows. ``on_open`` is called with the partition when it is in the table:
        later, if the disk is full now (`opening`), or the object store is asked first (`restoring`, `emptied`).
        """
        if home != self._shard.id:
            self._table.add(name, topic_id, Remote(name, index, raft_group, ShardId(home)))
            return
        at = PartitionIndex(index)
        directory = self._directory(topic_id, name, at, config)
        members = members or Members(voters)
        if members.restores and self._gives_way(directory):
            place = Restoring(name, at, RaftGroupId(raft_group), self._shard.id, config, directory, members)
            self._table.add(name, topic_id, place)
            self.restore(topic_id, place, known_term, on_open, fresh=fresh)
            return
        waiting = Waiting(name, at, raft_group, self._shard.id, config, directory)
        waits = False

        def is_wanted() -> bool:
            return not waits or self._table.find(topic_id, index) is waiting

        def opened() -> Partition | Faulty:
            return self.opened(
                name,
                topic_id,
                at,
                RaftGroupId(raft_group),
                waiting.config,
                fresh=fresh,
                members=members,
                least_term=NO_TERM if members.elect else self._least_term(known_term, config),
            )

        def enter(entry: Partition | Faulty) -> None:
            if waits:
                self._table.replace(topic_id, entry)
            else:
                self._table.add(name, topic_id, entry)
            if on_open is not None and isinstance(entry, Partition):
                on_open(entry)

        def begin() -> None:
            open_with_room(self._shard.reactor, self._storage, f"{name}/{index}", is_wanted, opened, enter)

        asks = self.archiver is not None and not fresh and self._may_be_emptied(waiting, members)
        if not asks:
            begin()
        if self._table.find(topic_id, index) is None:
            waits = True
            self._table.add(name, topic_id, waiting)
        if asks:
            self._ask_store(topic_id, waiting, is_wanted, begin)

    def _ask_store(
        self, topic_id: bytes, waiting: Waiting, is_wanted: Callable[[], bool], begin: Callable[[], None]
    ) -> None:
        assert self.archiver is not None, "an archived topic without an archive process"
        owner = ArchiveId(UUID(bytes=topic_id), waiting.index)
        ask_store(self._shard.reactor, self._storage, self.archiver.link, owner, waiting, is_wanted, begin)

    def _gives_way(self, directory: str) -> bool:
        """Whether there is no log of a partition, so that the store is asked for one."""
        try:
            return gives_way(self._storage.disk, directory)
        except OSError as error:
            operator_log.warning("%s does not give way to what the object store has: %s", directory, error.strerror)
            return False  # opening it says why

    def _may_be_emptied(self, waiting: Waiting, members: Members) -> bool:
        """Whether a partition has no files, only the object store may have records of it, and no orderly stop has noted
        that it was empty.
        """
        is_alone = members.was_alone or not members.elect
        is_summarized = self._storage.registry.is_summarized(waiting.raft_group)
        if not is_alone or is_summarized or not waiting.config.is_archived:
            return False
        disk, directory = self._storage.disk, waiting.directory
        try:
            return not has_log(names_in(disk, directory)) and not is_set_aside(disk, directory)
        except (OSError, Corruption):
            return False  # opening it says why

    def restore(
        self,
        topic_id: bytes,
        place: Restoring,
        known_term: Term,
        on_open: Callable[[Partition], None] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Ask the object store for the files of a partition, whose entry ``place`` is in the table, then open it. The
        others are those of `open`.
        """
        shard, storage, table = self._shard, self._storage, self._table
        Restoration(self, shard, storage, table, place, topic_id, known_term, on_open, fresh=fresh).begin(self.me)

    def _least_term(self, known_term: Term, config: TopicConfig) -> Term:
        """A restored log does not remember terms in which nothing was written; the cluster does."""
        if not known_term or not self.waits_for_store(config):
            return NO_TERM
        return known_term if self._clean else Term(known_term + 1)

    def waits_for_store(self, config: TopicConfig) -> bool:
        """Whether acknowledgements of the topic wait for the object store (``shared.wal``)."""
        shared = None if self.archiver is None else self.archiver.shared
        return config.is_shared and shared is not None and shared.wal is not None

    def opened(
        self,
        name: str,
        topic_id: bytes,
        index: PartitionIndex,
        raft_group: RaftGroupId,
        config: TopicConfig,
        *,
        fresh: bool,
        members: Members,
        least_term: Term = NO_TERM,
    ) -> Partition | Faulty:
        """A partition of this shard, its log and its group opened; why it can't be served, if it can't.
        ``least_term``: the term in which it was served before by a sole voter.

        Raises:
            OSError: the disk is full. Nothing is left of the attempt.
        """
        producers = ProducerState(self._settings.producer_id_expiration_ms, self._budget)
        log: Log | None = None
        group: Group | None = None
        if members.elect:
            producers.keep_changes()
        try:
            cut = members.cut if members.elect and not members.is_alone else None
            if cut is not None and cut.is_to_lead(self.me):
                least_term = max(least_term, cut.others_term)
            emptied = cut is not None and self._begin_empty(name, topic_id, index, config, members, cut)
            log = self._storage.registry.open_partition_log(
                raft_group,
                topic_id,
                name,
                index,
                config,
                clean=(self._clean or fresh) and not emptied,
                replicated=members.has_others or members.is_alone,
                expected=members.elect and not fresh and not members.was_alone and not members.is_alone,
                alone=members.is_alone and not fresh,
            )
            replay_producers(log, producers, self._shard.reactor.wall_ms())
            group = self._open_group(raft_group, log, members, least_term, fresh=fresh)
            archive = self._open_archive(topic_id, index, log, group, config)
            return self._made(topic_id, index, raft_group, log, group, config, producers, archive, members)
        except Corruption as error:
            producers.clear()
            self._leave_group(group)
            others = members.has_others and not fresh
            mends = others and log is not None and not log.files.lost and not config.has_events
            if log is not None and mends and put_aside_at_start(self._storage, log, error.message):
                return self.opened(name, topic_id, index, raft_group, config, fresh=False, members=members)
            operator_log.at(f"{name}/{index}").error("not served: %s", error.message)
            directory = self._directory(topic_id, name, index, config)
            self._shard.stats.damage.put(f"{name}/{index}", -1, directory)
            if log is not None:
                self._storage.close_log(log)
            return Faulty(name, index, raft_group, error.message, directory)
        except Exception as error:
            producers.clear()
            self._leave_group(group)
            if log is not None:
                self._storage.cut_off(log)
                self._storage.forget(log)
            if is_of_the_shard(error) or (isinstance(error, OSError) and error.errno in FULL):
                raise
            operator_log.at(f"{name}/{index}").exception("not served: it could not be opened: %s", words_of(error))
            self._shard.stats.counter("partition_failures").inc()
            reason = f"could not be opened: {words_of(error)}"
            return Faulty(
                name, index, raft_group, reason, self._directory(topic_id, name, index, config), damaged=False
            )

    def _begin_empty(
        self, name: str, topic_id: bytes, index: PartitionIndex, config: TopicConfig, members: Members, cut: Cut
    ) -> bool:
        """A partition is about to be opened: put a log aside that an unclean cut has given up. Raises OSError."""
        if cut.replica == self.me:
            return False
        directory = self._directory(topic_id, name, index, config)
        note = repair_note(f"{name}/{index}", self._storage.stats)
        return begin_empty(self._storage.disk, directory, cut, note, learns=members.learns)

    def lead_alone(self, raft_group: RaftGroupId) -> None:
        """A person has decided that the replica here continues a partition."""
        assert self._groups is not None, "a partition with several replicas on a single node"
        self._groups.lead_alone(raft_group)

    def _directory(self, topic_id: bytes, name: str, index: PartitionIndex, config: TopicConfig) -> str:
        return log_directory(self._settings.data_dir, topic_id, name, index, events=config.has_events)

    def _leave_group(self, group: Group | None) -> None:
        """A group that was opened for a partition that cannot be."""
        if group is not None and group.elects:
            assert self._groups is not None
            self._groups.close(group)

    def _made(
        self,
        topic_id: bytes,
        index: PartitionIndex,
        raft_group: RaftGroupId,
        log: Log,
        group: Group,
        config: TopicConfig,
        producers: ProducerState,
        archive: PartitionArchive | None,
        members: Members,
    ) -> Partition:
        """The partition of an open log and its group."""
        name = log.topic
        log.owner.producer_snapshot = producers.snapshot
        log.owner.active_producers = producers.last_offsets
        log.owner.producers = producers
        group.write_caching = may_cache(name, config)
        made = EventsPartition if config.has_events else Partition
        partition = made(name, topic_id, index, raft_group, log, group, config, producers, self.meters)
        partition.admission = self._admission
        _take_archive(partition, archive)
        partition.opened_at = Opened(partition.high_watermark, log.ends.durable_position)
        self._follow_members(partition, members)
        log.owner.first_unstable = partition.first_unstable
        self.boundary.watch(partition)
        return partition

    def _follow_members(self, partition: Partition, members: Members) -> None:
        """Connect an opened partition with its group."""
        if members.elect:
            follow_group(partition, self._table, self._shard.reactor.wall_ms)
            partition.group.events.on_install = partial(self._install, partition, members)
            if self.waits_for_store(partition.config):
                partition.waiters.own_acks = None  # acks=1 waits for the store, too
        elif self._groups is not None or members.restores:
            # Clients know of it from other brokers, or since before the store was asked: batches were refused.
            partition.gaps.expect(self._shard.reactor.wall_ms())

    def _open_group(
        self, raft_group: RaftGroupId, log: Log, members: Members, least_term: Term, *, fresh: bool
    ) -> Group:
        if members.elect:
            assert self._groups is not None, "a partition with several replicas on a single node"
            if members.was_alone and not log.raft.controls.entries:
                least_term = max(least_term, Term(next_term(log, self._storage.term, clean=self._clean)))
            voters = () if members.learns and not log.files.lost else members.voters
            if log.files.lost and members.now:
                voters = members.now
            return self._groups.open(
                raft_group, log, Configuration(voters), least_term, members.first_term, created=fresh
            )
        recovered = fresh and log.raft.epoch >= 0  # from the object store, where no term is to be used again
        term = next_term(log, self._storage.term, clean=self._clean and not recovered)
        return SoleVoterGroup(log, max(0 if fresh and not recovered else term, least_term))

    def _install(self, partition: Partition, members: Members, files: StagedFiles) -> None:
        """The group has received files that replace the log of its replica here."""

        def opened(place: Adopting) -> Partition | Faulty:
            return self.opened(
                place.name,
                partition.topic_id,
                PartitionIndex(place.index),
                RaftGroupId(place.raft_group),
                place.config,
                fresh=False,
                members=members,
            )

        self.close_group(partition)
        Adoption(self._shard, self._storage, self._table, partition, files, opened).begin()

    def _open_archive(
        self, topic_id: bytes, index: int, log: Log, group: Group, config: TopicConfig
    ) -> PartitionArchive | None:
        if self.archiver is None:
            return None
        owner = ArchiveId(UUID(bytes=topic_id), index)
        return self.archiver.open(owner, log, group, config, lambda: log.stable_offset)

    def close_group(self, partition: Partition) -> None:
        """Take down the archive and the group of a partition whose log is about to be closed."""
        self._close_archive(partition)
        self._close_group(partition)

    def _close_archive(self, partition: Partition) -> None:
        if partition.archive is not None and self.archiver is not None:
            self.archiver.close(partition.archive, purge=False)

    def _close_group(self, partition: Partition) -> None:
        if partition.group.elects:
            assert self._groups is not None
            self._groups.close(partition.group)

    def _vote_on(self, partition: Partition) -> None:
        """A partition has failed: its replica's vote still counts (`raft.failed_voter`)."""
        if partition.group.elects and self._groups is not None:
            set_aside = partial(self._storage.checkpointer.failed_logs.add, partition.log)
            has_led = partition.group.role is GroupRole.LEADING
            self._groups.vote_on(partition.log, set_aside, has_led=has_led)

    def stop_voting(self, raft_group: RaftGroupId) -> None:
        """A partition that has failed is repaired, or removed."""
        if self._groups is not None:
            self._groups.stop_voting(raft_group)

    def change_replicas(self, place: Place) -> None:
        """Other brokers hold a partition than before; see `moving`."""
        if place.raft_group in self._removing:
            self._removing[place.raft_group] = place
        else:
            change_replicas(self, self._shard, self._storage, self._table, place)

    def remove(self, place: Place, begin: Callable[[Callable[[], None]], None]) -> None:
        """This broker no longer holds a partition: ``begin`` removes its files, and calls back."""
        self._removing[place.raft_group] = None

        def removed() -> None:
            waiting = self._removing.pop(place.raft_group)
            if waiting is not None and self._table.find(waiting.topic_id, waiting.index) is not None:
                self.change_replicas(waiting)

        begin(removed)

    def enter_elsewhere(self, name: str, topic_id: bytes, index: PartitionIndex, raft_group: RaftGroupId) -> None:
        """Enter a partition of which this broker holds no replica."""
        self._table.add(name, topic_id, Elsewhere(name, index, raft_group, self._shard.id))

    def reopen(self, topic_id: bytes, entry: Faulty, config: TopicConfig, members: Members) -> Partition | Faulty:
        """Open a partition that failed again, with what was put aside of it; the entry that takes its place. Everything
        of it must be out of the write-ahead log (``Checkpointer.failed_logs``).

        Raises:
            OSError: the disk is full; nothing has changed.
        """
        index, group = PartitionIndex(entry.index), RaftGroupId(entry.raft_group)
        opened = self.opened(entry.name, topic_id, index, group, config, fresh=False, members=members)
        self._table.replace(topic_id, opened)
        return opened

    def follow(self, settings: Settings) -> None:
        """Live settings changed."""
        self._settings = settings
        self._storage.compaction.follow(settings)
        for partition in self._table.by_group.values():
            partition.producers.expiration_ms = settings.producer_id_expiration_ms

    def start_looks(self) -> None:
        """Look at the files of replicas, from now on."""
        Looks(self._shard.reactor, self._storage, self._table).start()

    def start_expiry(self) -> None:
        """Forget idempotent producers that appended nothing for long, from now on at each check interval."""
        interval_us = self._settings.producer_id_expiration_check_interval_ms * 1000
        self._shard.reactor.call_later(interval_us, self._expire)

    def show_producers(self) -> None:
        """Keep the number of remembered producers in the metrics, from now on."""
        self._counts.producer_ids.set(self._budget.count)
        self._shard.reactor.call_later(SHOW_US, self.show_producers)

    def _expire(self) -> None:
        self._shard.reactor.background("expiry", self._expire_all(), EXPIRY_SHARE, self.start_expiry)

    def _expire_all(self) -> Generator[None, None, None]:
        # The wall clock, because snapshots have the times of appends; but a day that it was set ahead is no day without
        # an append.
        reactor = self._shard.reactor
        now_ms = min(reactor.wall_ms(), self._began_ms + reactor.now_us() // 1000)
        for partition in list(self._table.by_group.values()):
            if len(partition.producers):
                try:
                    self._counts.expired.inc(partition.producers.expire(now_ms))
                except Exception as error:  # noqa: BLE001 - the boundary
                    partition.failed("expiry of producers", error)
                yield

    def configure(self, name: str, config: TopicConfig) -> None:
        """A topic's configuration changed."""
        for entry in self._table.by_name.get(name, ()):
            if isinstance(entry, Partition):
                entry.log.guard("change of its configuration", self._configure, entry, config)
            elif isinstance(entry, (Adopting, Waiting)):
                entry.config = config

    def _configure(self, partition: Partition, config: TopicConfig) -> None:
        partition.config = config
        partition.set_gate()
        partition.group.write_caching = may_cache(partition.name, config)
        partition.log.configure(config)
        if config.has_events:
            partition.wake_readers()  # it may be complete now
        if partition.archive is not None:
            partition.archive.configure(config)
        else:
            index, log, group = partition.index, partition.log, partition.group
            _take_archive(partition, self._open_archive(partition.topic_id, index, log, group, config))

    def delete(self, name: str, topic_id: bytes) -> None:
        """A topic was deleted: answer its waiters, drop its logs and files."""
        for entry in self._table.by_id.get(topic_id, ()):
            if isinstance(entry, Waiting):
                self._storage.removals.remove(entry.directory, _nothing)
        served, faulty = self._table.remove_topic(name, topic_id)
        for partition in served:
            if partition.archive is not None and self.archiver is not None:
                self.archiver.close(partition.archive, purge=True)
            partition.close()
            if partition.group.elects:
                assert self._groups is not None
                self._groups.close(partition.group)
            partition.producers.clear()
            self._storage.delete_log(partition.log, _nothing)
        for entry in faulty:
            self.stop_voting(entry.raft_group)
            self._storage.delete_faulty(entry.raft_group, entry.directory)


def _take_archive(partition: Partition, archive: PartitionArchive | None) -> None:
    """Nothing above the last stable offset is archived: a transaction may still be aborted."""
    partition.archive = archive
    if archive is not None:
        archive.limit = lambda: min(partition.log.stable_offset, partition.last_stable_offset)
        archive.start.on_safe = partition.settle_trims


def may_cache(name: str, config: TopicConfig) -> bool:
    """Whether acks may run ahead of the sync; what the broker itself keeps in a topic never does."""
    cached = config.write_caching or (config.has_events and not config.event_partition.sync)
    return cached and not name.startswith("__")


def next_term(log: Log, least: Term, *, clean: bool) -> int:
    """The term to lead in, at least ``least``. ``clean`` says that the last stop was an orderly one."""
    last = log.raft.epoch if clean else log.raft.epoch + 1
    return max(last, least)


def replay_producers(log: Log, producers: ProducerState, now_ms: int) -> None:
    """Rebuild the idempotent producers of a log: the last snapshot, then every batch header after it.

    A snapshot from before the log's start counts for nothing: what its producers wrote between the two was deleted,
    and a producer whose sequence is remembered too low could not continue.
    """
    start = log.start_offset
    snapshot = log.files.snapshots.newest
    if snapshot is not None and snapshot[0] >= start:
        offset, data = snapshot
        try:
            producers.load(data)
            start = max(start, Offset(offset))
        except Corruption as error:
            operator_log.at(log.name).warning("producer snapshot ignored, replaying the log: %s", error.message)
            producers.clear()
    if start >= log.next_offset:
        return

    log.replay_headers(start, lambda header: enter_batch(producers, header, now_ms))


def _nothing() -> None:
    """Deleting files in the background needs no answer."""
