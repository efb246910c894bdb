"""The assignor ``uniform``: loads that differ by one partition at most, moving as few partitions as that allows.

For members that all subscribe to the same topics: each keeps what it has up to its share of all partitions, the rest is
handed to those below theirs. One pass over members and partitions. Members with different topics are ``balance``'s.

Which members get the one partition more: first those that have more than the smaller share already, so that no member
gives up a partition for the sake of another's order.
"""

from millstream.core.group.assign.balance import assign_balanced
from millstream.core.group.assign.spec import Assignment, Partitions, Sizes, Subscribers, are_alike


def assign_uniform(members: Subscribers, sizes: Sizes) -> Assignment:
    """The target assignment of all members."""
    return _assign_alike(members, sizes) if are_alike(members) else assign_balanced(members, sizes)


def _assign_alike(members: Subscribers, sizes: Sizes) -> Assignment:
    if not members:
        return {}
    topic_ids = sorted(next(iter(members.values())).topic_ids)
    share, larger = divmod(sum(sizes[topic_id] for topic_id in topic_ids), len(members))
    kept: dict[str, dict[bytes, set[int]]] = {}
    counts: dict[str, int] = {}
    free = {topic_id: set(range(sizes[topic_id])) for topic_id in topic_ids}
    for member_id, member in members.items():
        held = {
            topic_id: free[topic_id] & partitions for topic_id, partitions in member.target.items() if topic_id in free
        }
        counts[member_id] = sum(len(partitions) for partitions in held.values())
        for topic_id, partitions in held.items():
            free[topic_id] -= partitions
        kept[member_id] = held
    order = sorted(members, key=lambda member_id: counts[member_id] <= share)
    shares = {member_id: share + (place < larger) for place, member_id in enumerate(order)}
    for member_id in order:
        _give_back(kept[member_id], counts[member_id] - shares[member_id], free)
    unowned = [(topic_id, partition) for topic_id in topic_ids for partition in sorted(free[topic_id])]
    unowned.reverse()
    for member_id in order:
        held = kept[member_id]
        for _ in range(shares[member_id] - counts[member_id]):
            topic_id, partition = unowned.pop()
            held.setdefault(topic_id, set()).add(partition)
    assert not unowned, "every partition has an owner"
    return {member_id: _frozen(kept[member_id]) for member_id in members}


def _give_back(held: dict[bytes, set[int]], excess: int, free: dict[bytes, set[int]]) -> None:
    """Take ``excess`` partitions from a member, the highest ones of its last topics."""
    for topic_id in sorted(held, reverse=True):
        if excess <= 0:
            return
        surplus = sorted(held[topic_id])[-excess:]
        held[topic_id] -= set(surplus)
        free[topic_id] |= set(surplus)
        excess -= len(surplus)


def _frozen(held: dict[bytes, set[int]]) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in held.items() if partitions}
