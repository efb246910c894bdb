"""What a group of several voters needs of its shard; `raft.shard.RaftShard` in production and in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.core.raft.messages import HeartbeatReply
    from millstream.model.replication import ReplicaId, TimeUs
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.raft.transport import Transport


class GroupHost(Protocol):
    """What a group needs of its shard: `RaftShard`."""

    me: ReplicaId
    transport: Transport

    def now(self) -> TimeUs:
        """Monotonic time."""
        ...

    def mark(self, group: ReplicatedGroup) -> None:
        """Call ``group.drain`` at the end of this turn."""
        ...

    def set_deadline(self, group: ReplicatedGroup, deadline_us: TimeUs) -> None:
        """Call ``group.tick`` then."""
        ...

    def try_later(self, group: ReplicatedGroup) -> None:
        """Call ``group.try_again`` soon: something found no room."""
        ...

    def answer_beat(self, group: ReplicatedGroup, to: ReplicaId, reply: HeartbeatReply) -> None:
        """Send the reply together with those of other groups at the end of this turn."""
        ...

    def leads(self, group: ReplicatedGroup) -> None:
        """``group`` leads: ask it for heartbeats (``beats``) as long as it does."""
        ...
