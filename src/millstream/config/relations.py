"""Rules across several settings.

Each error names both settings and the remedy. The rules are checked whenever ``Settings`` are built or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.config.errors import ConfigError
from millstream.config.forms import human_size
from millstream.config.listeners import (
    HTTP_LISTENER,
    PEER_LISTENER,
    PLAINTEXT,
    check_listeners,
    is_every_interface,
    is_loopback,
    protocol_of,
)

if TYPE_CHECKING:
    from millstream.config.node_properties import NodeValues

MEMORY_PER_SHARD_MIN = 32 * 2**20
"""Minimum memory of a shard in bytes. With less, it could not hold one largest batch in each of receive buffer, log
cache and response.
"""


def check_relations(settings: NodeValues) -> None:
    """Raise ConfigError for the first pair of settings that contradict each other."""
    per_shard = settings.memory_bytes // settings.shards
    if per_shard < MEMORY_PER_SHARD_MIN:
        raise ConfigError(
            "memory.bytes",
            f"{human_size(settings.memory_bytes)} over {settings.shards} shards leaves {human_size(per_shard)} each, "
            f"expected at least {human_size(MEMORY_PER_SHARD_MIN)} each; give more memory or fewer shards",
        )
    check_listeners(settings.listen, settings.advertised_listeners, settings.listener_security_protocol_map)
    _check_listener_names(settings)
    _check_passwords(settings)
    _check_tokens(settings)
    _check_sign_in(settings)
    _check_cluster(settings)
    _ordered(settings, "wal.file.bytes", "wal.bytes", factor=4)
    _ordered(settings, "checkpoint.bytes", "wal.bytes")
    _ordered(settings, "raft.heartbeat.interval.ms", "raft.election.timeout.ms", factor=4)
    _ordered(settings, "group.min.session.timeout.ms", "group.max.session.timeout.ms")
    for kind in ("consumer", "share", "streams"):
        for what in ("session.timeout", "heartbeat.interval", "assignment.interval"):
            _ordered(settings, f"group.{kind}.min.{what}.ms", f"group.{kind}.{what}.ms")
            _ordered(settings, f"group.{kind}.{what}.ms", f"group.{kind}.max.{what}.ms")
        _ordered(settings, f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms")
    _ordered(settings, "group.share.max.size", "group.share.max.share.sessions")
    for what in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks"):
        _ordered(settings, f"group.share.min.{what}", f"group.share.{what}")
        _ordered(settings, f"group.share.{what}", f"group.share.max.{what}")
    _ordered(settings, "group.streams.num.standby.replicas", "group.streams.max.standby.replicas")
    if settings.cache_warmup == (settings.cache_fill == "write") and {"cache.warmup", "cache.fill"} <= settings.given:
        raise ConfigError("cache.warmup", "contradicts cache.fill, expected cache.fill alone")
    # Otherwise no topic's configuration could be built, because these are every topic's defaults.
    _ordered(settings, "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")


_OWN: Final = {HTTP_LISTENER: "HTTP port", PEER_LISTENER: "peer address"}


def _check_listener_names(settings: NodeValues) -> None:
    names = [each.name for each in settings.listen]
    for name in (HTTP_LISTENER, PEER_LISTENER):
        if name in names:
            raise ConfigError(
                "listeners", f"{name} is the name of the broker's own {_OWN[name]}, expected another name"
            )
    for name in settings.by_listener:
        if name not in (*names, HTTP_LISTENER, PEER_LISTENER):
            raise ConfigError(f"listener.name.{name.lower()}", f"{name} is not one of the listeners {', '.join(names)}")
    if settings.peer_security_protocol != PLAINTEXT:
        own = settings.by_listener.get(PEER_LISTENER, {})
        for what in ("keystore", "truststore"):
            if not any(field.startswith(f"ssl_{what}_") for field in own):
                raise ConfigError(
                    "peer.security.protocol",
                    f"SSL needs listener.name.peer.ssl.{what}.location: brokers have keys and an authority of their "
                    "own; 'millstream security init' makes them",
                )


def _check_passwords(settings: NodeValues) -> None:
    """Passwords cross a network only if it is encrypted."""
    for each in settings.listen:
        if protocol_of(each.name, settings.listener_security_protocol_map) != "SASL_PLAINTEXT":
            continue
        for mechanism, what in (("PLAIN", "passwords"), ("OAUTHBEARER", "tokens")):
            if mechanism in settings.for_listener(each.name).sasl_enabled_mechanisms and not is_loopback(each.host):
                raise ConfigError(
                    "sasl.enabled.mechanisms",
                    f"{mechanism} sends {what} in clear, and {each} is not encrypted; use SASL_SSL for it, "
                    f"SCRAM-SHA-512 instead of {mechanism}, or an address of this machine such as 127.0.0.1",
                )


def takes_tokens(settings: NodeValues) -> bool:
    """Whether a listener takes JSON web tokens, or HTTP does, because it is known who signs them."""
    return bool(settings.sasl_oauthbearer_jwks_endpoint_url) or any(
        protocol_of(each.name, settings.listener_security_protocol_map).startswith("SASL")
        and "OAUTHBEARER" in settings.for_listener(each.name).sasl_enabled_mechanisms
        for each in settings.listen
    )


def _check_tokens(settings: NodeValues) -> None:
    """A token is taken only from a known issuer, for this audience, with a key of a known place."""
    if not takes_tokens(settings):
        return
    needed = {
        "sasl.oauthbearer.jwks.endpoint.url": settings.sasl_oauthbearer_jwks_endpoint_url,
        "sasl.oauthbearer.expected.issuer": settings.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": settings.sasl_oauthbearer_expected_audience,
    }
    for name, value in needed.items():
        if not value:
            raise ConfigError(name, "is not given, and tokens (OAUTHBEARER) cannot be tested without it")


def _check_sign_in(settings: NodeValues) -> None:
    """A provider and this console's id at it go together, and nothing of it is given without."""
    if settings.console_oidc_issuer_url:
        if not settings.console_oidc_client_id:
            raise ConfigError("console.oidc.client.id", "is not given, and no visitor can sign in without it")
        return
    given = sorted(name for name in settings.given if name.startswith("console.oidc."))
    if given:
        raise ConfigError(given[0], "has no effect without console.oidc.issuer.url")


