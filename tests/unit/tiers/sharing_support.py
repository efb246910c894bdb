"""Shared partitions, and batches for them."""

import uuid

from millstream.model.shared import SharedPartition
from millstream.tiers.joining import join
from millstream.tiers.messages import Join, Read, Share, SharedPart, Target
from millstream.tiers.packing import archive_id, pack
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.uploading import Pace
from millstream.wire.records import build_batch

TOPIC = uuid.UUID(int=5)


A, B = (SharedPartition(TOPIC.bytes, index) for index in (0, 1))


def batches(first, count, size=100):
    """``count`` batches of two records each."""
    return b"".join(
        build_batch([(None, b"%06d" % at + bytes(size), (), 1000 + at)] * 2, base_offset=at, leader_epoch=3)
        for at in range(first, first + 2 * count, 2)
    )


def share(store, object_id, *parts, on_block=None):
    """Write an object of (partition, first offset, end offset, bytes, aborted transactions)."""
    arena, made = bytearray(), []
    for partition, first, end, data, aborted in parts:
        at = len(arena)
        arena += data
        cut = at + len(data) // 2
        made.append(SharedPart(partition, first, end, [at, cut, cut, len(arena)], aborted))
    return pack(store, Share(1, object_id, made), memoryview(arena), Pace(1e12), on_block)


def read(store, partition, segment, offset, end, room=1 << 20):
    buffer = bytearray(room)
    command = Read(1, archive_id(partition), Target.of(segment), offset, end, room, True, [0, room])
    found = ArchiveReader(store).read(command, [memoryview(buffer)])
    return bytes(buffer[: found.size_bytes]), list(found.aborted)


def joined(store, segments, reads=None, **more):
    """The join of some ranges of A."""
    command = Join(
        1, archive_id(A), 7, tuple(segments), **{"part": None, "target_bytes": 1 << 20, "start_offset": 0, **more}
    )
    return join(store, ArchiveReader(reads or store), command, Pace(1e12))
