"""Reads every byte of a backup: the root, each object's checksum, each batch's checksum and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.backup.batches import checked_batches
from millstream.backup.store import records_key
from millstream.errors import Corruption

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.backup.model import Backup
    from millstream.backup.store import BackupStore


class Verified(NamedTuple):
    """What was read, and what is wrong, a sentence each."""

    objects: int
    batches: int
    faults: list[str]


def verify(store: BackupStore, backup: Backup, progress: Callable[[int, int], None]) -> Verified:
    """Look at all objects of a backup; a fault ends nothing. ``progress`` gets bytes that are done, and all of them.

    Raises:
        Unavailable, Denied: the store.
    """
    faults: list[str] = []
    objects = batches = size = 0
    total = backup.size_bytes
    for topic in backup.topics:
        for part in topic.partitions:
            where = f"{topic.name}-{part.index}"
            end = part.objects[0].base_offset if part.objects else part.end_offset
            for one in part.objects:
                objects += 1
                try:
                    if one.base_offset < end:
                        raise Corruption("it starts before the end of the object before it")
                    key = records_key(topic.topic_id, part.index, one)
                    data = store.get(topic.topic_id, part.index, one)
                    batches += sum(1 for _ in checked_batches(f"the object {key}", data, one))
                except Corruption as error:
                    faults.append(f"{where}, offsets {one.base_offset} to {one.end_offset - 1}: {error.message}")
                end = one.end_offset
                size += one.size_bytes
                progress(size, total)
            if end != part.end_offset:
                faults.append(f"{where}: its objects end at offset {end}, the root says {part.end_offset}")
    return Verified(objects, batches, faults)
