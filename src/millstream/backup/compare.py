"""Compares a cluster with the backup that was restored into it: every end, every batch, and of groups
the offsets and the settings.

Batches are compared byte by byte, but for leader epochs, which are the new cluster's, and producer ids, which the
restore has moved. Empty batches stand for offsets without records and are passed over. Markers that aborted what was
open may be after the end of a partition.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from millstream.backup.batches import ALIKE_FROM, checked_batches, is_control, is_empty, shifted
from millstream.backup.records import Place, read_events
from millstream.backup.restore import batches_behind
from millstream.backup.source import Source
from millstream.backup.store import records_key
from millstream.backup.target import Target
from millstream.client.cluster import GROUP_RESOURCE
from millstream.format.events.batch import decode_event_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.backup.model import Backup, PartitionBackup, TopicBackup
    from millstream.backup.store import BackupStore
    from millstream.client.cluster import Cluster
    from millstream.format.segment import Batch


class Compared(NamedTuple):
    """What was compared, and what differs, a sentence each."""

    partitions: int
    batches: int
    differences: list[str]


def compare(
    cluster: Cluster, store: BackupStore, backup: Backup, shift: int, progress: Callable[[int, int], None]
) -> Compared:
    """Read both sides. ``shift`` is what the restore has added to producer ids; ``progress`` gets bytes that are done,
    and all of them.

    Raises:
        Corruption: the backup is damaged.
        Unavailable: a broker, or the store, does not answer.
    """
    differences: list[str] = []
    batches = done = 0
    target = Target(cluster)
    there = {one.name: one for one in Source(cluster).topics()}
    for topic in backup.topics:
        found = there.pop(topic.name, None)
        if found is None or len(found.partitions) != len(topic.partitions):
            what = "is not there" if found is None else f"has {len(found.partitions)} partitions"
            differences.append(f"topic {topic.name} {what}")
            continue
        ends = target.ends(topic.name, tuple(part.index for part in topic.partitions))
        for part in topic.partitions:
            where = f"{topic.name}-{part.index}"
            start, end = ends[part.index]
            if start != part.start_offset:
                differences.append(f"{where} starts at offset {start}, in the backup at {part.start_offset}")
            if end < part.end_offset:
                differences.append(f"{where} ends at offset {end}, in the backup at {part.end_offset}")
                continue
            batches += _compare_partition(cluster, store, topic, part, shift, differences)
            done += sum(one.size_bytes for one in part.objects)
            progress(done, backup.size_bytes)
    differences += [f"topic {name} is not in the backup" for name in there]
    differences += _compare_groups(cluster, backup)
    return Compared(backup.partitions, batches, differences)


def _compare_partition(
    cluster: Cluster,
    store: BackupStore,
    topic: TopicBackup,
    part: PartitionBackup,
    shift: int,
    differences: list[str],
) -> int:
    """Compare the records of a partition, up to the first difference; the number of batches, or of events."""
    where = f"{topic.name}-{part.index}"
    stored = (one for one in _stored(store, topic, part) if one[1].last_offset >= part.start_offset)
    if topic.has_events:
        pairs = zip_longest(_events_stored(stored), _events_there(cluster, topic, part))
    else:
        pairs = zip_longest(_batches_stored(stored, shift), _batches_there(cluster, topic, part))
    count = 0
    for there, here in pairs:
        count += 1
        if there != here:
            place = there if there is not None else here
            assert place is not None
            differences.append(f"{where}: what is at offset {place[0]} is not what the backup has there")
            break
    return count


def _stored(store: BackupStore, topic: TopicBackup, part: PartitionBackup) -> Iterator[tuple[memoryview, Batch]]:
    for one in part.objects:
        what = f"the object {records_key(topic.topic_id, part.index, one)}"
        for batch, view in checked_batches(what, store.get(topic.topic_id, part.index, one), one):
            yield view, batch


def _batches_stored(stored: Iterator[tuple[memoryview, Batch]], shift: int) -> Iterator[tuple[int, bytes]]:
    """Base offset, and what a log does not write itself."""
    for view, batch in stored:
        if not is_empty(view):
            yield batch.base_offset, bytes(shifted(view, shift)[ALIKE_FROM:])


def _batches_there(cluster: Cluster, topic: TopicBackup, part: PartitionBackup) -> Iterator[tuple[int, bytes]]:
    for view in batches_behind(cluster, topic.name, part.index, part.start_offset):
        base = int.from_bytes(view[:8], "big")
        if not is_empty(view) and not (base >= part.end_offset and is_control(view)):
            yield base, bytes(view[ALIKE_FROM:])


def _events_stored(stored: Iterator[tuple[memoryview, Batch]]) -> Iterator[tuple[int, int, bytes, bytes]]:
    for view, batch in stored:
        events = decode_event_batch(view, event_bytes_max=len(view), verify=False)
        each = zip(events.metadata_of_each(), events.data_of_each(), strict=True)
        for event_id, (metadata, data) in enumerate(each, batch.base_offset):
            yield event_id, batch.max_timestamp, bytes(metadata), bytes(data)


def _events_there(
    cluster: Cluster, topic: TopicBackup, part: PartitionBackup
) -> Iterator[tuple[int, int, bytes, bytes]]:
    topic_id = cluster.metadata([topic.name]).topics[topic.name].topic_id
    place = Place(topic.name, topic_id, part.index, has_events=True, is_compacted=False)
    for events in read_events(cluster, place, part.start_offset, part.end_offset):
        yield from events


def _compare_groups(cluster: Cluster, backup: Backup) -> list[str]:
    """What differs of the groups of the backup."""
    source = Source(cluster)
    groups, shares = source.groups()
    offsets = {one.group_id: one.offsets for one in groups}
    starts = {one.group_id: one.offsets for one in shares}
    settings = {one.name: one.configs for one in source.resources() if one.resource_type == GROUP_RESOURCE}
    return [
        *(
            f"group {one.group_id} has other offsets than in the backup"
            for one in backup.groups
            if offsets.get(one.group_id) != one.offsets
        ),
        *(
            f"share group {one.group_id} has other starts than in the backup"
            for one in backup.share_groups
            if starts.get(one.group_id) != one.offsets
        ),
        *(
            f"group {one.name} has other settings than in the backup"
            for one in backup.resources
            if one.resource_type == GROUP_RESOURCE and settings.get(one.name) != one.configs
        ),
    ]
