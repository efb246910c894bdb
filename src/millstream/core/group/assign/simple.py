"""The assignor ``simple`` of share groups: a partition may have several members, and each has about equally many.

Each partition goes to ⌈members ÷ partitions⌉ of the members that may have it, so that with more members than partitions
no member is idle. Members that subscribe to the same topics share all of them; otherwise each topic is shared among its
own subscribers. A member keeps what it has as far as its share and the partition's allow it: balance before stickiness.

The order of members and partitions decides what is left, so that equal input gives equal output (KIP-932, "Simple
assignor").
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from millstream.core.group.assign.spec import Assignment, Subscribers, are_alike

Assignable: TypeAlias = Mapping[bytes, frozenset[int]]
"""Topic id → partitions that may be assigned, for every topic that a member subscribes to."""

_Place: TypeAlias = tuple[bytes, int]


def assign_simple(members: Subscribers, assignable: Assignable) -> Assignment:
    """What each member is to have. A topic that no member subscribes to is assigned to none."""
    order = sorted(members)
    targets: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in order}
    if members and are_alike(members):
        _share(members, order, _places(members[order[0]].topic_ids, assignable), targets)
    else:
        for topic_id in sorted(assignable):
            subscribers = [member_id for member_id in order if topic_id in members[member_id].topic_ids]
            _share(members, subscribers, _places((topic_id,), assignable), targets)
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in held.items()}
        for member_id, held in targets.items()
    }


def _places(topic_ids: Sequence[bytes] | frozenset[bytes], assignable: Assignable) -> list[_Place]:
    nothing: frozenset[int] = frozenset()
    return [
        (topic_id, partition)
        for topic_id in sorted(topic_ids)
        for partition in sorted(assignable.get(topic_id, nothing))
    ]


def _share(
    members: Subscribers, sharers: Sequence[str], places: Sequence[_Place], targets: dict[str, dict[bytes, set[int]]]
) -> None:
    """Share ``places`` among ``sharers``: as many members a place, and as many places a member, as the others have."""
    if not sharers or not places:
        return
    sharing = -(-len(sharers) // len(places))
    total = sharing * len(places)
    owners: dict[_Place, set[str]] = {place: set() for place in places}
    room: dict[str, int] = {}
    count = len(sharers)
    for index, member_id in enumerate(sharers):
        room[member_id] = -(-total * (index + 1) // count) + (-total * index // count)
        held = members[member_id].target
        for place in sorted((topic_id, partition) for topic_id in held for partition in held[topic_id]):
            if room[member_id] and place in owners and len(owners[place]) < sharing:
                owners[place].add(member_id)
                room[member_id] -= 1
    unfilled = [member_id for member_id in sharers if room[member_id]]
    for place in places:
        while len(owners[place]) < sharing:
            taker = next((member_id for member_id in unfilled if member_id not in owners[place]), None)
            if taker is None:
                break  # who has room left has this place already
            owners[place].add(taker)
            room[taker] -= 1
            unfilled.remove(taker)
            if room[taker]:
                unfilled.append(taker)
    for (topic_id, partition), having in owners.items():
        for member_id in having:
            targets[member_id].setdefault(topic_id, set()).add(partition)
