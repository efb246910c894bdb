"""The interface between a group of several voters and its shard. `raft.shard.RaftShard` implements it, in production
and in tests.
"""

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
        """Whether the group is stopped."""
        ...

    @property
    def group(self) -> RaftGroupId:
        """Its number."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this replica leads now."""
        ...

    def failed(self, verb: str, error: Exception) -> None:
        """A verb of the group has raised. Raises ``error`` if it is the shard's fault."""
        ...

    def drain(self) -> None:
        """Carry out the core's orders."""
        ...

    def deadline_passed(self) -> None:
        """A deadline has passed."""
        ...

    def beats(self) -> Sequence[Outgoing]:
        """Heartbeats that are due; empty unless this replica leads."""
        ...

    def peer_lost(self, peer: ReplicaId) -> None:
        """The connection to a peer ended; messages in flight are lost."""
        ...

    def try_again(self) -> None:
        """Try again what found no room."""
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
        """Call ``group.try_again`` soon, because something found no room."""
        ...

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> None:
        """Call back after ``delay_us``."""
        ...

    def renew(self, group: HostedGroup) -> None:
        """Give the group's core the last contact with its leader or its peers. Groups at rest share their contacts."""
        ...

    def role_changed(self, group: HostedGroup) -> None:
        """``group`` has another term, role or leader."""
        ...

    def answer_beat(self, group: HostedGroup, to: ReplicaId, reply: HeartbeatReply) -> None:
        """Send the reply together with those of other groups at the end of this turn."""
        ...

    def leads(self, group: HostedGroup) -> None:
        """``group`` leads: ask it for heartbeats (``beats``) while it leads."""
        ...
