"""Applies a change of replicas on this broker: the partition is opened, closed, or opened again as one of several.

::

    held elsewhere ──this broker, too──► opened, empty; its leader brings it up
    held elsewhere ──only this broker──► restored from the object store, then opened (`restoring`)
    held here ───────no more──────────► closed, and its files are removed
    the only replica ─one of several──► closed, and opened again with a group that elects
    one of several ─the only replica──► served on; not if a start has put its files aside: no other has them

The broker has noted durably that the command is committed before files go (`cluster.deletions`): no later start opens
the partition without them. A partition that comes back while its files are being removed waits until they are removed,
and until the write-ahead log has nothing of it.

To clients the broker has no replica while it is closed. **Full disk.** The partition is opened once there is room.
**Bad input.** A state that is there already changes nothing. **Crash.** The next start opens what the state says, with
the files that are there: commands that it applies again find the replica that they made before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millstream.format.events.chunk import log_directory
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId, ShardId
from millstream.model.replication import NO_TERM, Term
from millstream.partition.opening import open_with_room
from millstream.partition.partition import Partition
from millstream.partition.table import Adopting, Elsewhere, Faulty, Remote, Restoring, Waiting
from millstream.storage.disk import exists

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.partition.lifecycle import Lifecycle
    from millstream.partition.replica.members import Members
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard
    from millstream.storage.log.log import Log
    from millstream.storage.shard_storage import ShardStorage


class Place(msgspec.Struct, frozen=True):
    """A partition, and its home shard on this broker now."""

    name: str
    topic_id: bytes
    index: PartitionIndex
    raft_group: RaftGroupId
    home: int | None
    """Its shard; None if this broker holds no replica."""
    config: TopicConfig
    members: Members
    known_term: Term = NO_TERM
    """The last term in which the partition was led, as far as this broker knows."""


def change_replicas(
    lifecycle: Lifecycle, shard: Shard, storage: ShardStorage, table: PartitionTable, place: Place
) -> None:
    """Bring the entry of a partition in step with ``place``."""
    entry = table.find(place.topic_id, place.index)
    assert entry is not None
    here = place.home == shard.id
    was_here = isinstance(entry, (Partition, Faulty, Adopting))
    if here and isinstance(entry, Partition):
        if place.members.is_alone and entry.log.files.lost:
            lifecycle.boundary.give_up(entry, "its files were put aside as damaged, and no other broker holds it now")
        elif place.members.elect and not entry.group.elects:
            _Reopening(lifecycle, shard, storage, table, place, entry).begin()
    elif here and not was_here:
        directory = _directory(storage, place)
        if place.members.restores and not exists(storage.disk, directory):
            restoring = Restoring(
                place.name, place.index, place.raft_group, shard.id, place.config, directory, place.members
            )
            table.replace(place.topic_id, restoring)
            lifecycle.restore(place.topic_id, restoring, place.known_term)
            return
        closed = Waiting(place.name, place.index, place.raft_group, shard.id, place.config, directory)
        table.replace(place.topic_id, closed)
        open_with_room(
            shard.reactor,
            storage,
            f"{place.name}/{place.index}",
            lambda: table.find(place.topic_id, place.index) is closed,
            lambda: _opened(lifecycle, storage, place, closed.config),
            partial(table.replace, place.topic_id),
        )
    elif not here:
        table.replace(place.topic_id, _other(shard, place))
        _remove(lifecycle, storage, place, entry)


def _other(shard: Shard, place: Place) -> Remote:
    """The entry of a partition whose home is another shard."""
    if place.home is None:
        return Elsewhere(place.name, place.index, place.raft_group, shard.id)
    return Remote(place.name, place.index, place.raft_group, ShardId(place.home))


def _directory(storage: ShardStorage, place: Place) -> str:
    return log_directory(storage.data_dir, place.topic_id, place.name, place.index, events=place.config.has_events)


def _opened(lifecycle: Lifecycle, storage: ShardStorage, place: Place, config: TopicConfig) -> Partition | Faulty:
    return lifecycle.opened(
        place.name,
        place.topic_id,
        place.index,
        place.raft_group,
        config,
        fresh=not exists(storage.disk, _directory(storage, place)),
        members=place.members,
    )


def _leave(storage: ShardStorage, log: Log, done: Callable[[], None]) -> None:
    """Remove a log that may come back; ``done`` is called when neither the write-ahead log nor a checkpoint speaks of
    it, so that nothing of it is taken for a part of the next log of its group.
    """
    storage.delete_log(log, lambda: storage.wal.when_durable(lambda: storage.checkpointer.request(done)))


def _remove(lifecycle: Lifecycle, storage: ShardStorage, place: Place, entry: object) -> None:
    """This broker holds the partition no more."""
    if isinstance(entry, Partition):
        lifecycle.close_group(entry)
        entry.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        entry.producers.clear()
        lifecycle.remove(place, partial(_leave, storage, entry.log))
    elif isinstance(entry, Faulty):
        lifecycle.stop_voting(entry.raft_group)
        storage.delete_faulty(entry.raft_group, entry.directory)
    elif isinstance(entry, Waiting):

        def begin(gone: Callable[[], None]) -> None:
            storage.removals.remove(entry.directory, lambda: storage.checkpointer.request(gone))

        if isinstance(entry, Restoring):
            lifecycle.remove(place, lambda gone: entry.when_answered(lambda: begin(gone)))
        else:
            lifecycle.remove(place, begin)


class _Reopening:
    """The only replica of a partition on its way to be one of several."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        shard: Shard,
        storage: ShardStorage,
        table: PartitionTable,
        place: Place,
        partition: Partition,
    ) -> None:
        self._lifecycle = lifecycle
        self._shard = shard
        self._storage = storage
        self._table = table
        self._place = place
        self._partition = partition
        self._entry = Adopting(partition, shard)

    def begin(self) -> None:
        """Close the partition, and open it when everything of it is in its segments."""
        partition = self._partition
        self._table.replace(self._place.topic_id, self._entry)
        self._lifecycle.close_group(partition)
        partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.producers.clear()
        self._storage.close_log(partition.log, self._closed)

    def _closed(self) -> None:
        place, entry = self._place, self._entry
        open_with_room(
            self._shard.reactor,
            self._storage,
            f"{place.name}/{place.index}",
            lambda: self._table.find(place.topic_id, place.index) is entry,
            self._opened,
            partial(self._table.replace, place.topic_id),
        )

    def _opened(self) -> Partition | Faulty:
        place = self._place
        return self._lifecycle.opened(
            place.name,
            place.topic_id,
            place.index,
            place.raft_group,
            self._entry.config,
            fresh=False,
            members=place.members,
            least_term=self._partition.group.term,
        )
