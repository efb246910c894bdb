"""The first start of a cluster's broker: a child of the supervisor asks the seeds and makes the outcome durable.

::

    supervisor: bind peer.listen, listen ──fork──► child: answers probes on the same socket, asks the seeds
                        ◄─────────exit────────── identity.json has the cluster (or: why not, through a pipe)

The child has a reactor, which the supervisor must not have before it forks the shards. The outcome is on disk before
the child acts on it or tells it to any other broker; a crash before that asks again at the next start. Between the
child's end and the supervisor's own listening, probes wait in the socket's backlog.

A broker whose directory has a cluster never comes here.
"""

import os
import socket
from typing import Any, Final

import msgspec

from millstream import __version__
from millstream.cluster.identity import FounderRecord, Identity, load_identity, replacement_of, save_identity
from millstream.config.forms import Endpoint
from millstream.config.settings import Settings
from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.errors import Unavailable
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.quantities import ShardId
from millstream.peers.accepting import PeerListener
from millstream.peers.formation import Form, Formation, Join, Outcome, Refuse
from millstream.peers.hello import Founder, Probe, Seed
from millstream.peers.probing import Probing
from millstream.peers.secured import PeerTls
from millstream.shard.process import EXIT_OK, EXIT_UNAVAILABLE, spawn
from millstream.shard.reactor import Reactor
from millstream.storage.disk import Disk
from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

_MESSAGE_BYTES_MAX: Final = 4_096


def join_cluster(
    settings: Settings, disk: Disk, identity: Identity, listener: socket.socket, tls: PeerTls | None = None
) -> Identity:
    """Form or join the cluster of the seeds; returns when the identity has a cluster, however long the seeds take.

    Raises:
        Unavailable: the seeds contradict each other or this broker; the message names the remedy.
    """
    read_end, write_end = os.pipe()
    child = spawn("formation", lambda: _main(settings, disk, identity, listener, write_end, tls))
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        refusal = pipe.read(_MESSAGE_BYTES_MAX).decode()
    child.wait()
    if refusal:
        raise Unavailable(refusal)
    joined = load_identity(disk, settings.data_dir)
    if joined is None or not joined.cluster_id:
        raise Unavailable("the cluster was not formed: the process that asked the seeds has ended; start again")
    return joined


def says(settings: Settings, identity: Identity) -> Probe:
    """What this broker answers to the probes of others."""
    assert settings.peer_listen is not None
    founder = Founder(identity.node_id, identity.disk, _seed(settings.peer_listen))
    founders = tuple(
        Founder(each.node_id, Incarnation(bytes.fromhex(each.incarnation)), address(each.peer))
        for each in identity.founders
    )
    seeds = tuple(sorted(map(_seed, settings.seeds)))
    return Probe(founder, seeds, identity.cluster_id, founders, FEATURE_LEVEL, __version__)


def _main(
    settings: Settings,
    disk: Disk,
    identity: Identity,
    listener: socket.socket,
    write_end: int,
    tls: PeerTls | None,
) -> int:
    """The child."""
    log.who("formation")
    stats = StatsSlab()
    reactor = Reactor(ShardId(-1), stats)
    formation = Formation(says(settings, identity))
    refusal = ""

    def done(outcome: Outcome) -> None:
        nonlocal refusal
        match outcome:
            case Form():
                founders = _records(outcome.founders)
                _save(disk, settings, identity, cluster_id=outcome.cluster_id, founders=founders)
                nodes = ", ".join(str(each.node) for each in outcome.founders)
                log.info("cluster %s is formed by the brokers %s", outcome.cluster_id, nodes)
            case Join():
                _save(
                    disk,
                    settings,
                    identity,
                    cluster_id=outcome.cluster_id,
                    contacts=_records(outcome.through),
                    replacement=replacement_of(identity.disk),
                )
                log.info("joins the cluster %s", outcome.cluster_id)
            case Refuse():
                refusal = outcome.message
        reactor.stop()

    accepting = PeerListener(reactor, lambda: formation.probe, _refuse, tls)
    accepting.open(listener)
    probing = Probing(reactor, formation, done, tls)
    reactor.call_soon(probing.start)
    code = reactor.run()
    with open(write_end, "wb") as pipe:
        pipe.write(refusal.encode()[:_MESSAGE_BYTES_MAX])
    return EXIT_UNAVAILABLE if refusal else code or EXIT_OK


def _records(brokers: tuple[Founder, ...]) -> tuple[FounderRecord, ...]:
    return tuple(
        FounderRecord(NodeId(each.node), each.incarnation.hex(), str(Endpoint(each.peer.host, each.peer.port)))
        for each in brokers
    )


def _save(disk: Disk, settings: Settings, identity: Identity, **joined: Any) -> None:
    save_identity(disk, settings.data_dir, msgspec.structs.replace(identity, **joined))


def _refuse(sock: socket.socket, target: int, start: bytes) -> bool:
    """A broker that is asking for its cluster takes no connections."""
    _ = sock, target, start
    return False


def _seed(endpoint: Endpoint) -> Seed:
    return Seed(endpoint.host, endpoint.port)


def address(text: str) -> Seed:
    """The peer address in an identity."""
    host, _, port = text.rpartition(":")
    return Seed(host.strip("[]"), int(port))
