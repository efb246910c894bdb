"""The identity of a data directory: the disk of one broker of one cluster. Stored in ``<data>/identity.json``.

::

    {"version": 1, "node_id": 1, "incarnation": "…32 hex digits…", "cluster_id": "…22 characters…",
     "founders": [{"node_id": 1, "incarnation": "…", "peer": "host:port"}, …], "contacts": […], "replacement": 0}

A broker of a cluster gives its directory an *incarnation* before it speaks with any other broker: 16 random bytes that
no other directory has. ``cluster_id`` is empty until the broker has formed or joined a cluster. ``founders`` are the
brokers that formed it, in order of node id, empty for one that joined; they are the first members of the controller's
Raft group. A broker that joined has ``contacts`` instead: brokers through which it reaches the others until it knows
them, and a ``replacement`` (`model.replication.replica_id`) that tells its disk from all others under its id.

A single broker that is started with ``--seeds`` that name itself founds a cluster of one, with all that it has, which
others can join.

The file is replaced atomically and synced before anything depends on it, so a crash leaves the old or the new one. A
file with other content is ``Corruption``: a broker must not guess its identity. A directory of a single broker has no
such file.
"""

import os
import re
from typing import Final

import msgspec

from millstream.cluster.state_files import controller_log_directory, load_state
from millstream.config.forms import Endpoint
from millstream.config.settings import Settings
from millstream.errors import Corruption, Rejected
from millstream.format.names import IDENTITY_FILE
from millstream.model.cluster import INCARNATION_BYTES, Incarnation, NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import ReplicaId, replica_id
from millstream.storage.disk import Disk, read_file, replace_file

FILE: Final = IDENTITY_FILE
VERSION: Final = 1

_HEX: Final = re.compile(f"[0-9a-f]{{{2 * INCARNATION_BYTES}}}")


class FounderRecord(msgspec.Struct, frozen=True):
    """A broker that formed the cluster."""

    node_id: NodeId
    incarnation: str
    peer: str
    """``host:port`` on which other brokers reach it."""


class Identity(msgspec.Struct, frozen=True):
    """The content of the file."""

    version: int
    node_id: NodeId
    incarnation: str
    cluster_id: str = ""
    founders: tuple[FounderRecord, ...] = ()
    contacts: tuple[FounderRecord, ...] = ()
    replacement: int = 0
    next_incarnation: str = ""
    """Incarnation of a take-over of this disk that the cluster has not agreed to yet. No broker starts with it."""

    @property
    def replica(self) -> ReplicaId:
        """This disk as a member of Raft groups."""
        return replica_id(self.node_id, self.replacement)

    @property
    def disk(self) -> Incarnation:
        """The incarnation in bytes."""
        return Incarnation(bytes.fromhex(self.incarnation))


def load_identity(disk: Disk, data_dir: str) -> Identity | None:
    """The identity of a data directory; None if it has none.

    Raises:
        Corruption: the file is not what this or an earlier release wrote.
        OSError: it cannot be read.
    """
    path = os.path.join(data_dir, FILE)
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return None
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corruption(f"{path} does not say who this broker is: {error}") from None
    if identity.version != VERSION:
        raise Corruption(f"{path} has version {identity.version}; this release knows version {VERSION}")
    named = (identity.next_incarnation,) if identity.next_incarnation else ()
    for text in (identity.incarnation, *named, *(founder.incarnation for founder in identity.founders)):
        if _HEX.fullmatch(text) is None:
            raise Corruption(f"{path} has the incarnation {text!r}, expected {2 * INCARNATION_BYTES} hex digits")
    return identity


def save_identity(disk: Disk, data_dir: str, identity: Identity) -> None:
    """Replace the file durably."""
    replace_file(disk, os.path.join(data_dir, FILE), msgspec.json.format(msgspec.json.encode(identity), indent=2))


def own_identity(disk: Disk, settings: Settings) -> Identity | None:
    """The identity with which a broker with these settings starts; None for a single broker. A cluster's broker with an
    empty directory gets one, without a cluster.

    Raises:
        Rejected: the directory belongs to another broker, or to a broker of another kind.
        Corruption, OSError: as in `load_identity`.
    """
    data_dir = settings.data_dir
    identity = load_identity(disk, data_dir)
    if not settings.seeds:
        if identity is not None and identity.cluster_id:
            raise Rejected(
                f"{data_dir} belongs to broker {identity.node_id} of cluster {identity.cluster_id}: start it with "
                "--seeds and --peer-listen, or give a single broker a directory of its own",
                ErrorCode.INVALID_CONFIG,
            )
        return None
    if identity is None:
        identity = Identity(VERSION, NodeId(settings.node_id), os.urandom(INCARNATION_BYTES).hex())
        if _was_used(disk, data_dir):
            identity = _founded_alone(disk, settings, identity)
        save_identity(disk, data_dir, identity)
    if identity.node_id != settings.node_id:
        raise Rejected(
            f"{data_dir} belongs to broker {identity.node_id}, not {settings.node_id}: start it with --node-id "
            f"{identity.node_id}, or give broker {settings.node_id} a directory of its own",
            ErrorCode.INVALID_CONFIG,
        )
    return identity


def _founded_alone(disk: Disk, settings: Settings, identity: Identity) -> Identity:
    """A single broker becomes the first one of a cluster. Raises Rejected if it must not."""
    data_dir, peer = settings.data_dir, settings.peer_listen
    state, _ = load_state(disk, data_dir)
    if peer is None or peer not in settings.seeds:
        raise Rejected(
            f"{data_dir} belongs to a single broker, which is a cluster of its own and cannot join another: name its "
            "own --peer-listen address in --seeds, so that others can join it, start it without --seeds, or give this "
            "broker an empty directory",
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
    if not state.exists or state.first_node != settings.node_id:
        raise Rejected(
            f"{data_dir} does not say which cluster it is, or belongs to a broker with another id: start it once "
            "without --seeds, stop it, and try again",
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
    founder = FounderRecord(identity.node_id, identity.incarnation, str(Endpoint(peer.host, peer.port)))
    return msgspec.structs.replace(identity, cluster_id=state.cluster_id, founders=(founder,))


def replacement_of(incarnation: Incarnation) -> int:
    """The replacement number of a disk that joins: 31 bits of its identity, not 0."""
    return int.from_bytes(incarnation[:4], "big") & 0x7FFF_FFFF or 1


def _was_used(disk: Disk, data_dir: str) -> bool:
    """Whether a broker has written its controller's log here."""
    try:
        return bool(disk.list(os.path.dirname(controller_log_directory(data_dir))))
    except FileNotFoundError:
        return False
