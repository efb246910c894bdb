"""The transport of a simulated broker (`raft.transport`): what its groups say goes through its bytes on the wire.

A message is lost, late or out of order as the `Cluster`'s network draws it, sets of groups at rest like any other.
What a broker is sent it must know (V1): the version that both ends speak is found as in `peers.network`. A frame that
is still on its way when its receiver restarts as an older release is lost with its connection.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.model.cluster import Incarnation
from millstream.model.quantities import ShardId
from millstream.peers.contact_items import CONTACT_VERSION, Followed, Led, LedAgain
from millstream.peers.hello import VERSION_MAX, VERSION_MIN, Hello, agreed_version
from millstream.peers.items import decode_items, encode_item
from millstream.peers.raft_items import RaftItem, encode_raft
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import IoBuf
    from millstream.model.replication import ReplicaId
    from millstream.peers.items import Beat
    from millstream.raft.shard import RaftShard
    from sim.brokers.world import Broker, Cluster

ONLY_SHARD = ShardId(0)


class Wire:
    """What a `Broker` sends and receives."""

    cluster: Cluster
    replica: ReplicaId
    raft: RaftShard
    life: int
    version_max = VERSION_MAX
    """Newest version of the peer protocol that the broker knows."""

    def send(self, to: ReplicaId, item: RaftItem, body: IoBuf | None = None) -> bool:
        """Put a message on the wire."""
        data = body.copy(0, len(body)) if body is not None else b""
        if body is not None:
            body.release()
        assert len(data) == item.body_bytes
        self.note_message(to, item)
        head = encode_raft(item.group, item.message, len(data))
        self.cluster.send(self.replica, to, lambda broker: broker.receive(self.replica, head, data))
        return True

    def beats(self, to: ReplicaId, beats: Sequence[Beat], *, reply: bool) -> None:
        """Put heartbeats on the wire."""
        beats = tuple(beats)
        for beat in beats:
            self.note_term(beat)
        self.cluster.send(self.replica, to, lambda broker: broker.raft.on_beats(self.replica, beats, reply))

    def note_message(self, to: ReplicaId, item: RaftItem) -> None:
        """A message is sent: tell the judge."""
        self.cluster.histories[item.group].on_message(self.replica, to, item.message)

    def note_term(self, beat: Beat) -> None:
        """A heartbeat goes out."""
        self.cluster.histories[beat.group].on_term(self.replica, beat.term)

    def place(self, to: ReplicaId, group: int) -> ShardId:
        """Brokers have one shard."""
        _ = to, group
        return ONLY_SHARD

    def reaches(self, to: ReplicaId, place: int) -> bool:
        """A broker that has crashed is not connected; others may be cut off nevertheless."""
        _ = place
        return any(broker.replica == to and broker.is_up for broker in self.cluster.brokers.values())

    def takes_contact(self, to: ReplicaId, place: int) -> bool:
        """Whether that broker knows sets of groups, as `peers.network.Network`."""
        _ = place
        mine, other = _hello(self.replica, self.version_max), _hello(to, self.cluster.brokers[to].version_max)
        return (agreed_version(mine, other) or 0) >= CONTACT_VERSION

    def contact(self, to: ReplicaId, place: int, item: Led | LedAgain) -> bool:
        """Put a set of groups on the wire."""
        if not self.takes_contact(to, place):
            return False
        self.cluster.history.seen["set of groups at rest"] += 1
        self._say(to, self.cluster.brokers[to].life, item)
        return True

    def _say(self, to: ReplicaId, life: int, item: Led | LedAgain | Followed) -> None:
        """Say something to a broker on a connection of its ``life``."""
        head, mine = encode_item(item), self.life

        def arrive(broker: Broker) -> None:
            if broker.life == life or broker.version_max >= CONTACT_VERSION:
                broker.receive(self.replica, head, b"", mine)

        self.cluster.send(self.replica, to, arrive)

    def receive(self, sender: ReplicaId, head: bytes, body: bytes, life: int = 0) -> None:
        """Messages have arrived. ``life`` is the sender's when it sent them, for those that are answered at once."""
        for item in decode_items(head, len(body)):
            if isinstance(item, Led | LedAgain | Followed) and self.version_max < CONTACT_VERSION:
                raise Violation(f"V1: {self.replica}, of protocol version {self.version_max}, is sent {item}")
            match item:
                case RaftItem():
                    self.raft.on_raft(sender, item, (memoryview(body),) if body else ())
                case Led() | LedAgain():
                    self.raft.on_led(sender, item, partial(self._say, sender, life))
                case Followed():
                    self.raft.on_followed(sender, ONLY_SHARD, item)
                case _:
                    raise AssertionError(item)


@lru_cache
def _hello(replica: ReplicaId, version_max: int) -> Hello:
    """What a broker says of itself when a connection opens."""
    disk = Incarnation(replica.to_bytes(16, "big"))
    return Hello(VERSION_MIN, version_max, "simulated", replica, disk, ONLY_SHARD, ONLY_SHARD, 1, FEATURE_LEVEL, "1")
