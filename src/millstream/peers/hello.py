"""The handshake: the first frames of a connection between brokers.

::

    dialling shard ──HELLO──► accepting broker          ──PROBE──►          (a broker that has no cluster yet)
                   ◄─WELCOME─ the wanted shard          ◄─PROBE_ANSWER─
                   ◄─REFUSAL─ and the connection ends

A hello names the cluster, the broker (node id and the identity of its disk), the shard that dials and the shard that it
wants. The accepting side answers with a hello of its own in a welcome, or refuses in words. Both use the lower of their
newest protocol versions; a version below the other's oldest is refused.

Heads are MessagePack arrays: fields are only added, with a default, and what an older broker does not know it skips.
Bytes that are no such array, or values outside their bounds, are ``Corruption``.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec

from millstream.errors import Corruption, Rejected
from millstream.model.cluster import INCARNATION_BYTES, FeatureLevel, Incarnation
from millstream.model.replication import ReplicaId, node_of
from millstream.peers.frames import Buffer, FrameKind, encode_frame

VERSION_MIN: Final = 1
VERSION_MAX: Final = 2
"""Versions of the peer protocol that this release speaks; the second one has ``contact_items``."""

TEXT_LENGTH_MAX: Final = 255
SHARDS_MAX: Final = 256
SEEDS_MAX: Final = 64
REFUSAL_LENGTH_MAX: Final = 2_000


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """One end of a connection.

    ``version_min`` and ``version_max`` are the protocol versions that it speaks. ``shard`` is its own shard, ``target``
    the shard that it wants to reach, ``shards`` the number of its broker's shards. ``cluster_id`` is never empty.
    """

    version_min: int
    version_max: int
    cluster_id: str
    replica: ReplicaId
    incarnation: Incarnation
    shard: int
    target: int
    shards: int
    feature_level: FeatureLevel
    release: str


class RefusalReason(IntEnum):
    """Why a connection is refused. A later release may send others, which are taken for `OTHER`."""

    OTHER = 0
    VERSION = 1
    OTHER_CLUSTER = 2
    UNKNOWN_BROKER = 3
    OTHER_DISK = 4
    NO_SUCH_SHARD = 5
    NOT_READY = 6
    SAME_BROKER = 7
    RETIRED = 8
    """The disk was replaced or declared lost, or its broker has left: it never comes back."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """The refusal of a connection; ``message`` is for a person."""

    reason: int
    message: str

    @property
    def known_reason(self) -> RefusalReason:
        """The reason as this release knows it."""
        try:
            return RefusalReason(self.reason)
        except ValueError:
            return RefusalReason.OTHER


class Seed(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An address in ``seeds``."""

    host: str
    port: int


