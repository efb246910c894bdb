"""A shard's part in a cluster of several brokers: its connections, and the Raft groups over them.

Made only if this broker belongs to a cluster. The parts are wired here: what arrives goes to the shard's Raft groups
and, on the controller's shard, to the controller; addresses come from the registry, or from the founders as long as a
broker has not registered.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from millstream import __version__
from millstream.app.forming import address, says
from millstream.app.shared import Shared
from millstream.cluster.identity import Identity
from millstream.cluster.leader_news import LeaderNews
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.quorum_controller import QuorumController
from millstream.config.listeners import is_every_interface
from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import RegisterBroker
from millstream.core.raft.messages import Configuration
from millstream.core.raft.options import options_of
from millstream.model.cluster import NodeId
from millstream.model.quantities import ShardId
from millstream.model.replication import ReplicaId, Seed, node_of, replica_id
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.hello import VERSION_MAX, VERSION_MIN, Hello, Refusal, RefusalReason
from millstream.peers.hello import Seed as Address
from millstream.peers.items import Beat, Leadership, Status
from millstream.peers.network import Inbound, Network
from millstream.peers.raft_items import RaftItem
from millstream.raft.installs import Installs
from millstream.raft.shard import RaftShard
from millstream.shard.context import Shard

HANDOVER_US: Final = 1_000_000
"""A handover takes a few milliseconds, where another replica is there to take over."""
HANDOVER_LOOK_US: Final = 10_000


class PeerShard:
    """Connections and Raft groups of one shard.

    Lifecycle: made with the shard, ``stop`` when it drains. Shard: one each.
    """

    def __init__(self, shared: Shared, shard: Shard, metadata: MetadataCache, identity: Identity) -> None:
        settings = shared.settings
        self._shard = shard
        self._metadata = metadata
        self._identity = identity
        self._founders = {NodeId(each.node): each for each in says(settings, identity).founders}
        self.contacts = {each.node_id: address(each.peer) for each in identity.contacts}
        """Where brokers are reached that are not in the registry yet, as far as this one knows."""
        self.controller: QuorumController | None = None
        """None except on the controller's shard."""
        self.news: LeaderNews | None = None
        """None except on the controller's shard."""
        self.me: ReplicaId = identity.replica
        randomness = random.SystemRandom()
        hello = Hello(
            VERSION_MIN,
            VERSION_MAX,
            identity.cluster_id,
            self.me,
            identity.disk,
            shard.id,
            0,
            shard.count,
            FEATURE_LEVEL,
            __version__,
        )
        inbound = Inbound(
            admit=self._admit,
            raft=self._on_raft,
            beats=self._on_beats,
            led=self._on_led,
            followed=self._on_followed,
            leaders=self._on_leaders,
            status=self._on_status,
            home_of=self._home_of,
            lost=self._on_lost,
        )
        self.network = Network(shard, hello, self.address_of, inbound, randomness.random, shared.tls.peers)
        self.network.on_retired = self._on_retired
        installs = Installs(shard.stats, settings.replica_install_max_bytes_per_second / settings.shards)
        self.raft = RaftShard(
            shard.reactor,
            self.me,
            self.network,
            lambda: Seed(randomness.getrandbits(63)),
            options_of(settings.raft_heartbeat_interval_ms, settings.raft_election_timeout_ms),
            installs=installs,
        )

    def leave(self, done: Callable[[], None]) -> None:
        """Hand over what this shard leads, so that clients continue elsewhere before this broker stops. ``done`` is
        called when that has worked, or after `HANDOVER_US`.
        """
        reactor = self._shard.reactor
        limit_us = reactor.now_us() + HANDOVER_US

        def look() -> None:
            if self.raft.leave() and reactor.now_us() < limit_us:
                reactor.call_later(HANDOVER_LOOK_US, look)
            elif self.controller is not None:
                self.controller.leave(done)
            else:
                done()

        look()

    def stop(self) -> None:
        """Close every connection."""
        self.network.stop()

    @property
    def founding_voters(self) -> Configuration:
        """The first members of the controller's group."""
        return Configuration(tuple(replica_id(node) for node in sorted(self._founders)))

    def connect_all(self) -> None:
        """Dial every other broker that is known, so that the connections are there when they are needed."""
        for node in (*self._founders, *self.contacts, *self._metadata.state.registry.nodes()):
            if node != self._identity.node_id:
                self.network.connect(node)

    def address_of(self, node: NodeId) -> Address | None:
        """Where a broker is reached: as it registered, else as it founded the cluster or was named by another."""
        broker = self._metadata.state.registry.brokers.get(node)
        if broker is not None:
            return Address(broker.profile.peer.host, broker.profile.peer.port)
        founder = self._founders.get(node)
        return founder.peer if founder is not None else self.contacts.get(node)

    def registered(self) -> dict[NodeId, Address]:
        """Where the other brokers are reached that have registered, as far as known. A broker that comes back under
        another address registers through them: the controller does not reach it before.
        """
        brokers = self._metadata.state.registry.brokers
        return {
            node: Address(broker.profile.peer.host, broker.profile.peer.port)
            for node, broker in brokers.items()
            if node != self._identity.node_id
        }

    def _admit(self, hello: Hello) -> Refusal | None:
        """Why a broker may not connect; None if it may."""
        mine = self._identity
        node = NodeId(node_of(hello.replica))
        if hello.cluster_id != mine.cluster_id:
            return Refusal(
                RefusalReason.OTHER_CLUSTER, f"this is cluster {mine.cluster_id}, not cluster {hello.cluster_id}"
            )
        if node == mine.node_id:
            return Refusal(RefusalReason.SAME_BROKER, f"this is broker {node}, too: give each broker an id of its own")
        registry = self._metadata.state.registry
        broker = registry.brokers.get(node)
        known = broker.incarnation if broker is not None else None
        if known is None and node in self._founders:
            known = self._founders[node].incarnation
        registered = broker.replica if broker is not None else replica_id(node)
        replaces = hello.replica not in (registered, replica_id(node))  # the controller decides whether it may
        if hello.incarnation in registry.retired:
            return Refusal(RefusalReason.RETIRED, registry.why_retired(hello.incarnation))
        if known not in (None, hello.incarnation) and not replaces:
            return Refusal(
                RefusalReason.OTHER_DISK,
                f"broker {node} belongs to this cluster with another data directory: start with an empty directory, "
                "and with --replace if the other one is permanently lost",
            )
        return None

    # What arrives

    def _on_raft(self, sender: ReplicaId, item: RaftItem, views: Sequence[memoryview]) -> None:
        self.raft.on_raft(sender, item, views)

    def _on_beats(self, sender: ReplicaId, beats: Sequence[Beat], reply: bool) -> None:
        self.raft.on_beats(sender, beats, reply)

    def _on_led(self, sender: ReplicaId, item: Led | LedAgain, answer: Callable[[Followed], None]) -> None:
        self.raft.on_led(sender, item, answer)

    def _on_followed(self, sender: ReplicaId, place: ShardId, item: Followed) -> None:
        self.raft.on_followed(sender, place, item)

    def _on_leaders(self, sender: ReplicaId, leaderships: Sequence[Leadership], full: bool) -> None:
        _ = full
        if self.news is not None:
            self.news.learn(sender, leaderships)

    def _on_status(self, sender: ReplicaId, status: Status) -> None:
        if self.controller is not None:
            self.controller.on_status(sender, status)

    def _on_lost(self, peer: ReplicaId) -> None:
        self.raft.on_lost(peer)

    def _on_retired(self, message: str) -> None:
        """A broker knows that this directory must never take part again."""
        if self.controller is not None:
            self.controller.retire(message)

    def _home_of(self, group: int) -> int | None:
        return 0 if group == 0 else self._metadata.home_of_group(group)


def registration(shared: Shared, identity: Identity) -> RegisterBroker:
    """What this broker says of itself to the controller."""
    settings = shared.settings
    assert settings.peer_listen is not None
    advertised = {each.name: (each.host, each.port) for each in settings.advertised_listeners}
    listeners: list[ListenerAddress] = []
    for name, (host, port) in shared.bound.listeners.items():
        host, port = advertised.get(name, (host, port))
        if is_every_interface(host):
            host = settings.peer_listen.host
        listeners.append(ListenerAddress(name, host, port))
    profile = BrokerProfile(
        tuple(listeners),
        PeerAddress(settings.peer_listen.host, settings.peer_listen.port),
        settings.rack,
        settings.shards,
        __version__,
        FEATURE_LEVEL,
        log_in_store=shared.life is not None,
    )
    return RegisterBroker(
        identity.cluster_id,
        identity.node_id,
        identity.disk,
        profile,
        replace=settings.replace_broker,
        replacement=identity.replacement,
    )
