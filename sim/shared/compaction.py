"""Compaction in the simulation: several objects become one, which the controller puts in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.shared import Commit
from millstream.errors import MillstreamError
from millstream.format.shared_object import BlockBytes, encode_object
from millstream.model.replication import Term
from millstream.model.shared import SharedRange
from millstream.tiers import shared_objects
from millstream.tiers.shared_objects import read_block, read_index

if TYPE_CHECKING:
    from millstream.core.shared.catalogue import Writer
    from millstream.model.shared import ObjectId
    from sim.shared.judge import Judge
    from sim.shared.scene import Scene

_FEWEST = 3


def compact(world: Scene, judge: Judge, writer: Writer) -> bool:
    """Compact some objects; whether it worked. A failure leaves an object that nobody names."""
    catalogue, rng = world.catalogue, world.rng
    live = sorted(catalogue.live_objects)
    if len(live) < _FEWEST:
        return False
    old = set(rng.sample(live, rng.randint(2, min(5, len(live)))))
    ranges = _ranges(world, old)
    object_id = catalogue.prepare(writer, 1, replaces=True)[0]
    try:
        blocks: list[BlockBytes] = []
        for one in sorted(old):
            for block in read_index(world.faulty, one).blocks:
                kept = any(
                    it.partition == block.partition
                    and it.base_offset < block.end_offset
                    and block.base_offset < it.end_offset
                    for it in ranges
                )
                if kept:
                    data = bytes(read_block(world.faulty, one, block))
                    at = (block.partition, block.base_offset, block.end_offset, block.max_timestamp)
                    blocks.append(BlockBytes(*at, data))
        encoded = encode_object(object_id, blocks)
        shared_objects.store_object(world.faulty, encoded)
        shared_objects.verify_object(world.faulty, encoded)
        catalogue.replace(Commit(writer, object_id, encoded.size_bytes, ranges), old, world.now_ms)
    except MillstreamError:
        catalogue.give_up(writer, object_id, world.now_ms)
        return False
    judge.committed(object_id)
    return True


def _ranges(world: Scene, old: set[ObjectId]) -> tuple[SharedRange, ...]:
    """Each run of offsets that the objects have in a row."""
    made: list[SharedRange] = []
    for partition in world.partitions:
        open_run: SharedRange | None = None
        for one in world.catalogue.placed(partition):
            if one.object_id not in old:
                open_run = None
            elif open_run is None:
                open_run = SharedRange(partition, Term(0), one.base_offset, one.end_offset)
                made.append(open_run)
            else:
                made[-1] = open_run = open_run._replace(end_offset=one.end_offset)
    return tuple(made)
