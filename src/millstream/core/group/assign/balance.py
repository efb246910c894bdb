"""The assignor ``uniform`` for members that do not all subscribe to the same topics.

What anybody holds of a topic that it still subscribes to stays where it is; what nobody holds goes to the subscriber
with the smallest load; then, topic by topic, partitions move from the subscriber with the largest load that has any of
that topic to the one with the smallest, as long as those differ by more than one. Every move makes the sum of squared
loads smaller, so the moving ends; a round in which nothing moved proves balance: no partition could go to a member that
has at least two fewer. Rounds are bounded, as each halves the imbalance, roughly.

Topics with many partitions for each subscriber come first: the others then fill what these left uneven.
"""

import heapq
from typing import Final

from millstream.core.group.assign.spec import Assignment, Sizes, Subscribers

ROUNDS_MAX: Final = 32


def assign_balanced(members: Subscribers, sizes: Sizes) -> Assignment:
    """The target assignment of all members."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    order = sorted(subscribers, key=lambda topic: (-sizes[topic] / len(subscribers[topic]), topic))
    loads = dict.fromkeys(members, 0)
    held = {topic_id: _kept(members, loads, topic_id, sizes[topic_id], subscribers[topic_id]) for topic_id in order}
    for topic_id in order:
        _hand_out(held[topic_id], loads, sizes[topic_id])
    movable = [topic_id for topic_id in order if len(subscribers[topic_id]) > 1]
    for _ in range(ROUNDS_MAX):
        if not sum(_even_out(held[topic_id], loads) for topic_id in movable):
            break
    assignment: Assignment = {member_id: {} for member_id in members}
    targets: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, owners in held.items():
        for member_id, partitions in owners.items():
            if partitions:
                targets[member_id][topic_id] = frozenset(partitions)
    assignment.update(targets)
    return assignment


def _kept(
    members: Subscribers, loads: dict[str, int], topic_id: bytes, size: int, subscribers: list[str]
) -> dict[str, list[int]]:
    """What each subscriber keeps of a topic, counted in ``loads``; of two that hold the same partition, the first."""
    free = set(range(size))
    held: dict[str, list[int]] = {}
    for member_id in subscribers:
        kept = members[member_id].target.get(topic_id, frozenset()) & free
        free -= kept
        held[member_id] = sorted(kept)
        loads[member_id] += len(kept)
    return held


def _hand_out(held: dict[str, list[int]], loads: dict[str, int], size: int) -> None:
    """Give what nobody holds of a topic to the subscriber with the smallest load, one by one."""
    owned = {partition for partitions in held.values() for partition in partitions}
    free = [partition for partition in range(size) if partition not in owned]
    if not free:
        return
    smallest = [(loads[member_id], place, member_id) for place, member_id in enumerate(held)]
    heapq.heapify(smallest)
    for partition in free:
        load, place, member_id = smallest[0]
        held[member_id].append(partition)
        loads[member_id] = load + 1
        heapq.heapreplace(smallest, (load + 1, place, member_id))


def _even_out(held: dict[str, list[int]], loads: dict[str, int]) -> int:
    """Move partitions of one topic to those with smaller loads; how many moved.

    Both heaps may hold loads that are out of date: those of members that gave or took since. They are put right when
    they come up.
    """
    smallest = [(loads[member_id], place, member_id) for place, member_id in enumerate(held)]
    largest = [(-loads[member_id], -place, member_id) for place, member_id in enumerate(held) if held[member_id]]
    heapq.heapify(smallest)
    heapq.heapify(largest)
    moved = 0
    while largest:
        load, place, giver = largest[0]
        if -load != loads[giver] or not held[giver]:
            heapq.heappop(largest)
            if held[giver]:
                heapq.heappush(largest, (-loads[giver], place, giver))
            continue
        low, place, taker = smallest[0]
        if low != loads[taker]:
            heapq.heapreplace(smallest, (loads[taker], place, taker))
            continue
        if loads[giver] - low <= 1:
            break
        held[taker].append(held[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
    return moved
