"""Restores a backup into a cluster that has no topics, with the offsets, times and codecs of before.

::

    producer ids are reserved ─► the mark: a topic whose name has the backup's and the first of the ids
    ─► each topic, without retention and compaction ─► each partition: batches after its end ─► its log start
    ─► transactions that are open are aborted ─► settings of topics ─► offsets of groups
    ─► starts of share groups ─► quotas, settings of brokers, of groups, of client metrics ─► rights ─► users
    ─► the mark goes

Users and rights come last, so only the caller writes to a topic that is being restored.

**What changes.** Topics have new ids. Leader epochs are those of the new cluster, and offsets of groups have none. A
producer's id is moved into the reserved range, so that no new producer has the id of an old one. A transaction that was
open ends as aborted: its partition ends one marker later than before. Transactional ids are not restored. Offsets that
a compacted log lacks become empty batches. A topic has as many replicas as before, or as there are brokers.

**A run that dies** leaves the mark. The same command continues: it asks each partition for its end, and adds the rest.
Another backup is refused then, and so is a cluster that has topics and no mark. **Bad input**: a damaged object is
named, and ends the run; the mark stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.backup.batches import checked_batches, empty_batches, is_control, placeholder_events, shifted
from millstream.backup.source import SCHEMAS, Restoring, Source, require_ours, restoring
from millstream.backup.store import records_key
from millstream.backup.target import Target
from millstream.client.partition_log import PartitionLog
from millstream.errors import Rejected
from millstream.format.segment import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.backup.model import Backup, PartitionBackup, TopicBackup
    from millstream.backup.source import FoundTopic
    from millstream.backup.store import BackupStore
    from millstream.client.cluster import Cluster

REQUEST_BYTES: Final = 1 << 20
"""Batches go in requests of about so many bytes."""

_HELD: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a topic until its records are there."""
_LATER: Final = frozenset(("events.complete",))
"""Settings that would refuse the records."""


class Restored(NamedTuple):
    """What a run has made."""

    topics: int
    partitions: int
    aborted: int
    """Transactions that were open."""
    notes: list[str]
    shift: int
    """What was added to producer ids."""


def restore(
    cluster: Cluster,
    store: BackupStore,
    backup: Backup,
    *,
    progress: Callable[[int, int], None],
    hold: bool = False,
) -> Restored:
    """Make a cluster what the backup says. ``progress`` gets bytes that are done, and all of them. With ``hold``
    topics keep their records: retention and compaction stay off.

    Raises:
        Rejected: the cluster has topics, or refuses something.
        Corruption: the backup is damaged.
        Unavailable: a broker, or the store, does not answer.
    """
    require_ours(cluster)
    run = _Run(cluster, store, backup, progress)
    shift = run.start()
    for topic in backup.topics:
        run.topic(topic, shift)
    if not hold:
        for topic in backup.topics:
            run.settle(topic)
    run.rest()
    run.end(shift)
    return Restored(len(backup.topics), backup.partitions, run.aborted, run.notes, shift)