class Founder(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A broker that takes part in forming a cluster."""

    node: int
    incarnation: Incarnation
    peer: Seed
    """Where other brokers reach it."""


class Probe(msgspec.Struct, frozen=True, array_like=True):
    """A broker's question to a seed. In a `ProbeAnswer` it describes the seed.

    ``cluster_id`` is empty as long as the broker belongs to no cluster. ``founders`` are those that form or formed the
    cluster of this broker, empty before that.
    """

    founder: Founder
    seeds: tuple[Seed, ...]
    cluster_id: str
    founders: tuple[Founder, ...]
    feature_level: FeatureLevel
    release: str


def encode_hello(hello: Hello) -> list[Buffer]:
    """The frame with which a connection starts."""
    return encode_frame(FrameKind.HELLO, (_encode(hello),))


def encode_welcome(hello: Hello) -> list[Buffer]:
    """The frame that accepts a connection; ``hello`` is that of the accepting side."""
    return encode_frame(FrameKind.WELCOME, (_encode(hello),))


def encode_refusal(refusal: Refusal) -> list[Buffer]:
    """The frame that ends a connection."""
    short = Refusal(refusal.reason, refusal.message[:REFUSAL_LENGTH_MAX])
    return encode_frame(FrameKind.REFUSAL, (_encode(short),))


def encode_probe(probe: Probe, *, answer: bool = False) -> list[Buffer]:
    """The frame that asks a seed, or the seed's answer."""
    return encode_frame(FrameKind.PROBE_ANSWER if answer else FrameKind.PROBE, (_encode(probe),))


def decode_hello(head: Buffer) -> Hello:
    """The head of a hello or a welcome.

    Raises:
        Corruption: it is not a hello, or a value is out of its bounds.
    """
    hello = _decoded(_decode_hello, head)
    _require(1 <= hello.version_min <= hello.version_max < 1 << 16, "versions")
    _require(0 < len(hello.cluster_id) <= TEXT_LENGTH_MAX, "a cluster id")
    _require(0 <= hello.replica < 1 << 63 and node_of(hello.replica) < 1 << 31, "a replica id")
    _require(len(hello.incarnation) == INCARNATION_BYTES, "an incarnation")
    _require(1 <= hello.shards <= SHARDS_MAX, "a number of shards")
    _require(0 <= hello.shard < hello.shards and 0 <= hello.target < SHARDS_MAX, "shards")
    _require(0 <= hello.feature_level < 1 << 16 and len(hello.release) <= TEXT_LENGTH_MAX, "a release")
    return hello


def decode_refusal(head: Buffer) -> Refusal:
    """The head of a refusal.

    Raises:
        Corruption: it is not a refusal, or a value is out of its bounds.
    """
    refusal = _decoded(_decode_refusal, head)
    _require(len(refusal.message) <= REFUSAL_LENGTH_MAX, "a refusal")
    return refusal


def decode_probe(head: Buffer) -> Probe:
    """The head of a probe or of its answer.

    Raises:
        Corruption: it is not a probe, or a value is out of its bounds.
    """
    probe = _decoded(_decode_probe, head)
    _require(len(probe.seeds) <= SEEDS_MAX and len(probe.founders) <= SEEDS_MAX, "seeds")
    for founder in (probe.founder, *probe.founders):
        _require(0 <= founder.node < 1 << 31 and len(founder.incarnation) == INCARNATION_BYTES, "a founder")
    for seed in (*probe.seeds, *(founder.peer for founder in (probe.founder, *probe.founders))):
        _require(0 < len(seed.host) <= TEXT_LENGTH_MAX and 0 < seed.port < 1 << 16, "a seed")
    _require(len(probe.cluster_id) <= TEXT_LENGTH_MAX, "a cluster id")
    _require(0 <= probe.feature_level < 1 << 16 and len(probe.release) <= TEXT_LENGTH_MAX, "a release")
    return probe


def agreed_version(one: Hello, other: Hello) -> int | None:
    """The protocol version that two brokers speak with each other; None if they have none in common."""
    version = min(one.version_max, other.version_max)
    return version if version >= max(one.version_min, other.version_min) else None


class Greeting:
    """The hello of the dialling side, and what the accepting side answered to it."""

    __slots__ = ("hello", "refusal")

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.refusal: Refusal | None = None

    def welcomed_by(self, kind: FrameKind, head: Buffer) -> Hello:
        """The accepting side's hello, from the first frame that it sent.

        Raises:
            Rejected: it refused, or it is not the shard that was wanted, or of another cluster or protocol.
            Corruption: the frame is neither a welcome nor a refusal.
        """
        if kind is FrameKind.REFUSAL:
            self.refusal = decode_refusal(head)
            raise Rejected(f"refused: {self.refusal.message}")
        if kind is not FrameKind.WELCOME:
            raise Corruption(f"a frame of kind {kind.name} is out of place")
        mine, remote = self.hello, decode_hello(head)
        if remote.cluster_id != mine.cluster_id:
            raise Rejected(f"it belongs to cluster {remote.cluster_id}, this broker to {mine.cluster_id}")
        if agreed_version(mine, remote) is None:
            raise Rejected(f"it speaks versions {remote.version_min} to {remote.version_max} of the peer protocol")
        if remote.shard != mine.target:
            raise Rejected(f"shard {remote.shard} answered instead of shard {mine.target}")
        return remote


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_decode_refusal: Final = msgspec.msgpack.Decoder(Refusal).decode
_decode_probe: Final = msgspec.msgpack.Decoder(Probe).decode

_T = TypeVar("_T")


def _decoded(decode: Callable[[Any], _T], head: Buffer) -> _T:
    try:
        return decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(f"the head of a frame does not decode: {error}") from None


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Corruption(f"the head of a frame has {what} outside the bounds")
