"""Numbers of groups and members, updated as they come and go, for metrics."""

from millstream.core.group.state import GroupState


class GroupCounts:
    """Counts over all groups of one or more coordinators. Counts of events only grow."""

    __slots__ = ("committed_offsets", "expired_members", "expired_offsets", "members", "rebalances", "states")

    def __init__(self) -> None:
        self.states: dict[GroupState, int] = dict.fromkeys(GroupState, 0)
        self.members = 0
        self.rebalances = 0
        self.expired_members = 0
        self.committed_offsets = 0
        self.expired_offsets = 0
