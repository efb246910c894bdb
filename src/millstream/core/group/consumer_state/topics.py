"""The view of the cluster's topics for group decisions: names, ids, partitions.

The caller passes it in. Its content belongs to one ``revision`` and does not change within it. It never calls back.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec


class Topic(msgspec.Struct, frozen=True, gc=False):
    """One topic at one revision."""

    name: str
    topic_id: bytes
    partitions: int


class Topics(Protocol):
    """All topics of the cluster."""

    @property
    def revision(self) -> int:
        """Increases with every change of the metadata."""
        ...

    @property
    def created_revision(self) -> int:
        """Revision at which the newest topic was created."""
        ...

    def by_name(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: bytes) -> Topic | None: ...

    def names(self) -> Iterable[str]:
        """The names of all topics."""
        ...


class NoTopics:
    """A cluster without topics."""

    revision = 0
    created_revision = 0

    def by_name(self, name: str) -> Topic | None:
        _ = name

    def by_id(self, topic_id: bytes) -> Topic | None:
        _ = topic_id

    def names(self) -> Iterable[str]:
        return ()


def metadata_hash(names: Iterable[str], find: Callable[[str], Topic | None]) -> int:
    """A signed 64-bit hash of the existing topics among ``names``: ids, names and partition counts. 0 for none.

    Stored with the group epoch, so that a coordinator that loads the group knows whether its topics have changed.
    """
    found = sorted((topic.topic_id, topic.name, topic.partitions) for name in names if (topic := find(name)))
    if not found:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic_id, name, partitions in found:
        digest.update(topic_id + partitions.to_bytes(4, "big") + name.encode() + b"\0")
    return int.from_bytes(digest.digest(), "big", signed=True)