def _check_cluster(settings: NodeValues) -> None:
    """A broker of a cluster has an id, an address for other brokers, and seeds; if topics are tiered, a store too."""
    if settings.seeds and settings.storage_mode == "tiered" and not settings.objects_url:
        raise ConfigError(
            "storage.mode.default", "tiered in a cluster needs objects.url: a store that every broker reaches"
        )
    if settings.shared_wal == "object" and not settings.objects_url:
        raise ConfigError("shared.wal", "object needs objects.url: the store that is to have the write-ahead log")
    if settings.storage_mode == "shared" and (why := shared_needs(settings)):
        raise ConfigError("storage.mode.default", f"shared {why}")
    peer = settings.peer_listen
    if settings.default_replication_factor > 1 and not settings.seeds:
        raise ConfigError(
            "default.replication.factor",
            f"{settings.default_replication_factor} replicas need a cluster (seeds), and a single broker has one",
        )
    if settings.seeds and peer is None:
        raise ConfigError("seeds", "needs peer.listen as well: the address on which other brokers reach this one")
    if peer is None:
        return
    if not settings.seeds:
        raise ConfigError(
            "peer.listen",
            f"needs seeds as well: the peer.listen addresses of the cluster's brokers, for the first one {peer} itself",
        )
    if is_every_interface(peer.host):
        raise ConfigError("peer.listen", f"no broker can connect to {peer}, expected an address or a host name")
    if "node.id" not in settings.given:
        raise ConfigError("node.id", "is not given, expected a number of its own for each broker of a cluster")


def remarks(settings: NodeValues) -> list[str]:
    """What follows from settings that are taken and do not go together, in words for an operator."""
    largest, frame = settings.message_max_bytes, settings.socket_request_max_bytes
    if largest <= frame:
        return []
    remark = (
        f"message.max.bytes is {largest}, and socket.request.max.bytes is {frame}: a connection that sends a larger "
        f"request is closed, so that no batch of more than about {frame} bytes arrives; raise both for larger ones"
    )
    return [remark]


def shared_needs(settings: NodeValues) -> str:
    """What a broker with these settings lacks to serve topics with storage.mode=shared; empty if nothing."""
    if settings.objects_url:
        return ""
    return "needs an object store that every broker reaches; start each broker with --set objects.url=URL"


def _ordered(settings: NodeValues, lesser: str, greater: str, factor: int = 1) -> None:
    low, high = settings.value(lesser), settings.value(greater)
    if low * factor > high:
        multiple = f"{factor} times " if factor > 1 else ""
        raise ConfigError(greater, f"{high} is too small, expected at least {multiple}{lesser}, which is {low}")
