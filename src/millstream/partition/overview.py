"""What the partitions of a shard hold, summed by topic, for the HTTP port.

The walk is a generator that yields every few partitions: a shard may be the home of ten thousand. A topic that is
created or deleted during the walk may be counted with a part of its partitions.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

import msgspec

from millstream.partition.partition import Partition
from millstream.partition.table import PartitionTable

_SLICE: Final = 64


class TopicCounts(msgspec.Struct, gc=False):
    """One topic's partitions on one shard. Counters start when the partitions are opened."""

    partitions: int = 0
    records: int = 0
    size_bytes: int = 0
    received_records: int = 0
    received_bytes: int = 0
    fetched_bytes: int = 0

    def add(self, partition: Partition) -> None:
        """Count one more partition."""
        log = partition.log
        self.partitions += 1
        self.records += partition.high_watermark - partition.log_start_offset
        self.size_bytes += log.ends.durable_position - log.files.segments.first.stream
        self.received_records += partition.high_watermark - partition.opened_at.end_offset
        self.received_bytes += log.ends.durable_position - partition.opened_at.position
        self.fetched_bytes += partition.fetched_bytes

    def merge(self, other: "TopicCounts") -> None:
        """Add what another shard counted of the same topic."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def count_topics(
    table: PartitionTable, names: Sequence[str], counts: dict[str, TopicCounts]
) -> Generator[None, None, None]:
    """Fill ``counts`` with the topics in ``names`` that have partitions on this shard."""
    walked = 0
    for name in names:
        for entry in table.by_name.get(name, ()):
            walked += 1
            if walked % _SLICE == 0:
                yield
            if isinstance(entry, Partition):
                counts.setdefault(name, TopicCounts()).add(entry)


def end_offsets(
    table: PartitionTable, wanted: Mapping[str, Sequence[int]], ends: dict[str, dict[int, int]]
) -> Generator[None, None, None]:
    """Fill ``ends`` with the high watermarks of the partitions in ``wanted`` that are on this shard."""
    walked = 0
    for topic, indexes in wanted.items():
        for index in indexes:
            walked += 1
            if walked % _SLICE == 0:
                yield
            partition = table.local(topic, index)
            if partition is not None:
                ends.setdefault(topic, {})[index] = partition.high_watermark
