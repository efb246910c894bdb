"""Which files hold which offsets: what a reader needs to read a topic's history without this broker.

Only what can be trusted as it lies on disk is named: sealed segments, written completely, below the high watermark.
The rest, the tail, is the broker's to serve. An event topic has sealed chunks in the place of segments. Of a
tiered partition it is also said how far it is archived: what no longer has a local file is in the object store. The
manifest of a shared partition comes with the answer, because the one in the store is only as new as the last join. A
file may go (retention, deletion) after it was named; its reader then asks the broker.

For read_committed readers a file comes with its aborted transactions. A file with a transaction that has not ended
comes without that list, and so does one with more than `_ABORTED_MAX`: what is in it is the broker's to serve.
"""

import base64
import os
from typing import Any, Final

from millstream.format.manifest import encode_manifest
from millstream.model.quantities import Offset
from millstream.partition.partition import Gate, Partition
from millstream.partition.table import PartitionTable

_ABORTED_MAX: Final = 1_000


def describe_partitions(table: PartitionTable, topic: str) -> list[dict[str, Any]]:
    """One entry for each partition of ``topic`` whose home is this shard."""
    return [describe(entry) for entry in table.by_name.get(topic, ()) if isinstance(entry, Partition)]


def describe(partition: Partition) -> dict[str, Any]:
    """A partition's offsets and its readable segment files. Ends are exclusive, times in ms since 1970."""
    high_watermark = partition.high_watermark
    events = bool(partition.gate & Gate.EVENTS)
    sealed = [
        segment
        for segment in partition.log.segments()
        if not partition.config.is_shared  # what is local goes at any moment, and none of it is old
        and segment.sealed
        and segment.flushed_bytes == segment.bytes
        and segment.end_offset <= high_watermark
    ]
    archived: dict[str, Any] = {}
    if partition.archive is not None:
        archive = partition.archive.archive
        archived["archived_end_offset"] = archive.end_offset
        if partition.config.is_shared:
            manifest = encode_manifest(archive.manifest(partition.archive.owner))
            archived["shared_manifest"] = base64.b64encode(manifest).decode()
    return {
        "partition": partition.index,
        "leader_epoch": partition.leader_epoch,
        "log_start_offset": partition.log_start_offset,
        "high_watermark": high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        **archived,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "bytes": segment.bytes,
                "min_timestamp": segment.min_timestamp,
                "max_timestamp": segment.max_timestamp,
                "path": os.path.abspath(segment.path),
                **_aborted(partition, segment.base_offset, segment.end_offset),
            }
            for segment in ([] if events else sealed)
        ],
        "chunks": [
            {
                "base_offset": chunk.base_offset,
                "end_offset": chunk.end_offset,
                "bytes": chunk.bytes,
                "path": os.path.dirname(os.path.abspath(chunk.path)),
            }
            for chunk in (sealed if events else [])
        ],
    }


def _aborted(partition: Partition, base_offset: Offset, end_offset: Offset) -> dict[str, Any]:
    """The aborted transactions with a record in [``base_offset``, ``end_offset``), if all of them are known: each as
    (producer id, first offset, offset of the marker).
    """
    if end_offset > partition.last_stable_offset:
        return {}
    found = partition.transactions.aborted_between(base_offset, end_offset)
    return {"aborted": found} if len(found) <= _ABORTED_MAX else {}
