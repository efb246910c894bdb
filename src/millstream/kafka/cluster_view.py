"""What several responses say of the cluster: brokers and their addresses, partitions, the authorised operations.

Without authentication every client may do everything, in Kafka's bit fields (KIP-430).
"""

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.config.listeners import PEER_LISTENER, is_name
from millstream.kafka.context import Node, RequestContext
from millstream.model.endpoint_setting import HTTP_ENDPOINT
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.topic_table import PartitionMeta

NO_LEADER: Final = -1
"""Node id that stands for no leader."""

TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""Read, write, create, delete, alter, describe, describe configs, alter configs."""

CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""Create, alter, describe, cluster action, describe configs, alter configs, idempotent write."""

_EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared with, not bound to

_HTTP_DOC: Final = "Where this broker serves /metrics and the list of segments that readers may open from disk."


def advertised(node: Node, ctx: RequestContext) -> tuple[str, int]:
    """Host and port for the client: the advertised address of its listener; else the listener's host if that is a
    name, and the address that it connected to.
    """
    settings = node.metadata.start_settings
    own = settings.peer_listen
    if ctx.listener == PEER_LISTENER and own is not None:
        return own.host, own.port
    for name, host, port in settings.advertised_listeners:
        if name == ctx.listener:
            return host, port
    for name, host, _ in settings.listen:
        if name == ctx.listener and is_name(host):
            return host, ctx.local_port
    return ctx.local_host, ctx.local_port


class PartitionView(NamedTuple):
    """A partition as clients see it. ``replicas``, ``in_sync`` and ``offline`` are node ids."""

    error: ErrorCode
    """LEADER_NOT_AVAILABLE without a leader, else NONE."""
    leader: int
    """Node id of the leader; -1 without one, or if it is not alive."""
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]


def partition_view(metadata: "MetadataCache", part: "PartitionMeta") -> PartitionView:
    """The partition now; as in Kafka, there is no leader while the leading broker is not alive."""
    leader = metadata.leader_of(part)
    return PartitionView(
        ErrorCode.LEADER_NOT_AVAILABLE if leader is None else ErrorCode.NONE,
        NO_LEADER if leader is None else leader,
        part.leader_epoch,
        list(part.replicas),
        metadata.in_sync(part),
        [node for node in part.replicas if node in part.failed or not metadata.is_alive(node)],
    )


class BrokerView(msgspec.Struct, frozen=True, gc=False):
    """A broker as a client of one listener sees it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def brokers(node: Node, ctx: RequestContext, *, fenced: bool = False) -> list[BrokerView]:
    """Every broker that is alive, this one included, in order of node id; with ``fenced`` those that are not, too.

    The address of another broker is the one that it registered for the client's listener, or for its first listener if
    it has none of that name. A client of a broker's own, on the peer address, gets peer addresses.
    """
    mine = node.metadata.node_id
    host, port = advertised(node, ctx)
    found = [BrokerView(mine, host, port, rack(node))]
    registry = node.metadata.state.registry
    for other in registry.nodes() if fenced else registry.alive():
        if other != mine:
            profile = registry.brokers[other].profile
            if ctx.listener == PEER_LISTENER:
                found.append(BrokerView(other, profile.peer.host, profile.peer.port, profile.rack or None))
                continue
            named = (each for each in profile.listeners if each.name == ctx.listener)
            address = next(named, profile.listeners[0])
            found.append(BrokerView(other, address.host, address.port, profile.rack or None))
    found.sort(key=lambda broker: broker.node_id)
    return found


def rack(node: Node) -> str | None:
    """The broker's rack; null if it is not set."""
    return node.metadata.start_settings.rack or None


def facts(node: Node, ctx: RequestContext) -> dict[str, tuple[str, str]]:
    """Read-only configurations that are not settings: name → (value, documentation)."""
    url = node.metadata.http_endpoint
    if not url:
        return {}
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if host in _EVERY_INTERFACE:
        host = advertised(node, ctx)[0]
        host = f"[{host}]" if ":" in host else host
    return {HTTP_ENDPOINT: (f"{scheme}://{host}:{port}", _HTTP_DOC)}
