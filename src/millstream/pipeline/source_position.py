"""How far a sink has read its topics, in offsets: what lies ahead, what a batch went over, what is left."""

from collections.abc import Mapping
from typing import Any

from millstream.pipeline.ranges import Bounds, Ranges, after
from millstream.pipeline.state import Offsets
from millstream.spark.logs import Logs
from millstream.spark.offsets import read_offset


class SourcePosition:
    """The position of one sink in its topics.

    ``starts`` is where the sink started, ``ends`` where its last batch ended. ``backlog`` is how many offsets lie ahead
    when it opens, ``read`` how many of them and of later ones it has gone over. ``bounds`` says what a backfill reads;
    None is everything, without an end.
    """

    def __init__(self, bounds: Bounds | None) -> None:
        self.bounds = bounds
        self.starts: Offsets = {}
        self.ends: Offsets = {}
        self.backlog = self.read = 0

    def open(self, starts: Offsets, finished: Mapping[str, Any] | None, logs: Logs) -> None:
        """Find out how much lies ahead. ``finished`` is where the checkpoint's last batch ended, if it has one; without
        it, ``starts`` gets the first offset of partitions that start at their beginning.
        """
        self.starts = starts
        self.ends = positions(finished) if finished is not None else starts
        source_partitions = logs.source_partitions()
        newest, oldest = logs.latest(source_partitions), logs.earliest(source_partitions)
        self.backlog = 0
        for place in source_partitions:
            at = self.ends.get(place.topic, {}).get(str(place.partition), -2)
            at = oldest[place.key].offset if at < 0 else at
            self.ends.setdefault(place.topic, {})[str(place.partition)] = at
            end = newest[place.key].offset
            if self.bounds is not None:
                end = min(end, self.bounds.until.get(place.topic, {}).get(str(place.partition), 0))
            self.backlog += max(0, end - at)

    def advance(self, new: Offsets) -> int:
        """Move ``ends`` to where a batch ends; returns how many offsets that is."""
        count = 0
        for topic, partitions in new.items():
            before = self.ends.get(topic, {})
            count += sum(max(0, end - before.get(partition, end)) for partition, end in partitions.items())
        self.ends = new
        self.read += count
        return count

    def left(self, newest: Mapping[str, Any] | None = None) -> int:
        """Offsets after the last batch: up to ``newest``, an offset of the source, or of the backlog."""
        if newest is None:
            return max(0, self.backlog - self.read)
        ends, found = self.ends, positions(newest)
        return sum(
            max(0, end - ends.get(topic, {}).get(partition, 0))
            for topic, partitions in found.items()
            for partition, end in partitions.items()
        )

    def continue_from(self, before: "SourcePosition") -> None:
        """Take over what a query has read that another one replaces within a run."""
        self.read, self.backlog = before.read, before.read + self.backlog

    def held(self, ends: Mapping[str, Mapping[str, int]]) -> Ranges:
        """The ranges that backfills have read into the table when this one has read so far; none of another query."""
        bounds = self.bounds
        return {} if bounds is None else after(bounds.done, bounds.start, ends)


def positions(offset: Mapping[str, Any]) -> Offsets:
    """The offsets of the source's own form."""
    found = read_offset(offset)
    return {
        topic.name: {str(partition): position.offset for partition, position in topic.partitions.items()}
        for topic in found.topics.values()
    }
