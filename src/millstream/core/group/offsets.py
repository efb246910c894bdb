"""Committed offsets of one group."""

from collections.abc import Iterator
from typing import Final

import msgspec

from millstream.wire.schema import ZERO_UUID

NO_OFFSET: Final = -1


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """The next offset to read, with its metadata. Times are wall-clock ms; -1 means none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: bytes = ZERO_UUID


class GroupOffsets:
    """Topic → partition → committed offset. Contains durable offsets only."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, CommittedOffset]] = {}

    def __bool__(self) -> bool:
        return bool(self.topics)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self.topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        partitions = self.topics.get(topic)
        if partitions is None:
            partitions = self.topics[topic] = {}
        partitions[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        partitions = self.topics.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.topics[topic]

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.topics.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset
