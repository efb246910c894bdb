"""Readers in the simulation: they look an offset up, and read its object a while later."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import Corruption, MillstreamError, Rejected, Unavailable
from millstream.objects.errors import ShortRead
from millstream.tiers.shared_objects import find_block, read_block, read_index
from sim.shared.scene import Scene, Wrong

if TYPE_CHECKING:
    from millstream.core.shared import Placed
    from millstream.model.quantities import Offset
    from millstream.model.shared import SharedPartition

_PATIENCE_MS = 4_000
"""How long a reader without a lease takes at most: less than the grace period."""


class _Reading(NamedTuple):
    partition: SharedPartition
    offset: Offset
    placed: Placed
    is_leased: bool
    begun_ms: int


class Readers:
    """All readers of a world. Some lease their object and may take any time."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        self._under_way: list[_Reading] = []

    def begin(self) -> None:
        """Look an offset up."""
        world = self._world
        partition = world.rng.choice(world.partitions)
        placed = world.catalogue.placed(partition)
        if not placed or len(self._under_way) > 20:
            return
        one = world.rng.choice(placed)
        leased = world.rng.random() < 0.5
        if leased:
            world.catalogue.lease(one.object_id)
        self._under_way.append(_Reading(partition, one.base_offset, one, leased, world.now_ms))

    def go_on(self) -> None:
        """One reader reads. Its object is there, and has the offset."""
        world = self._world
        late = [one for one in self._under_way if not one.is_leased and world.now_ms - one.begun_ms > _PATIENCE_MS]
        self._under_way = [one for one in self._under_way if one not in late]
        if not self._under_way:
            return
        reading = world.rng.choice(self._under_way)
        object_id = reading.placed.object_id
        try:
            block = find_block(read_index(world.faulty, object_id), reading.partition, reading.offset)
            read_block(world.faulty, object_id, block)
        except (Unavailable, ShortRead):
            return
        except (Rejected, Corruption) as error:
            raise Wrong(f"F4: a reader of object {object_id} got: {error.message}") from error
        except MillstreamError:
            return
        world.seen["read"] += 1
        self._under_way.remove(reading)
        if reading.is_leased:
            world.catalogue.release(object_id)
