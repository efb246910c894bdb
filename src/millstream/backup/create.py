"""Makes a backup: offsets and starts of groups first, then settings and rights, then records, then the root.

::

    ends of all partitions ──► PARTITIONS_AT_ONCE threads, each with connections of its own ──► objects ──► the root

The name is the time of its start, in UTC, with milliseconds. Nothing of it is visible before the root is written, which
is the last thing that happens. Partitions are read several at a time, so a slow leader or store delays one of them; one
object a thread is in memory. The first failure ends the other threads at their next object, and the run: what it has
written, the next run uses.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream import __version__
from millstream.backup.model import FORMAT, Backup, GroupBackup, GroupOffset, PartitionBackup, TopicBackup
from millstream.backup.records import Ends, Place, copy_partition
from millstream.backup.source import Source, require_ours, restoring
from millstream.client.cluster import EARLIEST, LATEST
from millstream.client.partition_log import TopicReplaced
from millstream.errors import Corruption, MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millstream.backup.model import StoredBatches
    from millstream.backup.source import FoundTopic
    from millstream.backup.store import BackupStore
    from millstream.client.cluster import Cluster


PARTITIONS_AT_ONCE: Final = 4
"""Memory is bounded by an object (``records.OBJECT_BYTES``) and a fetch for each."""


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
        Rejected: something cannot be in a backup, or may not be read; or a backup is being restored into the cluster.
        Unavailable: a leader, or the store, does not answer.
    """
    require_ours(cluster)
    _require_whole(cluster)
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
    _require_whole(cluster)
    store.publish(backup)
    return Created(backup, copies.written_objects, copies.written_bytes)


def _require_whole(cluster: Cluster) -> None:
    """Refuse a cluster that is being restored: the newest backup would be a half one, which a restore takes."""
    started = restoring(cluster)
    if started is not None:
        raise Rejected(f"backup {started.backup} is being restored into this cluster: finish that first")


def _before(store: BackupStore, notes: list[str]) -> Backup | None:
    """The newest backup that can be read; notes name those that cannot."""
    for name in reversed(store.names()):
        try:
            return store.read(name)
        except Corruption as error:
            notes.append(error.message)
    return None


class _Copies:
    """The records of one run. ``_lock`` guards what its threads count."""

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
        self._lock = threading.Lock()
        self._clusters: list[Cluster] = []
        self._own = threading.local()
        self._failure: MillstreamError | None = None
        """The first one. The other threads end then."""
        self._ended = False
        self.notes: list[str] = []
        self.written_objects = 0
        self.written_bytes = 0

    def copy(self, found: list[FoundTopic]) -> tuple[TopicBackup, ...]:
        """The topics with their records; one that is deleted while it is read is left out, with a note."""
        topics: list[TopicBackup] = []
        with ThreadPoolExecutor(PARTITIONS_AT_ONCE, "backup") as threads:
            try:
                due = [(one, self._begin(one, threads)) for one in found]
                for done, (one, parts) in enumerate(due):
                    self._progress(done, len(found))
                    try:
                        whole = tuple(part.result() for part in parts)
                    except TopicReplaced:
                        self.notes.append(f"topic {one.name} was deleted while it was read, and is left out")
                        continue
                    topics.append(TopicBackup(one.name, one.topic_id.hex(), one.replication, one.configs, whole))
            except MillstreamError as error:
                raise (self._failure or error) from None
            finally:
                self._ended = True
                threads.shutdown(wait=False, cancel_futures=True)
        for cluster in self._clusters:
            cluster.close()
        self._progress(len(found), len(found))
        return tuple(topics)

    def _begin(self, one: FoundTopic, threads: ThreadPoolExecutor) -> list[Future[PartitionBackup]]:
        """Have the partitions of a topic copied up to their ends of now."""
        places = [(one.name, index) for index in one.partitions]
        try:
            starts = self._cluster.list_offsets(dict.fromkeys(places, EARLIEST))
            ends = self._cluster.list_offsets(dict.fromkeys(places, LATEST))
        except Rejected as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            gone: Future[PartitionBackup] = Future()
            gone.set_exception(TopicReplaced(f"topic {one.name} was deleted"))
            return [gone]
        limits = {place: Ends(starts[place].offset, ends[place].offset) for place in places}
        return [threads.submit(self._partition, one, index, limits[one.name, index]) for index in one.partitions]

    def _partition(self, one: FoundTopic, index: int, limits: Ends) -> PartitionBackup:
        """Copy a partition; on a thread."""
        topic_id = one.topic_id.hex()

        def put(base: int, end: int, data: bytes) -> StoredBatches:
            if self._ended or self._failure is not None:
                raise Unavailable("the run has failed")
            made, written = self._store.put(topic_id, index, base, end, data)
            with self._lock:
                self.written_objects += written
                self.written_bytes += len(data) if written else 0
            return made

        place = Place(one.name, one.topic_id, index, one.configs.get("topic.kind") == "events", one.is_compacted)
        try:
            return copy_partition(self._cluster_here(), place, limits, self._before.get((topic_id, index)), put)
        except TopicReplaced:
            raise
        except MillstreamError as error:
            self._failure = self._failure or error
            raise

    def _cluster_here(self) -> Cluster:
        """The cluster through connections of this thread's own."""
        found: Cluster | None = getattr(self._own, "cluster", None)
        if found is None:
            found = self._own.cluster = self._cluster.another()
            with self._lock:
                self._clusters.append(found)
        return found


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
