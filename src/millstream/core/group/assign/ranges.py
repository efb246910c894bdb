"""The assignor ``range``: every subscriber gets a run of consecutive partitions of each topic.

Members are in a fixed order: those with an instance id first, by instance id, then the others by member id. The same
member therefore gets the same run of every topic with the same subscribers, as joins of co-partitioned topics need. The
first members get one partition more if the count does not divide evenly. Nothing else makes it sticky.
"""

from millstream.core.group.assign.spec import Assignment, Sizes, Subscribers


def assign_ranges(members: Subscribers, sizes: Sizes) -> Assignment:
    """The target assignment of all members."""
    order = sorted(members, key=lambda member_id: _rank(members, member_id))
    subscribers: dict[bytes, int] = {}
    for member in members.values():
        for topic_id in member.topic_ids:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    extra = {topic_id: sizes[topic_id] % count for topic_id, count in subscribers.items()}
    taken = dict.fromkeys(subscribers, 0)
    assignment: Assignment = {}
    for member_id in order:
        partitions: dict[bytes, frozenset[int]] = {}
        for topic_id in members[member_id].topic_ids:
            start = taken[topic_id]
            end = start + sizes[topic_id] // subscribers[topic_id]
            if extra[topic_id]:
                extra[topic_id] -= 1
                end += 1
            taken[topic_id] = end
            if start < end:
                partitions[topic_id] = frozenset(range(start, end))
        assignment[member_id] = partitions
    return assignment


def _rank(members: Subscribers, member_id: str) -> tuple[int, str]:
    instance_id = members[member_id].instance_id
    return (1, member_id) if instance_id is None else (0, instance_id)
