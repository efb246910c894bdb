"""Committed offsets of one group."""

from collections.abc import Iterator
from typing import Final

import msgspec

from millstream.model.quantities import ProducerId
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
    order: int = 0
    """Place in the order of the log. What a transaction commits does not replace what was stored after it."""


class PendingOffsets:
    """Offsets of one group in transactions that are open: durable, and not committed yet.

    Producer id → (topic, partition) → offset.
    """

    __slots__ = ("by_producer",)

    def __init__(self) -> None:
        self.by_producer: dict[int, dict[tuple[str, int], CommittedOffset]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_producer)

    def put(self, producer_id: ProducerId, topic: str, partition: int, offset: CommittedOffset) -> None:
        self.by_producer.setdefault(producer_id, {})[topic, partition] = offset

    def holds(self, topic: str, partition: int) -> bool:
        """Whether an open transaction is going to commit an offset for this partition."""
        return any((topic, partition) in topic_partitions for topic_partitions in self.by_producer.values())

    def take(self, producer_id: ProducerId) -> dict[tuple[str, int], CommittedOffset]:
        """The transaction has ended: its offsets, which are forgotten here."""
        return self.by_producer.pop(producer_id, {})

    def topic_partitions(self) -> set[tuple[str, int]]:
        """The partitions for which an open transaction has an offset."""
        return {place for topic_partitions in self.by_producer.values() for place in topic_partitions}

    def remove(self, place: tuple[str, int]) -> None:
        """The log has a tombstone after the offsets of this partition: no transaction can commit them now."""
        for producer_id, topic_partitions in list(self.by_producer.items()):
            topic_partitions.pop(place, None)
            if not topic_partitions:
                del self.by_producer[producer_id]

    def of_topic(self, topic: str) -> Iterator[tuple[int, CommittedOffset]]:
        """The offsets for the partitions of a topic."""
        for topic_partitions in self.by_producer.values():
            for (name, partition), offset in topic_partitions.items():
                if name == topic:
                    yield partition, offset


class GroupOffsets:
    """Topic → partition → committed offset. Contains durable offsets only; ``pending`` has those of transactions."""

    __slots__ = ("pending", "topics")

    def __init__(self) -> None:
        self.pending = PendingOffsets()
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
