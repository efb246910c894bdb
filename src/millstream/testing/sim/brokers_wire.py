"""The transport of a simulated broker (`raft.transport`): what its groups say goes through its bytes on the wire.

A message is lost, late or out of order as the `Cluster`'s network draws it, sets of groups at rest like any other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.model.quantities import ShardId
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.items import decode_items, encode_item
from millstream.peers.raft_items import RaftItem, encode_raft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import IoBuf
    from millstream.model.replication import ReplicaId
    from millstream.peers.items import Beat
    from millstream.raft.shard import RaftShard
    from millstream.testing.sim.brokers import Cluster

ONLY_SHARD = ShardId(0)


class Wire:
    """What a `Broker` sends and receives."""

    cluster: Cluster
    replica: ReplicaId
    raft: RaftShard

    def send(self, to: ReplicaId, item: RaftItem, body: IoBuf | None = None) -> bool:
        """Put a message on the wire."""
        data = body.copy(0, len(body)) if body is not None else b""
        if body is not None:
            body.release()
        assert len(data) == item.body_bytes
        self.cluster.histories[item.group].on_message(self.replica, to, item.message)
        head = encode_raft(item.group, item.message, len(data))
        self.cluster.send(self.replica, to, lambda broker: broker.receive(self.replica, head, data))
        return True

    def beats(self, to: ReplicaId, beats: Sequence[Beat], *, reply: bool) -> None:
        """Put heartbeats on the wire."""
        beats = tuple(beats)
        for beat in beats:
            self.cluster.histories[beat.group].on_term(self.replica, beat.term)
        self.cluster.send(self.replica, to, lambda broker: broker.raft.on_beats(self.replica, beats, reply))

    def place(self, to: ReplicaId, group: int) -> ShardId:
        """Brokers have one shard."""
        _ = to, group
        return ONLY_SHARD

    def reaches(self, to: ReplicaId, place: int) -> bool:
        """A broker that has crashed is not connected; others may be cut off nevertheless."""
        _ = place
        return any(broker.replica == to and broker.is_up for broker in self.cluster.brokers.values())

    def takes_contact(self, to: ReplicaId, place: int) -> bool:
        """Every broker knows sets of groups."""
        _ = to, place
        return True

    def contact(self, to: ReplicaId, place: int, item: Led | LedAgain) -> bool:
        """Put a set of groups on the wire."""
        _ = place
        self._say(to, item)
        return True

    def _say(self, to: ReplicaId, item: Led | LedAgain | Followed) -> None:
        head = encode_item(item)
        self.cluster.send(self.replica, to, lambda broker: broker.receive(self.replica, head, b""))

    def receive(self, sender: ReplicaId, head: bytes, body: bytes) -> None:
        """Messages have arrived."""
        for item in decode_items(head, len(body)):
            match item:
                case RaftItem():
                    self.raft.on_raft(sender, item, (memoryview(body),) if body else ())
                case Led() | LedAgain():
                    self.raft.on_led(sender, item, partial(self._say, sender))
                case Followed():
                    self.raft.on_followed(sender, ONLY_SHARD, item)
                case _:
                    raise AssertionError(item)
