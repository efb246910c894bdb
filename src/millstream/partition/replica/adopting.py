"""A replica whose log is replaced by files that its leader sent: closed, its files put in place, opened again.

::

    events.on_install ──► group closed, partition closed ──► storage.adopt_log ──► opened as after a restart

Clients find another leader: to them this broker has no replica for these milliseconds. A topic that is deleted in
between leaves nothing. What a crash leaves is the old log or the new one (`storage.maintenance.adoption`).
Without room in the write-ahead log the step is tried again; nothing has happened then. On a full disk the partition is
opened once there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.partition.opening import open_with_room
from millstream.partition.table import Adopting, Faulty
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.shard_storage import ShardStorage

_TRY_AGAIN_US: Final = 5_000


class Adoption:
    """One replica's way from its old files to the new ones."""

    def __init__(
        self,
        shard: Shard,
        storage: ShardStorage,
        table: PartitionTable,
        partition: Partition,
        files: StagedFiles,
        opened: Callable[[Adopting], Partition | Faulty],
    ) -> None:
        """The partition's group is closed already. ``opened`` opens the partition again."""
        self._shard = shard
        self._storage = storage
        self._table = table
        self._partition = partition
        self._files = files
        self._opened = opened
        self._place = Adopting(partition, shard)

    def begin(self) -> None:
        """Close the partition and have the files put in place."""
        self._table.replace(self._partition.topic_id, self._place)
        self._partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._partition.producers.clear()
        self._attempt()

    def _attempt(self) -> None:
        log, files = self._partition.log, self._files
        try:
            self._storage.adopt_log(log, files.directory, files.end, files.end_offset, self._adopted, self._broke)
        except ArenaFull:
            self._shard.reactor.call_later(_TRY_AGAIN_US, self._attempt)

    def _adopted(self) -> None:
        partition = self._partition
        if self._storage.stopping:
            return
        open_with_room(
            self._shard.reactor,
            self._storage,
            partition.log.name,
            self._is_wanted,
            lambda: self._opened(self._place),
            lambda entry: self._table.replace(partition.topic_id, entry),
        )

    def _broke(self, fault: Exception) -> None:
        """The files could not be put in place, for a reason that no check has found."""
        partition, name = self._partition, self._partition.log.name
        if not self._is_wanted():
            return
        what = str(fault)
        operator_log.at(name).error("failed in the adoption of received files: %s; not served until a repair", what)
        self._storage.stats.counter("partition_failures").inc()
        reason = f"failed in the adoption of received files: {what.partition(chr(10))[0]}"
        group, directory = partition.raft_group, partition.log.directory
        entry = Faulty(partition.name, partition.index, group, reason, directory, damaged=False)
        self._table.replace(partition.topic_id, entry)

    def _is_wanted(self) -> bool:
        partition = self._partition
        if self._table.find(partition.topic_id, partition.index) is self._place:
            return True
        self._storage.removals.remove(partition.log.directory, _nothing)
        return False


def _nothing() -> None:
    """No caller waits for the files of a deleted topic."""
