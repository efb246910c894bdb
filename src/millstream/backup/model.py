"""What a backup's root says. It is JSON after one line with the SHA-256 of it, in hexadecimal."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from millstream.errors import Corruption, Rejected

FORMAT: Final = 1
_HASH_CHARACTERS: Final = 64


class StoredBatches(msgspec.Struct, frozen=True, array_like=True):
    """An object with whole batches of one partition, back to back. Offsets within it may be missing."""

    base_offset: int
    """Base offset of the first batch."""
    end_offset: int
    """After the last batch."""
    size_bytes: int
    sha256: str


class PartitionBackup(msgspec.Struct, frozen=True):
    """The committed records of one partition when it was read."""

    index: int
    start_offset: int
    """Log start. It may lie within the first batch."""
    end_offset: int
    """After the last committed record."""
    leader_epoch: int = -1
    """Leader epoch of the last batch; -1 without one."""
    producer_id_max: int = -1
    """Largest producer id in the batches; -1 without one."""
    objects: tuple[StoredBatches, ...] = ()
    """In the order of their offsets."""


class TopicBackup(msgspec.Struct, frozen=True):
    """A topic. ``configs`` are its own ones."""

    name: str
    topic_id: str
    """In hexadecimal, as in the keys of its objects."""
    replication: int
    configs: dict[str, str]
    partitions: tuple[PartitionBackup, ...]

    @property
    def has_events(self) -> bool:
        """Whether it is an event topic."""
        return self.configs.get("topic.kind") == "events"


class ResourceConfigs(msgspec.Struct, frozen=True):
    """Settings of a broker (name: its id, empty for all of them), of a group, or of client metrics. The type has
    Kafka's number.
    """

    resource_type: int
    name: str
    configs: dict[str, str]


class GroupOffset(msgspec.Struct, frozen=True, array_like=True):
    """Where a group reads on in one partition."""

    topic: str
    partition: int
    offset: int
    """The start of a share group is -1 while it has acknowledged nothing: `share.auto.offset.reset` decides."""
    metadata: str
    """Empty for a share group."""


class GroupBackup(msgspec.Struct, frozen=True):
    """The committed offsets of a consumer group, or of the consumers of an event topic; the starts of a share group."""

    group_id: str
    offsets: tuple[GroupOffset, ...]


class UserBackup(msgspec.Struct, frozen=True):
    """A user's SCRAM verifier: not the password, but guesses can be tested with it."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"UserBackup({self.user})"


class AclBackup(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An access control entry, in Kafka's numbers."""

    resource_type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class QuotaBackup(msgspec.Struct, frozen=True):
    """The quotas of one entity: pairs of type and name, None for the default."""

    entity: tuple[tuple[str, str | None], ...]
    values: dict[str, float]


class Backup(msgspec.Struct, frozen=True):
    """The root."""

    format: int
    name: str
    version: str
    """Release that made it."""
    cluster_id: str
    began_ms: int
    ended_ms: int
    topics: tuple[TopicBackup, ...]
    resources: tuple[ResourceConfigs, ...] = ()
    groups: tuple[GroupBackup, ...] = ()
    share_groups: tuple[GroupBackup, ...] = ()
    users: tuple[UserBackup, ...] = ()
    acls: tuple[AclBackup, ...] = ()
    quotas: tuple[QuotaBackup, ...] = ()
    notes: tuple[str, ...] = ()
    """What the cluster has and the backup has not, in sentences."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return sum(len(topic.partitions) for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects that it refers to."""
        return sum(one.size_bytes for topic in self.topics for part in topic.partitions for one in part.objects)

    @property
    def offsets(self) -> int:
        """Offsets from the start to the end of all partitions."""
        return sum(part.end_offset - part.start_offset for topic in self.topics for part in topic.partitions)

    @property
    def producer_id_max(self) -> int:
        """Largest producer id in the records; -1 without one."""
        return max((part.producer_id_max for topic in self.topics for part in topic.partitions), default=-1)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Backup).decode


class _Format(msgspec.Struct, frozen=True):
    """What every release can read of a root."""

    format: int


_decode_format = msgspec.json.Decoder(_Format).decode


def encode_backup(backup: Backup) -> bytes:
    """The bytes of the root."""
    document = _encode(backup)
    return hashlib.sha256(document).hexdigest().encode() + b"\n" + document


def decode_backup(name: str, data: bytes) -> Backup:
    """The root of the backup that is called ``name``.

    Raises:
        Corruption: the bytes are not what was written.
        Rejected: a later release has made it.
    """
    head, document = data[:_HASH_CHARACTERS], data[_HASH_CHARACTERS + 1 :]
    if head != hashlib.sha256(document).hexdigest().encode():
        raise Corruption(f"the root of backup {name} is damaged: its bytes do not have its checksum")
    try:
        written = _decode_format(document).format
        if written > FORMAT:
            raise Rejected(f"backup {name} has format {written}, this release reads {FORMAT}: use the newer release")
        return _decode(document)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the root of backup {name} cannot be read: {error}") from None
