"""Unsafe recovery over HTTP: what this broker knows of its Raft groups, and the order to lead some of them alone.

::

    GET  /v1/recovery ──► every shard: its groups with members, ends, leader ──► `millstream cluster recover` compares
    POST /v1/recovery ──► every shard: `RaftShard.lead_alone` for those of the groups that live there

The command line asks every surviving broker and chooses (`cli.cluster_recover`); this page carries out, and checks for
itself what it can: no group that could elect a leader without the lost brokers is touched, nor one that leads or
follows a leader, nor a replica that has lost a part of its own log; no lost broker is connected. Other groups than the
controller's are touched only after the controller has retired the disks of the lost brokers (`core.controller.losing`),
so that these can't come back in between. A shard that refuses has done nothing. Each group that leads alone is a WARN
line.

**Crash.** A group leads alone with one write of its log, or is as before; the command can be repeated. **Overload.**
The answer is made in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.admin.bodies import LeadAlone
from millstream.core.controller.recovery_plan import CONTROLLER_GROUP, GroupFacts
from millstream.core.raft.forcing import lacks_quorum
from millstream.errors import Rejected
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import NO_REPLICA, node_of
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.app.peer_shard import PeerShard
    from millstream.app.shard_queries import ShardQueries
    from millstream.cluster.metadata import MetadataCache
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.shard.control import ControlEnd
    from millstream.shard.reactor import Reactor

REPLICAS: Final = "replicas"
LEAD_ALONE: Final = "lead_alone"
"""The questions on the control channel."""

_SHARE: Final = 0.2
_SLICE: Final = 32
_TIMEOUT_US: Final = 30_000_000


def serve_recovery(control: ControlEnd, reactor: Reactor, metadata: MetadataCache, peers: PeerShard | None) -> None:
    """Answer both questions on a shard; a single broker has nothing to recover."""

    def replicas(arguments: Any, answer: Callable[[Any], None]) -> None:
        _ = arguments
        if peers is None:
            answer(None)
            return
        found: list[dict[str, Any]] = []
        connected = sorted(peers.network.connected)
        reactor.background(
            "other",
            _describe(peers, metadata, found),
            _SHARE,
            lambda: answer({"groups": found, "connected": connected}),
        )

    def lead_alone(arguments: Any, answer: Callable[[Any], None]) -> None:
        if peers is None:
            raise Rejected("this is a single broker: it always leads alone", ErrorCode.INVALID_REQUEST)
        answer(_lead_alone(peers, metadata, msgspec.convert(arguments, LeadAlone)))

    control.serve(REPLICAS, replicas)
    control.serve(LEAD_ALONE, lead_alone)


def _describe(peers: PeerShard, metadata: MetadataCache, found: list[dict[str, Any]]) -> Generator[None, None, None]:
    for number, group in enumerate(list(peers.raft.groups.values()), 1):
        if number % _SLICE == 0:
            yield
        if not group.closed:
            found.append(msgspec.to_builtins(_facts(group, metadata)))


def _facts(group: ReplicatedGroup, metadata: MetadataCache) -> GroupFacts:
    place = metadata.group_place(group.group)
    topic = metadata.topic_by_id(place[0]) if place is not None else None
    index = place[1] if place is not None else -1
    configuration, last = group.configuration, group.core.replica.log.last
    return GroupFacts(
        group.group,
        topic.name if topic is not None else "",
        index,
        topic.partitions[index].replicas if topic is not None else (),
        tuple(map(node_of, configuration.voters)),
        tuple(map(node_of, configuration.outgoing)),
        group.term,
        group.leads,
        -1 if group.leader == NO_REPLICA else node_of(group.leader),
        last.term,
        last.position,
        group.log.next_offset,
        group.committed_offset,
        group.core.is_damaged,
    )


def _lead_alone(peers: PeerShard, metadata: MetadataCache, order: LeadAlone) -> list[int]:
    """Carry out what concerns this shard. Returns the groups that it leads now. Raises Rejected."""
    lost = frozenset(order.lost)
    connected = lost & peers.network.connected
    if connected:
        raise Rejected(
            f"broker {min(connected)} is connected with this one, so it is alive: nothing was done",
            ErrorCode.INVALID_REQUEST,
        )
    here = [peers.raft.groups[number] for number in order.groups if number in peers.raft.groups]
    for group in here:
        _check(group, metadata, lost)
    led: list[int] = []
    nodes = ", ".join(map(str, sorted(lost)))
    for group in here:
        if group.leads:
            continue
        operator_log.warning(
            "%s: UNSAFE RECOVERY: leads alone from offset %d on, without the lost brokers %s; what only they had is "
            "lost (%s)",
            group.log.name,
            group.log.next_offset,
            nodes,
            order.reason or "no reason given",
        )
        peers.raft.lead_alone(group.group)
        led.append(group.group)
    return led


def _check(group: ReplicatedGroup, metadata: MetadataCache, lost: frozenset[int]) -> None:
    """Raise Rejected if the replica here must not lead its group alone."""
    why: str | None = None
    if group.leads and not lacks_quorum(group.configuration, lost):
        return  # it does already
    brokers = metadata.state.registry.brokers
    returning = [node for node in lost if (broker := brokers.get(NodeId(node))) is not None and not broker.is_lost]
    if not lacks_quorum(group.configuration, lost):
        why = "a majority of its voters is not lost"
    elif group.is_serving or group.leader != NO_REPLICA:
        why = "it has a leader"
    elif group.core.is_damaged:
        why = "this replica has lost a part of its log"
    elif group.group != CONTROLLER_GROUP and returning:
        why = f"the controller has not declared broker {min(returning)} lost"
    if why is not None:
        raise Rejected(f"{group.log.name} is left as it is, because {why}: nothing was done", ErrorCode.INVALID_REQUEST)


def show_replicas(queries: ShardQueries, metadata_of: dict[str, Any]) -> dict[str, Any]:
    """The answer to ``GET /v1/recovery``; ``metadata_of`` is what ``/v1/cluster`` says."""
    answers = [each for each in queries.ask_all(REPLICAS, None, _TIMEOUT_US) if each is not None]
    return {
        "cluster_id": metadata_of["cluster_id"],
        "node_id": metadata_of["node_id"],
        "controller": metadata_of["controller"],
        "brokers": metadata_of["brokers"],
        "connected": sorted({node for each in answers for node in each["connected"]}),
        "groups": sorted((group for each in answers for group in each["groups"]), key=lambda one: one["group"]),
    }


def order_to_lead(queries: ShardQueries, order: LeadAlone) -> dict[str, Any]:
    """Have the shards carry out ``order``.

    Raises:
        Rejected: a shard refuses it.
    """
    answers = queries.ask_all(LEAD_ALONE, msgspec.to_builtins(order), _TIMEOUT_US)
    return {"groups": sorted(group for answer in answers for group in answer)}
