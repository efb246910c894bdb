"""Generations of a topic: since when its offsets are comparable.

Offsets of one partition tell which of two records is the later one, as long as the partition is the same log. A topic
that is deleted and made again counts from 0 again, and a key moves to another partition when partitions are added. So
each record has a generation, a number that the pipeline assigns by the record's place:

::

    generation 0 ──────────────► 1 (partitions were added) ──────────► 2 (the topic was made again)
                                 │
                                 starts, by partition, where the batch before ended

A record of a later generation of its topic is the later one. Generations are kept in the record of each commit, so a
batch that is repeated, a backfill and a replay of dead letters assign the same ones. A topic that is read for the first
time has one generation, even if it was made again before.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from millstream.spark.offsets import StreamOffset

_NO_ID: Final = "0" * 32


class TopicGenerations(msgspec.Struct, frozen=True):
    """The generations of one topic. ``starts`` has each one's number and its first offset by partition; a partition
    that is not named starts at 0. Only the newest incarnation of a topic is in it. ``partitions`` counts them.
    """

    id: str
    partitions: int
    starts: tuple[tuple[int, dict[int, int]], ...]

    @property
    def newest(self) -> int:
        return self.starts[-1][0]


Generations: TypeAlias = dict[str, TopicGenerations]
"""By the topic's name."""


def advanced(
    before: Mapping[str, TopicGenerations], ends: Mapping[str, Mapping[str, int]], now: StreamOffset
) -> Generations:
    """The generations after a batch.

    Args:
        before: those of the batch before, empty for the first one.
        ends: where that one ended, by topic and partition.
        now: where this one ends.
    """
    found = dict(before)
    for topic_id, topic in now.topics.items():
        known, count = before.get(topic.name), len(topic.partitions)
        if known is None:
            found[topic.name] = TopicGenerations(topic_id, count, ((0, {}),))
        elif known.id != topic_id and _NO_ID not in (known.id, topic_id):
            found[topic.name] = TopicGenerations(topic_id, count, ((known.newest + 1, {}),))
        elif count > known.partitions:
            start = {int(partition): end for partition, end in ends.get(topic.name, {}).items()}
            starts = (*known.starts, (known.newest + 1, start))
            found[topic.name] = TopicGenerations(topic_id, count, starts)
    return found


def later(one: Generations, other: Generations) -> Generations:
    """For each topic, the generations that reach further."""
    found = dict(one)
    for name, topic in other.items():
        if name not in found or topic.newest > found[name].newest:
            found[name] = topic
    return found


def generations_of(generations: Generations, topics: Any, partitions: Any, offsets: Any) -> Any:
    """The generation of each record, as int64; the arguments are arrays of the same length."""
    names = np.asarray(topics, dtype=object)
    found = np.zeros(len(names), dtype=np.int64)
    for name in set(names.tolist()):
        topic = generations.get(name)
        if topic is None:
            continue
        of_topic = names == name
        for number, start in topic.starts:
            least = np.zeros(len(names), dtype=np.int64)
            for partition, offset in start.items():
                least[partitions == partition] = offset
            found[of_topic & (offsets >= least)] = number
    return found
