"""A group of replicas that commits late."""

from typing import Any

from millstream.errors import Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.raft.group import GroupEvents, GroupRole

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class LaggingGroup:
    """A `raft.Group` that follows, leads and commits on command."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.events = GroupEvents()
        self.role = GroupRole.FOLLOWING
        self.is_serving = self.began_group = False
        self.elects = True
        self.voters = 3
        self.term = 3
        self.committed_offset = self.high_watermark = 0
        self.write_caching = False
        self.starts: list[int] = []

    @property
    def knows_committed(self) -> bool:
        return self.is_serving or self.began_group

    def replicate(self, views: Any, size: int, count: int, max_timestamp_ms: int) -> Offset:
        if self.role is GroupRole.FOLLOWING:
            raise Retriable("not the leader", NOT_LEADER)
        base = self.log.next_offset
        self.log.append(views, size, base, base + count - 1, self.term, max_timestamp_ms)
        return base

    def propose_log_start(self, offset: int) -> None:
        if offset > self.committed_offset:
            raise Rejected("behind the committed end", ErrorCode.OFFSET_OUT_OF_RANGE)
        self.starts.append(offset)

    def lead(self) -> None:
        self.term += 1
        self.role = GroupRole.LEADING
        self.events.on_lead(self.term)

    def serve(self) -> None:
        self.is_serving = True
        self.events.on_serving(self.term)

    def resign(self) -> None:
        self.role, self.is_serving = GroupRole.FOLLOWING, False
        self.events.on_resign()

    def commit(self, offset: int) -> None:
        self.committed_offset = self.high_watermark = offset
        self.events.on_commit(offset)
