"""The groups of a shard with what they committed, for the HTTP port.

The walk is a generator that yields every few groups. Groups that are being loaded are left out.
"""

import heapq
from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from millstream.coordinator.groups_partition import GroupsPartition
from millstream.coordinator.state_partition import State
from millstream.core.group.describe import type_of
from millstream.core.group.group import Group
from millstream.model.marks import is_mark

_SLICE: Final = 16


class GroupSummary(msgspec.Struct, frozen=True):
    """One group. ``committed``: topic → partition → offset to read next; without the marks of writers
    (``model.marks``).
    """

    name: str
    state: str
    members: int
    committed: dict[str, dict[int, int]]
    type: str


class Summaries(msgspec.Struct):
    """The first groups of a shard by name, and how many it has."""

    groups: list[GroupSummary]
    total: int = 0


def summarize_groups(
    partitions: Iterable[GroupsPartition], groups_max: int, found: Summaries
) -> Generator[None, None, None]:
    """Fill ``found`` with at most ``groups_max`` groups, in order of their names."""
    first: list[tuple[str, Group]] = []
    for partition in list(partitions):
        if partition.state is State.ACTIVE:
            groups = partition.core.groups
            found.total += len(groups)
            first = heapq.nsmallest(groups_max, [*first, *groups.items()], key=lambda item: item[0])
            yield
    for walked, (name, group) in enumerate(first, start=1):
        found.groups.append(_summary(name, group))
        if walked % _SLICE == 0:
            yield


def _summary(name: str, group: Group) -> GroupSummary:
    committed: dict[str, dict[int, int]] = {}
    for topic, partitions in group.offsets.topics.items():
        read = {index: offset.offset for index, offset in partitions.items() if not is_mark(offset.metadata)}
        if read:
            committed[topic] = read
    assigned = group.assigned
    state = group.state if assigned is None else assigned.state
    members = len(group.members) if assigned is None else len(assigned.members)
    return GroupSummary(name, state.value, members, committed, type_of(group))