class _Run:
    """One run. Lifecycle: ``start``, each ``topic``, ``settle``, ``rest``, ``end``."""

    def __init__(
        self, cluster: Cluster, store: BackupStore, backup: Backup, progress: Callable[[int, int], None]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._backup = backup
        self._progress = progress
        self._target = Target(cluster)
        self._there: dict[str, FoundTopic] = {}
        self._done_bytes = 0
        self._total_bytes = backup.size_bytes
        self.aborted = 0
        self.notes: list[str] = []

    def start(self) -> int:
        """Check that the cluster is empty, or that a run for this backup was here; what to add to producer ids."""
        started = restoring(self._cluster)
        self._there = {one.name: one for one in Source(self._cluster).topics()}
        if started is not None:
            if started.backup != self._backup.name:
                raise Rejected(
                    f"a restore of backup {started.backup} was started in this cluster: finish it, or use another "
                    "cluster"
                )
            return started.shift
        others = sorted(self._there)
        if others == [SCHEMAS] and not any(end for _, end in self._target.ends(SCHEMAS, (0,)).values()):
            others = []
        if others:
            raise Rejected(
                f"the cluster has topics ({', '.join(others[:5])}{', …' if len(others) > 5 else ''}): a backup is "
                "restored into a cluster without topics"
            )
        most = self._backup.producer_id_max
        shift = self._target.reserve_producer_ids(most + 1) if most >= 0 else 0
        self._target.create_topic(Restoring(self._backup.name, shift).mark, 1, 1, {})
        return shift

    def topic(self, topic: TopicBackup, shift: int) -> None:
        """Make a topic, and give it its records."""
        found = self._there.get(topic.name)
        if found is None:
            replication = min(topic.replication, len(self._cluster.metadata([]).brokers))
            if replication < topic.replication:
                self.notes.append(f"topic {topic.name} had {topic.replication} replicas and has {replication}")
            configs = {name: value for name, value in topic.configs.items() if name not in _LATER} | _HELD
            self._target.create_topic(topic.name, len(topic.partitions), replication, configs)
        elif len(found.partitions) != len(topic.partitions):
            raise Rejected(f"topic {topic.name} has {len(found.partitions)} partitions: something else has made it")
        else:
            self._target.alter_topic(topic.name, {}, _HELD)
        indexes = tuple(part.index for part in topic.partitions)
        ends = self._target.ends(topic.name, indexes)
        for part in topic.partitions:
            start, end = ends[part.index]
            if end > part.end_offset:
                self._check_markers(topic, part)
            self._records(topic, part, end, shift)
            if start < part.start_offset:
                self._target.delete_before(topic.name, part.index, part.start_offset)
        self.aborted += self._target.abort_open(topic.name, indexes)

    def _records(self, topic: TopicBackup, part: PartitionBackup, end: int, shift: int) -> None:
        topic_id = self._target.topic_id(topic.name)
        gathered: list[bytes] = []
        size = 0
        for batch in self._batches(topic, part, end, shift):
            if gathered and size + len(batch) > REQUEST_BYTES:
                self._target.append(topic.name, topic_id, part.index, b"".join(gathered))
                gathered, size = [], 0
            gathered.append(bytes(batch))
            size += len(batch)
        if gathered:
            self._target.append(topic.name, topic_id, part.index, b"".join(gathered))

    def _batches(self, topic: TopicBackup, part: PartitionBackup, end: int, shift: int) -> Iterator[memoryview | bytes]:
        """The batches from offset ``end`` on, without a gap."""
        fill = placeholder_events if topic.has_events else empty_batches
        at = end
        for one in part.objects:
            if one.end_offset > at:
                what = f"the object {records_key(topic.topic_id, part.index, one)}"
                data = self._store.get(topic.topic_id, part.index, one)
                for batch, view in checked_batches(what, data, one):
                    if batch.last_offset < at:
                        continue
                    if batch.base_offset < at:
                        raise Rejected(f"{topic.name}-{part.index} ends within a batch: other records are there")
                    yield from fill(at, batch.base_offset)
                    yield shifted(view, shift)
                    at = batch.last_offset + 1
            self._done_bytes += one.size_bytes
            self._progress(self._done_bytes, self._total_bytes)
        yield from fill(at, part.end_offset)

    def _check_markers(self, topic: TopicBackup, part: PartitionBackup) -> None:
        """What is after the end of the backup's records may only be markers of an earlier run."""
        if any(not is_control(view) for view in batches_behind(self._cluster, topic.name, part.index, part.end_offset)):
            raise Rejected(f"{topic.name}-{part.index} has records that are not from the backup")

    def settle(self, topic: TopicBackup) -> None:
        """Give a topic its own settings."""
        late = {name: value for name, value in topic.configs.items() if name in _HELD or name in _LATER}
        self._target.alter_topic(topic.name, {name: None for name in _HELD if name not in late}, late)

    def rest(self) -> None:
        """Everything but records."""
        for group in self._backup.groups:
            self._target.commit(group)
        for group in self._backup.share_groups:
            self._target.start_share_group(group)
        for quota in self._backup.quotas:
            self._target.set_quota(quota)
        for one in self._backup.resources:
            self.notes += self._target.set_configs(one)
        self.notes += self._target.add_acls(self._backup.acls)
        self._target.set_users(self._backup.users)

    def end(self, shift: int) -> None:
        """Take the mark away."""
        self._target.delete_topic(Restoring(self._backup.name, shift).mark)


def batches_behind(cluster: Cluster, topic: str, partition: int, offset: int) -> Iterator[memoryview]:
    """The batches of a partition from ``offset`` up to its end; each is valid until the next."""
    end = Target(cluster).ends(topic, (partition,))[partition][1]
    with PartitionLog(cluster, topic, partition, read_committed=False) as log:
        while offset < end:
            log.request(offset)
            records = log.receive().records
            for batch in walk(records):
                offset = batch.last_offset + 1
                yield records[batch.position : batch.position + batch.size]
