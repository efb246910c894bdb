"""The assignor ``uniform`` for members with different subscriptions.

A partition stays with its owner if that still subscribes to the topic. A partition without an owner goes to the
subscriber with the smallest load. Then, topic by topic, partitions move from the subscriber with the largest load that
owns any of the topic to the one with the smallest, as long as the loads differ by more than one. Every move reduces the
sum of squared loads, so the moves end. A round without a move proves balance: no partition could go to a member with at
least two fewer. Rounds are bounded, because each roughly halves the imbalance.

Topics with many partitions per subscriber come first; the others then even out what remains.
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
    """The partitions of a topic that each subscriber keeps, counted in ``loads``. If two own the same partition, the
    first keeps it.
    """
    free = set(range(size))
    held: dict[str, list[int]] = {}
    for member_id in subscribers:
        kept = members[member_id].target.get(topic_id, frozenset()) & free
        free -= kept
        held[member_id] = sorted(kept)
        loads[member_id] += len(kept)
    return held


def _hand_out(held: dict[str, list[int]], loads: dict[str, int], size: int) -> None:
    """Give each partition of a topic without an owner to the subscriber with the smallest load."""
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
    """Move partitions of one topic to subscribers with smaller loads. Returns the number of moves.

    Entries of both heaps may have outdated loads, of members that gave or took since. They are corrected when they come
    up.
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
