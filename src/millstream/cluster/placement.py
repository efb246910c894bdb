"""Chooses the home shard of each partition.

Placement is local to this node: logs belong to no shard on disk, so a partition may have another home shard after every
start. A new partition goes to the shard with the fewest partitions of its topic, then with the fewest in all. This
spreads the partitions of one topic, and many topics with one partition each.

Decisions are stored in ``<data>/placement.json``, only so that partitions stay where they were. The file is disposable:
if it is missing, torn, or for another number of shards, everything is placed again. All shards must agree. Therefore
one process (the supervisor) loads the placement before any shard runs; later only the controller's shard places
partitions, and reports them to the others.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from millstream.core.controller.state import ControllerState
from millstream.storage.disk import Disk, read_file, write_all

FILE: Final = "placement.json"


ELSEWHERE: Final = -1
"""In the place of a home shard: this broker holds no replica of the partition."""


class _Stored(msgspec.Struct, frozen=True):
    shards: int
    homes: list[tuple[int, int]]
    """Raft group and home shard."""


class Placement:
    """The home shard of every Raft group, and the number of groups per shard.

    Invariant: ``counts[s]`` is the number of groups whose home is ``s``.
    """

    __slots__ = ("counts", "homes", "shards")

    def __init__(self, shards: int, homes: dict[int, int] | None = None) -> None:
        self.shards = shards
        self.homes: dict[int, int] = dict(homes or {})
        self.counts = [0] * shards
        for home in self.homes.values():
            self.counts[home] += 1

    def place(self, groups: Iterable[int], siblings: Sequence[int] = ()) -> tuple[int, ...]:
        """Homes for new groups of one topic. ``siblings`` are the topic's other groups."""
        of_topic = [0] * self.shards
        for sibling in siblings:
            of_topic[self.homes[sibling]] += 1
        placed: list[int] = []
        for group in groups:
            assert group not in self.homes, f"Raft group {group} has a home already"
            home = min(range(self.shards), key=lambda shard: (of_topic[shard], self.counts[shard]))
            of_topic[home] += 1
            self.counts[home] += 1
            self.homes[group] = home
            placed.append(home)
        return tuple(placed)

    def forget(self, groups: Iterable[int]) -> None:
        """Remove deleted groups."""
        for group in groups:
            self.counts[self.homes.pop(group)] -= 1


def load_placement(disk: Disk, data_dir: str, shards: int, state: ControllerState, node: int) -> Placement:
    """A home for every group of ``state`` that ``node`` holds: the stored one if it is valid, otherwise a new one."""
    remembered = _read(disk, os.path.join(data_dir, FILE), shards)
    known = {
        partition.raft_group: remembered[partition.raft_group]
        for topic in state.topics.values()
        for partition in topic.partitions
        if partition.raft_group in remembered and node in partition.replicas
    }
    placement = Placement(shards, known)
    for _, topic in sorted(state.topics.items()):
        groups = [partition.raft_group for partition in topic.partitions if node in partition.replicas]
        new = [group for group in groups if group not in known]
        if new:
            placement.place(new, [group for group in groups if group in known])
    return placement


def _read(disk: Disk, path: str, shards: int) -> dict[int, int]:
    try:
        stored = msgspec.json.decode(read_file(disk, path), type=_Stored)
    except (OSError, msgspec.DecodeError):
        return {}
    homes = dict(stored.homes)
    if stored.shards != shards or not all(0 <= home < shards for home in homes.values()):
        return {}
    return homes


def save_placement(disk: Disk, data_dir: str, placement: Placement) -> None:
    """Store the placement. Not synced, because losing it costs nothing. Raises OSError."""
    path = os.path.join(data_dir, FILE)
    data = msgspec.json.encode(_Stored(placement.shards, sorted(placement.homes.items())))
    file = disk.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        write_all(file, [data], 0)
    finally:
        file.close()
    disk.rename(path + ".tmp", path)
