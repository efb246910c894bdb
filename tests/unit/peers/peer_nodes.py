"""Brokers that speak with each other over real sockets, all on one reactor, for the tests of the connections."""

import random
import socket
from types import SimpleNamespace

from millstream.iobuf import Arena, IoBuf, MemoryClass
from millstream.model.replication import replica_id
from millstream.peers.accepting import PeerListener
from millstream.peers.contact_items import Followed, Led
from millstream.peers.hello import Founder, Hello, Probe, Refusal, RefusalReason, Seed
from millstream.peers.network import Inbound, Network
from millstream.shard.context import Shard
from millstream.shard.mailbox import Mailbox
from millstream.shard.mesh import Mesh
from millstream.shard.process import EXIT_OK
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab

TIMEOUT_US = 120_000_000
CLUSTER = "cluster-of-the-tests"


class World:
    """A reactor and its brokers. ``run(until)`` turns it until the condition holds."""

    def __init__(self):
        self.stats = StatsSlab(0, "shard")
        self.reactor = Reactor(0, self.stats)
        self.addresses = {}
        self.nodes = {}

    def node(self, node, **options):
        self.nodes[node] = Node(self, node, **options)
        return self.nodes[node]

    def run(self, until):
        """Turn the reactor until ``until()`` is true."""
        if until():
            return
        self.reactor.stopping = False
        late = self.reactor.call_later(TIMEOUT_US, lambda: self.reactor.stop(99, "the test took too long"))

        def look():
            if until():
                self.reactor.stopping = True
                self.reactor._loop.stop()
            else:
                self.reactor.call_later(1_000, look)

        self.reactor.call_soon(look)
        self.reactor._loop.run_forever()
        late.cancel()
        assert self.reactor.exit_code == EXIT_OK, self.reactor.stop_reason

    def close(self):
        for node in self.nodes.values():
            node.close()
        self.reactor.close()
        for node in self.nodes.values():
            assert all(arena.live_fragments == 0 for arena in node.arenas), "memory leaked"
            assert all(arena.reserved_bytes(MemoryClass.RECEIVE) == 0 for arena in node.arenas)


class Node:
    """A broker with one network for each of its shards, and what arrived at them."""

    def __init__(
        self, world, node, *, shards=1, port=0, arena_bytes=16 << 20, homes=None, disk=None, cluster=CLUSTER, version=2
    ):
        self.world = world
        self.id = node
        self.replica = replica_id(node)
        self.homes = homes or {}
        self.known = None  # None: every broker
        mesh = Mesh(shards)
        self.arenas = [Arena.create(shard, arena_bytes, poison=True) for shard in range(shards)]
        self.networks = []
        self.got = []
        self.lost = []
        for shard_id in range(shards):
            mailbox = Mailbox(shard_id, mesh, world.reactor, self.arenas)
            shard = Shard(shard_id, shards, world.reactor, self.arenas, mailbox, world.stats)
            hello = Hello(
                1, version, cluster, self.replica, bytes([disk or node]) * 16, shard_id, 0, shards, 1, "0.1.0"
            )
            inbound = Inbound(
                admit=self.admit,
                raft=lambda sender, item, body, at=shard_id: self.got.append(
                    SimpleNamespace(shard=at, sender=sender, item=item, body=b"".join(body))
                ),
                beats=lambda sender, beats, reply, at=shard_id: self.got.append(
                    SimpleNamespace(shard=at, sender=sender, beats=tuple(beats), reply=reply)
                ),
                led=lambda sender, item, answer, at=shard_id: self._on_led(at, sender, item, answer),
                followed=lambda sender, place, item, at=shard_id: self.got.append(
                    SimpleNamespace(shard=at, sender=sender, place=place, item=item)
                ),
                leaders=lambda sender, leaders, full: self.got.append((sender, leaders, full)),
                status=lambda sender, status: self.got.append((sender, status)),
                lost=lambda peer: self.lost.append(peer),
                home_of=lambda group: self.homes.get(group, 0),
            )
            rng = random.Random(node * 100 + shard_id)
            self.networks.append(
                Network(shard, hello, world.addresses.get, inbound, rng.random),
            )
        self.listener = socket.create_server(("127.0.0.1", port))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        world.addresses[node] = Seed("127.0.0.1", self.port)
        self.accepting = PeerListener(world.reactor, self.says, self.on_hello)
        self.accepting.open(self.listener)

    def _on_led(self, shard, sender, item, answer):
        self.got.append(SimpleNamespace(shard=shard, sender=sender, item=item))
        left_out = item.groups if isinstance(item, Led) else ()
        answer(Followed(item.session, item.number, True, left_out))

    @property
    def network(self):
        return self.networks[0]

    def says(self):
        return Probe(Founder(self.id, bytes([self.id]) * 16, Seed("127.0.0.1", self.port)), (), CLUSTER, (), 1, "0.1.0")

    def admit(self, hello):
        if hello.cluster_id != CLUSTER:
            return Refusal(RefusalReason.OTHER_CLUSTER, f"this is cluster {CLUSTER}, not {hello.cluster_id}")
        if self.known is not None and hello.replica not in self.known:
            return Refusal(RefusalReason.UNKNOWN_BROKER, f"broker {hello.replica} is no member of this cluster")
        return None

    def on_hello(self, sock, target, start):
        self.networks[target].accept(sock, start)
        return True

    def chain(self, data):
        chain = IoBuf()
        for at in range(0, len(data), 100_000):
            part = data[at : at + 100_000]
            fragment = self.arenas[0].allocate(len(part))
            fragment.view[: len(part)] = part
            chain.append(fragment, 0, len(part))
        return chain

    def raft(self, group=None):
        return [got for got in self.got if hasattr(got, "item") and group in (None, got.item.group)]

    def beats(self):
        return [got for got in self.got if hasattr(got, "beats")]

    def close(self):
        self.accepting.close()
        for network in self.networks:
            network.stop()
