"""A partition of one replica without files, of a broker whose log is in the object store: restored, then opened.

::

    created, or its disk was lost ───┐
    taken over from a dead broker ───┴──► the store is asked (`tiers.restoring`) ──► opened, with what the store has

A partition that was never written to is not in the store, and is opened as it is. To clients the broker has no replica
until then. **The store is away.** It is asked again each second. **What the store has does not add up.** The partition
is refused by name, as one whose files are damaged. **Crash.** The files are there as a whole, or the next start asks
again. A topic that is deleted in between leaves a directory that no topic names, which the next start removes; the
files of a partition that others hold by then go at once, so that it can come back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.manifest import ArchiveId
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import ReplicaId, Term
from millstream.partition.opening import open_with_room, try_again
from millstream.partition.partition import Partition
from millstream.partition.table import Faulty, Restoring
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.lifecycle import Lifecycle
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.messages import Restored


class Restoration:
    """One partition on its way."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        shard: Shard,
        storage: ShardStorage,
        table: PartitionTable,
        entry: Restoring,
        topic_id: bytes,
        known_term: Term,
        on_open: Callable[[Partition], None] | None,
        *,
        fresh: bool,
    ) -> None:
        """``known_term`` is the last one that the cluster knows of the partition; ``on_open`` gets the partition
        when it is open.
        """
        self._lifecycle = lifecycle
        self._shard = shard
        self._storage = storage
        self._table = table
        self._entry = entry
        self._topic_id = topic_id
        self._known_term = known_term
        self._on_open = on_open
        self._fresh = fresh

    def begin(self, me: ReplicaId) -> None:
        """Ask the store. The partition's entry is in the table already. ``me`` is this broker in Raft groups: it goes
        on alone with a group that elects, whose only voter was the disk that was lost.
        """
        archiver = self._lifecycle.archiver
        assert archiver is not None, "only a partition with an archive is restored"
        if not self._storage.stopping and self._is_wanted():
            owner = ArchiveId(UUID(bytes=self._topic_id), self._entry.index)
            voters = (me,) if self._entry.members.elect else ()
            self._entry.asked = True
            archiver.link.restore(owner, self._entry.directory, voters, partial(self._answered, me))

    def _is_wanted(self) -> bool:
        return self._table.find(self._topic_id, self._entry.index) is self._entry

    def _answered(self, me: ReplicaId, result: Restored | MillstreamError) -> None:
        entry = self._entry
        name = f"{entry.name}/{entry.index}"
        entry.answered()
        if isinstance(result, (Corruption, Rejected)):
            operator_log.at(name).error("not served: %s", result.message)
            self._opened(Faulty(entry.name, entry.index, entry.raft_group, result.message, self._entry.directory))
            return
        if isinstance(result, MillstreamError):
            why = f"not restored, the store is asked again: {result.message}"
            try_again(self._shard.reactor, name, why, partial(self.begin, me))
            return
        if result.records:
            operator_log.at(name).info("restored with %d records from the object store", result.records)
        open_with_room(
            self._shard.reactor,
            self._storage,
            name,
            self._is_wanted,
            partial(self._open, fresh=not entry.members.elect and (self._fresh or result.records > 0)),
            self._opened,
        )

    def _open(self, *, fresh: bool) -> Partition | Faulty:
        entry = self._entry
        return self._lifecycle.opened(
            entry.name,
            self._topic_id,
            PartitionIndex(entry.index),
            RaftGroupId(entry.raft_group),
            entry.config,
            fresh=fresh,
            members=entry.members,
            least_term=Term(self._known_term + 1) if self._known_term else self._known_term,
        )

    def _opened(self, entry: Partition | Faulty) -> None:
        if not self._is_wanted():
            return
        self._table.replace(self._topic_id, entry)
        if isinstance(entry, Partition) and self._on_open is not None:
            self._on_open(entry)
