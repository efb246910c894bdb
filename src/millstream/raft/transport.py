"""What Raft groups need of a network. `peers.network.Network` has sockets; tests and the simulated world have queues.

Nothing is promised: a message may be lost, late, repeated or out of order with those of other groups. A refused message
(False) was not sent. At the end of a turn one frame is sent to each peer, for any number of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import IoBuf
    from millstream.model.quantities import RaftGroupId, ShardId
    from millstream.model.replication import ReplicaId
    from millstream.peers.contact_items import Led, LedAgain
    from millstream.peers.items import Beat
    from millstream.peers.raft_items import RaftItem


class Transport(Protocol):
    """The connections of one shard."""

    def send(self, to: ReplicaId, item: RaftItem, body: IoBuf | None = None) -> bool:
        """Send a message at the end of this turn. ``body`` has the record batches of an append, and is released by the
        transport in any case. False if the message is refused: no connection, or too much is queued.
        """
        ...

    def beats(self, to: ReplicaId, beats: Sequence[Beat], *, reply: bool) -> None:
        """Send heartbeats, or replies to heartbeats, at the end of this turn."""
        ...

    def place(self, to: ReplicaId, group: RaftGroupId) -> ShardId:
        """The group's home shard on ``to``, as far as known."""
        ...

    def reaches(self, to: ReplicaId, place: ShardId) -> bool:
        """Whether that shard is connected. One that is not is dialled again and again."""
        ...

    def takes_contact(self, to: ReplicaId, place: ShardId) -> bool:
        """Whether that shard is connected, and knows sets of groups (`raft.contacts`)."""
        ...

    def contact(self, to: ReplicaId, place: ShardId, item: Led | LedAgain) -> bool:
        """Send a set of groups, or its repetition, at the end of this turn. False if it is refused."""
        ...
