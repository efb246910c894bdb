"""The offsets of a stream, as the JSON in Spark's checkpoint.

Version 1. Each partition has the next offset to read, the leader epoch of that offset (-1: unknown), the number of
tasks for the range that ends there (0: bundled with others), and, in the first entry of a partition that appeared while
the stream ran, its start offset. Topics are named by id, so that a topic that was deleted and created again is not
taken for its predecessor.

Everything that a replay needs is in the two offsets of a batch: the same offsets give the same tasks with any options
and files, as a sink that depends on its tasks requires. Spark compares offsets as text; keys are
sorted, so equal positions are equal text. A newer version is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millstream.errors import Rejected

VERSION: Final = 1


class Position(msgspec.Struct, frozen=True):
    """Position in a partition. ``begin`` is -1 except in the partition's first entry."""

    offset: int
    leader_epoch: int = -1
    splits: int = 1
    begin: int = -1


class TopicPositions(msgspec.Struct, frozen=True):
    """The partitions of one topic, by number."""

    name: str
    partitions: Mapping[int, Position]


class StreamOffset(msgspec.Struct, frozen=True):
    """Positions of all topics, by topic id (32 hex digits). ``bundles`` tasks read the ranges that are not split."""

    topics: Mapping[str, TopicPositions]
    bundles: int = 0

    def position(self, topic_id: str, partition: int) -> Position | None:
        topic = self.topics.get(topic_id)
        return topic.partitions.get(partition) if topic else None

    def reads_the_same(self, other: "StreamOffset") -> bool:
        """Whether both are at the same offsets of the same partitions. The number of tasks does not matter."""
        return _places(self) == _places(other)

    def to_json(self) -> dict[str, Any]:
        topics = {
            topic_id: {"n": topic.name, "p": {str(p): _entry(topic.partitions[p]) for p in sorted(topic.partitions)}}
            for topic_id, topic in sorted(self.topics.items())
        }
        return {"bundles": self.bundles, "topics": topics, "v": VERSION}


def read_offset(decoded: Mapping[str, Any]) -> StreamOffset:
    """The offset in decoded JSON.

    Raises:
        Rejected: the JSON is not an offset of this source, or has an unknown version.
    """
    version = decoded.get("v")
    if version != VERSION:
        raise Rejected(
            f"the checkpoint holds offsets of version {version!r} and this source reads version {VERSION}: "
            "continue with the release that wrote it, or a newer one"
        )
    try:
        topics = {
            str(topic_id): TopicPositions(
                str(topic["n"]), {int(p): Position(*map(int, entry)) for p, entry in topic["p"].items()}
            )
            for topic_id, topic in decoded["topics"].items()
        }
        return StreamOffset(topics, int(decoded.get("bundles", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"the offsets in the checkpoint are damaged: {error!r}") from error


def _entry(position: Position) -> list[int]:
    entry = [position.offset, position.leader_epoch, position.splits]
    return [*entry, position.begin] if position.begin >= 0 else entry


def _places(offset: StreamOffset) -> dict[tuple[str, int], int]:
    return {
        (topic_id, partition): position.offset
        for topic_id, topic in offset.topics.items()
        for partition, position in topic.partitions.items()
    }
