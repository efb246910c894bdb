"""File names of a partition: twenty digits of the first offset, as in Kafka, so that names sort by offset.

::

    identity.json                                    which disk of which cluster this is (`cluster.identity`)
    topics/<topic id>/topic                          the topic's name, for people and for tools
    topics/<topic id>/<partition>/epochs             where the log starts, leader epochs, how far it is compacted
                                 /00000000000000000000.log  .index  .producers
                                 /00000000000000000000.2.log  .2.index       a segment that compaction wrote
                                 /….log.cleaned                              one that it has not finished
                                 /fault              why this log may not be served (only after corruption was found)
    topics/<topic id>/<partition>.<position>.staged/…    a log that another replica sends, until it is whole
    quarantine/<topic id>.<partition>                the partition's ``quarantine``, if its directory cannot be written
    purges/<topic id>-<partition>                    a deleted partition that may have objects in the object store yet
    purges/<topic id>                                a whole topic of that kind
    controller/log/…                                 the controller's log, the same files
    wal/<shard>/00000000.wal  state  state.copy      write-ahead log
    wal/opened                                       what an orderly stop knew of all logs

The name of a compacted segment has a *generation*, one more than the highest that it was made of. A path thus always
means the same bytes: a reader of the old file can finish until it is removed. Only files with a generation may have
gaps in their offsets.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millstream.model.quantities import Offset, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.model.replication import RaftPosition

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"
QUARANTINED_SUFFIX = ".quarantined"
IDENTITY_FILE = "identity.json"
TOPICS_DIRECTORY = "topics"
PURGES_DIRECTORY = "purges"
WAL_DIRECTORY = "wal"
PARTITION_LEVELS = 3
"""Directories that a topic's first log may make below the data directory: ``topics``, the topic's, the partition's."""
EPOCHS_FILE = "epochs"
FAULT_FILE = "fault"
LOST_FILE = "lost"
QUARANTINE_FILE = "quarantine"
"""Records of the write-ahead log of a partition that failed (``format.quarantine``)."""
QUARANTINE_DIRECTORY = "quarantine"
"""Of the data directory: what partitions whose directories cannot be written would have in such a file."""
TOPIC_FILE = "topic"
WAL_SUFFIX = ".wal"
STATE_FILE = "state"
STATE_COPY_FILE = "state.copy"
OPENED_FILE = "opened"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"
CLEANED_SUFFIX = ".cleaned"
STAGED_SUFFIX = ".staged"
DAMAGED_SUFFIX = ".damaged"

_OFFSET_DIGITS = 20
_WAL_DIGITS = 8


def offset_name(offset: Offset, suffix: str) -> str:
    """The file name of something that starts at ``offset``."""
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def quarantine_elsewhere(directory: str) -> str:
    """The file that takes what a partition's `QUARANTINE_FILE` cannot, because its directory cannot be written."""
    topic = os.path.dirname(directory)
    data_dir = os.path.dirname(os.path.dirname(topic))
    return f"{data_dir}/{QUARANTINE_DIRECTORY}/{os.path.basename(topic)}.{os.path.basename(directory)}"


def parse_offset(name: str, suffix: str) -> int | None:
    """The offset in a file name with this suffix; None for any other name."""
    digits = name.removesuffix(suffix)
    if len(digits) != _OFFSET_DIGITS or digits == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def segment_name(base_offset: Offset, generation: int = 0) -> str:
    """The file name of a segment. Generation 0 was never compacted."""
    return offset_name(base_offset, f".{generation}{SEGMENT_SUFFIX}" if generation else SEGMENT_SUFFIX)


def parse_segment(name: str) -> tuple[int, int] | None:
    """(base offset, generation) of a segment's file name; None for any other name."""
    base = parse_offset(name, SEGMENT_SUFFIX)
    if base is not None:
        return base, 0
    stem, _, generation = name.removesuffix(SEGMENT_SUFFIX).partition(".")
    if not name.endswith(SEGMENT_SUFFIX) or not generation.isascii() or not generation.isdigit():
        return None
    base = parse_offset(stem + SEGMENT_SUFFIX, SEGMENT_SUFFIX)
    if base is None or generation.startswith("0"):
        return None
    return base, int(generation)


def live_and_replaced(
    names: Iterable[str], end_of: Callable[[str, int], int | None]
) -> tuple[dict[int, str], list[str]]:
    """The segment files of a log, by base offset and in order, and the files that compaction replaced.

    A replaced file lies inside the offsets of a file of a higher generation. ``end_of`` returns the end offset of a
    compacted file, given its name and base offset; None if it is unknown.
    """
    live: dict[int, str] = {}
    replaced: list[str] = []
    end = generation = 0
    # By offset, the highest generation first.
    for base, own in sorted(filter(None, map(parse_segment, names)), key=lambda found: (found[0], -found[1])):
        name = segment_name(Offset(base), own)
        if base < end and own < generation:
            replaced.append(name)
            continue
        live[base] = name
        ends = end_of(name, base) if own else None
        if ends is not None:
            end, generation = ends, own
    return live, replaced


def wal_name(index: int) -> str:
    """The file name of a shard's write-ahead log file number ``index``."""
    return f"{index:0{_WAL_DIGITS}d}{WAL_SUFFIX}"


def parse_wal_name(name: str) -> int | None:
    """The number in a write-ahead log file's name; None for any other name."""
    digits = name.removesuffix(WAL_SUFFIX)
    if len(digits) != _WAL_DIGITS or digits == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def partition_directory(data_dir: str, topic_id: bytes, partition: int) -> str:
    """Directory of a partition's files."""
    return f"{data_dir}/{TOPICS_DIRECTORY}/{topic_id.hex()}/{partition}"


def staged_directory(directory: str, position: RaftPosition) -> str:
    """Where what another replica sends of the log in ``directory`` is gathered; it ends at the Raft position given."""
    return f"{directory}.{position}{STAGED_SUFFIX}"


def resumable(name: str) -> bool:
    """Whether ``name`` is that of a staged log that a later start can continue: not of an empty one, which ends at
    position 0, nor of an event topic's.
    """
    log, _, position = name.removesuffix(STAGED_SUFFIX).rpartition(".")
    return name.endswith(STAGED_SUFFIX) and position.isdecimal() and int(position) > 0 and log.rpartition("-")[0] == ""


def controller_directory(data_dir: str) -> str:
    """Directory of the controller's log (group 0)."""
    return f"{data_dir}/controller/log"


def wal_directory(data_dir: str, shard: ShardId) -> str:
    """Directory of a shard's write-ahead log."""
    return f"{data_dir}/{WAL_DIRECTORY}/{shard}"
