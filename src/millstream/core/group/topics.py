"""The view of the cluster's topics for group decisions: names, ids, partitions.

The caller passes it in. Its content belongs to one ``revision`` and does not change within it. It never calls back.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from millstream.core.group.assign.spec import Partitions
from millstream.wire.messages.consumer_group_describe import DescribedAssignment, DescribedTopicPartitions

NEVER_CHECKED: Final = -1
"""Revision of the metadata before a group's first look at them."""


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

    def may_describe(self, principal: str, client_host: str, name: str) -> bool:
        """Whether a client may know of a topic."""
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

    def may_describe(self, principal: str, client_host: str, name: str) -> bool:
        _ = principal, client_host, name
        return True


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


def described(partitions: Partitions, topics: Topics) -> DescribedAssignment:
    """An assignment as a group's description shows it: by topic name, without deleted topics."""
    named: list[DescribedTopicPartitions] = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            named.append(DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)))
    return DescribedAssignment(topic_partitions=named)
