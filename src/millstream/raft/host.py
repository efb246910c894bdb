"""What a group of several voters needs of its shard; `raft.shard.RaftShard` in production and in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.messages import HeartbeatReply
    from millstream.core.raft.raft import Raft
    from millstream.core.raft.ready import Outgoing
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import ReplicaId, TimeUs
    from millstream.raft.installs import Installs
    from millstream.raft.transport import Transport


class HostedGroup(Protocol):
    """What the shard does with a group."""

    core: Raft
    """Decides."""

    @property
    def closed(self) -> bool:
        """Whether nothing happens in the group any more."""
        ...

    @property
    def group(self) -> RaftGroupId:
        """Its number."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this replica leads now."""
        ...

    def drain(self) -> None:
        """Do what the core orders."""
        ...

    def deadline_passed(self) -> None:
        """A deadline has passed."""
        ...

    def beats(self) -> Sequence[Outgoing]:
        """Heartbeats that are due; none from a replica that does not lead."""
        ...

    def peer_lost(self, peer: ReplicaId) -> None:
        """What was under way to a peer is lost."""
        ...

    def try_again(self) -> None:
        """There may be room by now for what found none."""
        ...


class GroupHost(Protocol):
    """What a group needs of its shard: `RaftShard`."""

    me: ReplicaId
    transport: Transport
    installs: Installs

    def now(self) -> TimeUs:
        """Monotonic time."""
        ...

    def schedule(self, group: HostedGroup) -> None:
        """Call ``group.drain`` at the end of this turn."""
        ...

    def set_deadline(self, group: HostedGroup, deadline_us: TimeUs) -> None:
        """Call ``group.tick`` then."""
        ...

    def try_later(self, group: HostedGroup) -> None:
        """Call ``group.try_again`` soon: something found no room."""
        ...

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> None:
        """Call back after ``delay_us``."""
        ...

    def may_receive(self, group: HostedGroup) -> bool:
        """Whether ``group`` may begin to receive files; it counts as one that does until `receives_no_more`."""
        ...

    def receives_no_more(self, group: HostedGroup) -> None:
        """``group`` receives no files, or no more."""
        ...

    def renew(self, group: HostedGroup) -> None:
        """Tell the group's core when its leader, or its peers, were there: those of groups at rest say so together."""
        ...

    def role_changed(self, group: HostedGroup) -> None:
        """``group`` has another term, role or leader."""
        ...

    def answer_beat(self, group: HostedGroup, to: ReplicaId, reply: HeartbeatReply) -> None:
        """Send the reply together with those of other groups at the end of this turn."""
        ...

    def leads(self, group: HostedGroup) -> None:
        """``group`` leads: ask it for heartbeats (``beats``) as long as it does."""
        ...
