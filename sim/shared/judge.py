"""What must hold. Letters and numbers are those of the project's list of invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import MillstreamError
from millstream.format.shared_object import shared_key
from millstream.objects import ObjectKey
from millstream.tiers.shared_objects import find_block, read_block, read_index
from sim.shared.broker import RECORD
from sim.shared.scene import Scene, Wrong

if TYPE_CHECKING:
    from millstream.model.shared import ObjectId, SharedPartition
    from sim.shared.logs import Values


class Judge:
    """Looks at one world, past the faults of its store."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        self._acked: dict[SharedPartition, dict[int, int]] = {}

    def acked(self, partition: SharedPartition, base: int, values: Values) -> None:
        """A producer was answered."""
        known = self._acked.setdefault(partition, {})
        for at, value in enumerate(values):
            if base + at in known:
                raise Wrong(f"E4: offset {base + at} was acknowledged twice, as {known[base + at]} and {value}")
            known[base + at] = value

    def committed(self, object_id: ObjectId) -> None:
        """An object became visible: F1, it is whole; F5, it has what was acknowledged."""
        store = self._world.memory
        try:
            index = read_index(store, object_id)
            for block in index.blocks:
                self._compare(block.partition, dict(RECORD.iter_unpack(read_block(store, object_id, block))))
        except MillstreamError as error:
            raise Wrong(f"F1: object {object_id} was committed and cannot be read: {error.message}") from error

    def _compare(self, partition: SharedPartition, found: dict[int, int]) -> None:
        known = self._acked.get(partition, {})
        for offset, value in found.items():
            if known.get(offset, value) != value:
                raise Wrong(f"F5: offset {offset} was acknowledged as {known[offset]} and is {value} in an object")

    def look(self) -> None:
        """After each step: no hole, no overlap, and every object that is named is there (F3, F4)."""
        catalogue, objects = self._world.catalogue, self._world.memory.objects
        for partition in self._world.partitions:
            start, end = catalogue.bounds(partition)
            at = None
            for one in catalogue.placed(partition):
                if at is None and one.base_offset > start:
                    raise Wrong(f"F3: nothing has the offsets {start}–{one.base_offset}")
                if at is not None and one.base_offset != at:
                    raise Wrong(f"F3: offsets {one.base_offset}–{at} are missing, or in two objects")
                at = one.end_offset
                if ObjectKey(shared_key(one.object_id)) not in objects:
                    raise Wrong(f"F4: object {one.object_id} is named and gone")
            if at not in (None, end):
                raise Wrong(f"F3: objects end at {at}, the log at {end}")

    def at_the_end(self) -> None:
        """Everything acknowledged is in the store alone (F7, F8)."""
        catalogue, store = self._world.catalogue, self._world.memory
        for partition, known in sorted(self._acked.items()):
            start, _ = catalogue.bounds(partition)
            for offset in sorted(one for one in known if one >= start):
                placed = catalogue.find(partition, offset)  # pyright: ignore[reportArgumentType]
                if placed is None:
                    raise Wrong(f"F8: offset {offset} was acknowledged and is lost")
                try:
                    block = find_block(read_index(store, placed.object_id), partition, offset)  # pyright: ignore[reportArgumentType]
                    found = dict(RECORD.iter_unpack(read_block(store, placed.object_id, block)))
                except MillstreamError as error:
                    raise Wrong(f"F8: offset {offset} cannot be read: {error.message}") from error
                if found.get(offset) != known[offset]:
                    raise Wrong(f"F8: offset {offset} was acknowledged as {known[offset]}, {found.get(offset)} is read")
