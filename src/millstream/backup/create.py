"""Makes a backup: offsets and starts of groups first, then settings and rights, then records, then the root.

The name is the time of its start, in UTC, with milliseconds. Nothing of it is visible before the root is written, which
is the last thing that happens.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from millstream import __version__
from millstream.backup.model import FORMAT, Backup, GroupBackup, GroupOffset, PartitionBackup, TopicBackup
from millstream.backup.records import Ends, Place, copy_partition
from millstream.backup.source import Source, require_ours
from millstream.client.cluster import EARLIEST, LATEST
from millstream.client.partition_log import TopicReplaced
from millstream.errors import Corruption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millstream.backup.model import StoredBatches
    from millstream.backup.source import FoundTopic
    from millstream.backup.store import BackupStore
    from millstream.client.cluster import Cluster


class Created(NamedTuple):
    """A backup, and what of it was written now."""

    backup: Backup
    written_objects: int
    written_bytes: int


def create(
    cluster: Cluster,
    store: BackupStore,
    *,
    full: bool,
    progress: Callable[[int, int], None],
) -> Created:
    """Make a backup of the whole cluster. With ``full`` every record is read, and damaged objects are replaced; else
    what the newest backup has is referred to. ``progress`` gets topics that are done, and all of them.

    Raises:
        Rejected: something cannot be in a backup, or may not be read.
        Unavailable: a leader, or the store, does not answer.
    """
    require_ours(cluster)
    began_ms = _now_ms()
    source = Source(cluster)
    before = None if full else _before(store, source.notes)
    groups, shares = source.groups()
    users, acls, quotas, resources = source.users(), source.acls(), source.quotas(), source.resources()
    copies = _Copies(cluster, store, before, progress)
    topics = copies.copy(source.topics())
    offsets = within(groups, topics, "committed offset", source.notes)
    starts = within(shares, topics, "start", source.notes)
    backup = Backup(
        FORMAT,
        f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(began_ms // 1000))}.{began_ms % 1000:03d}Z",
        __version__,
        cluster.metadata([]).cluster_id or "",
        began_ms,
        _now_ms(),
        topics,
        tuple(resources),
        offsets,
        starts,
        tuple(users),
        tuple(acls),
        tuple(quotas),
        (*source.notes, *copies.notes),
    )
    store.publish(backup)
    return Created(backup, copies.written_objects, copies.written_bytes)


def _before(store: BackupStore, notes: list[str]) -> Backup | None:
    """The newest backup that can be read; notes name those that cannot."""
    for name in reversed(store.names()):
        try:
            return store.read(name)
        except Corruption as error:
            notes.append(error.message)
    return None


class _Copies:
    """The records of one run."""

    def __init__(
        self, cluster: Cluster, store: BackupStore, before: Backup | None, progress: Callable[[int, int], None]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._before: Mapping[tuple[str, int], PartitionBackup] = {
            (topic.topic_id, part.index): part
            for topic in (before.topics if before is not None else ())
            for part in topic.partitions
        }
        self._progress = progress
        self.notes: list[str] = []
        self.written_objects = 0
        self.written_bytes = 0

    def copy(self, found: list[FoundTopic]) -> tuple[TopicBackup, ...]:
        """The topics with their records; one that is deleted while it is read is left out, with a note."""
        done, total = 0, len(found)
        topics: list[TopicBackup] = []
        for one in found:
            self._progress(done, total)
            try:
                topics.append(self._topic(one))
            except TopicReplaced:
                self.notes.append(f"topic {one.name} was deleted while it was read, and is left out")
            done += 1
        self._progress(done, total)
        return tuple(topics)

    def _topic(self, one: FoundTopic) -> TopicBackup:
        places = [(one.name, index) for index in one.partitions]
        starts = self._cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = self._cluster.list_offsets(dict.fromkeys(places, LATEST))
        topic_id = one.topic_id.hex()
        has_events = one.configs.get("topic.kind") == "events"
        parts: list[PartitionBackup] = []
        for index in one.partitions:

            def put(base: int, end: int, data: bytes, index: int = index) -> StoredBatches:
                made, written = self._store.put(topic_id, index, base, end, data)
                self.written_objects += written
                self.written_bytes += len(data) if written else 0
                return made

            place = Place(one.name, one.topic_id, index, has_events, one.is_compacted)
            limits = Ends(starts[one.name, index].offset, ends[one.name, index].offset)
            parts.append(copy_partition(self._cluster, place, limits, self._before.get((topic_id, index)), put))
        return TopicBackup(one.name, topic_id, one.replication, one.configs, tuple(parts))


def within(
    groups: list[GroupBackup], topics: tuple[TopicBackup, ...], kind: str, notes: list[str]
) -> tuple[GroupBackup, ...]:
    """The groups with offsets of topics that are in the backup, none beyond its records."""
    ends = {(topic.name, part.index): part.end_offset for topic in topics for part in topic.partitions}
    kept: list[GroupBackup] = []
    for group in groups:
        offsets: list[GroupOffset] = []
        for one in group.offsets:
            end = ends.get((one.topic, one.partition))
            if end is None:
                continue
            if one.offset > end:
                notes.append(
                    f"group {group.group_id} has {kind} {one.offset} of {one.topic}-{one.partition}, which "
                    f"is beyond its end: the backup has {end}"
                )
            offsets.append(GroupOffset(one.topic, one.partition, min(one.offset, end), one.metadata))
        if offsets:
            kept.append(GroupBackup(group.group_id, tuple(offsets)))
    return tuple(kept)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
