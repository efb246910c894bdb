"""Repair of a replica that finds damage in its files: it starts empty, and its leader fills it from sound replicas.

::

    a read finds a damaged batch ──► leads? ─yes─► hands over, if a majority without it has everything, or could have
      (a client's, a replica's,        └──no──► its leader is known: log closed, an empty one put in its place with the
       or the look at its files)                mark ``lost`` (`storage.log.lost`), opened again; the leader fills it

What was found stays beside the log until the leader has made up for it. As long as the others can't, the replica goes
on serving what it can; it looks again every `AGAIN_US`. A replica that is behind may need just what is damaged here.
So if a majority without this replica is there for `PATIENCE` looks, one that has everything takes the lead, and
fills the others. A crash leaves the old log or the new one, as with files that
a leader sends.

**The look** (`Looks`): after its start a shard reads the sealed segments of each of its replicas once, then once a
week, slowly and one after the other, because no client reads what a follower has on its disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, LogPoint, RaftPosition, Term
from millstream.partition.replica.members import Members
from millstream.raft.replicated import ReplicatedGroup
from millstream.storage.log.cold_reads import ColdRequest
from millstream.storage.log.importing import StagedFiles
from millstream.storage.log.lost import put_aside, stage_lost
from millstream.storage.log.opening import repair_note
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import IoBuf
    from millstream.model.replication import ReplicaId
    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.log import Log
    from millstream.storage.shard_storage import ShardStorage

    Replace = Callable[[Partition, Members, StagedFiles], None]

AGAIN_US: Final = 2_000_000
HANDOVER_US: Final = 200_000
PATIENCE: Final = 5
"""Looks in which a leader waits for a majority that has everything without it."""
HEARD_US: Final = 2_000_000
"""A follower that answered within this time can take over."""

LOOK_BYTES: Final = 1 << 20
LOOK_BYTES_PER_S: Final = 20 << 20
"""What a shard reads in a second to look at its files: a tenth of a slow disk."""
LOOK_AGAIN_US: Final = 7 * 86_400_000_000
LOOK_BEGIN_US: Final = 10_000_000
"""After the start, which has better things to do."""


class Repairs:
    """The replicas of one shard that are to start empty.

    Lifecycle: made with the shard's partitions. Shard: one each.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage, table: PartitionTable, replace: Replace) -> None:
        """``replace(partition, members, files)`` puts files in the place of a partition's log and opens it again."""
        self._reactor = reactor
        self._storage = storage
        self._table = table
        self._replace = replace
        self._wanted: set[str] = set()
        self._looks: dict[str, int] = {}
        """Of a log that leads and waits for the others: how often it has looked."""
        storage.reads.faults.on_corrupt = self.found

    def found(self, name: str) -> None:
        """A read of the log "topic/partition" has found damage."""
        if name not in self._wanted:
            self._wanted.add(name)
            self._reactor.call_soon(self._attempt, name)

    def _attempt(self, name: str) -> None:
        topic, _, index = name.rpartition("/")
        partition = self._table.local(topic, int(index)) if index.isdecimal() else None
        group = partition.group if partition is not None else None
        if (
            partition is None
            or not isinstance(group, ReplicatedGroup)
            or partition.log.files.lost
            or partition.config.has_events
            or self._storage.stopping
        ):
            self._no_longer_wanted(name)
            return
        if group.leads:
            looks = self._looks[name] = self._looks.get(name, 0) + 1
            best = self._best_follower(group, is_patient=looks <= PATIENCE)
            if best is not None:
                operator_log.at(name).warning("is damaged here: another replica takes the lead")
                try:
                    group.transfer(best)
                except MillstreamError as error:
                    operator_log.at(name).debug("no handover now: %s", error.message)
            self._reactor.call_later(AGAIN_US if best is None else HANDOVER_US, lambda: self._attempt(name))
        elif group.leader == NO_REPLICA:
            self._reactor.call_later(AGAIN_US, lambda: self._attempt(name))
        else:
            self._no_longer_wanted(name)
            self._begin_anew(partition, group)

    def _no_longer_wanted(self, name: str) -> None:
        self._wanted.discard(name)
        self._looks.pop(name, None)

    def _best_follower(self, group: ReplicatedGroup, *, is_patient: bool) -> ReplicaId | None:
        """Who is to lead: a voter that has everything, if a majority without this replica has, or is there at least."""
        voters = group.core.configuration_at(group.committed_position).voters
        since = self._reactor.now_us() - HEARD_US
        there = [peer for peer in group.peers if peer.replica in voters and peer.contact_us >= since]
        whole = [peer.replica for peer in there if peer.durable >= group.committed_position]
        enough = len(whole if is_patient else there) > len(voters) // 2
        return whole[0] if whole and enough else None

    def _begin_anew(self, partition: Partition, group: ReplicatedGroup) -> None:
        log = partition.log
        try:
            staged = stage_lost(self._storage.disk, log.directory, log.raft.vote)
        except OSError as error:
            operator_log.at(log.name).warning("can't start empty now: %s", error.strerror)
            self.found(log.name)
            return
        operator_log.at(log.name).warning("is damaged here: it is put aside, and asked for at the other replicas")
        self._storage.stats.counter("recovery_repairs", kind="replica_lost").inc()
        voters = group.core.configuration_at(group.committed_position).voters
        members = Members(voters, learns=group.core.replica.me not in voters)
        self._replace(partition, members, StagedFiles(staged, LogPoint(RaftPosition(0), Term(0)), Offset(0)))


def put_aside_at_start(storage: ShardStorage, log: Log, why: str) -> bool:
    """A log that was just opened cannot be served, and the other replicas have what was in it: its files are put aside.
    The log is no more, and may be opened again, empty and marked. Returns False if the disk failed: then nothing has
    changed.
    """
    try:
        put_aside(storage.disk, log.directory, why, repair_note(log.name, storage.stats))
    except OSError:
        return False
    storage.forget(log)
    return True


class Looks:
    """Reads what the replicas of one shard have on disk; a damaged batch is found as by any read.

    Lifecycle: ``start`` once. Shard: one each.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage, table: PartitionTable) -> None:
        self._reactor = reactor
        self._storage = storage
        self._table = table
        self._left: list[int] = []
        self._bytes = storage.stats.counter("replica_looked_at_bytes")

    def start(self) -> None:
        """Start a while after the start of the broker, and again every week."""
        self._reactor.call_later(LOOK_BEGIN_US, self._begin)

    def _begin(self) -> None:
        self._left = list(self._table.by_group)
        self._next()

    def _next(self) -> None:
        if self._storage.stopping:
            return
        while self._left:
            partition = self._table.by_group.get(self._left.pop())
            if partition is not None and isinstance(partition.group, ReplicatedGroup) and not partition.log.files.lost:
                log = partition.log
                self._read(partition, log.first_local_offset)
                return
        self._reactor.call_later(LOOK_AGAIN_US, self._begin)

    def _read(self, partition: Partition, offset: Offset) -> None:
        log = partition.log
        offset, end = max(offset, log.first_local_offset), written_end(log)
        if log.closed or offset >= end or self._storage.stopping or partition.config.has_events:
            self._reactor.call_soon(self._next)  # in a turn of its own: thousands of logs may be empty
            return

        def done(found: IoBuf | MillstreamError) -> None:
            if isinstance(found, MillstreamError):
                self._reactor.call_soon(self._next)
                return
            size = len(found)
            found.release()
            self._bytes.inc(size)
            following = call.found_end
            wait_us = size * 1_000_000 // LOOK_BYTES_PER_S
            if following <= offset:
                self._reactor.call_soon(self._next)
            else:
                self._reactor.call_later(wait_us, lambda: self._read(partition, following))

        call = self._storage.reads.cold.read(log, ColdRequest(offset, end, LOOK_BYTES, below_start=True), done)


def written_end(log: Log) -> Offset:
    """End of the sealed segments that are in the files; what is after it may be in memory alone."""
    end = log.first_local_offset
    for one in log.files.segments:
        if not one.sealed or one.end > log.ends.written_position:
            break
        end = max(end, one.end_offset)
    return end
