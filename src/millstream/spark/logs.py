"""The driver's view of a query's topics: partitions, start and end offsets, segment files.

Everything here asks the cluster; ``planner`` and ``stream`` use the results. One object lives as long as its query and
holds its connections.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from millstream.client import EARLIEST as ASK_EARLIEST
from millstream.client import LATEST as ASK_LATEST
from millstream.client import Cluster, TopicMetadata
from millstream.client.cluster import FoundOffset
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.spark.bounds import EARLIEST, LATEST, Bound, Subscription, TopicPartition
from millstream.spark.loss import LossPolicy
from millstream.spark.manifest import Manifests, SegmentMap
from millstream.spark.options import Options
from millstream.spark.planner import Span
from millstream.spark.topic_error import topic_error


class SourcePartition(msgspec.Struct, frozen=True):
    """A partition of the query, and its leader. ``topic_id`` is 32 hex digits."""

    topic: str
    topic_id: str
    partition: int
    leader: int

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


class Logs:
    """Looks up the subscribed partitions. Close it when the query ends."""

    def __init__(self, options: Options, wanted: Subscription) -> None:
        self._wanted = wanted
        self._read_committed = options["kafka.isolation.level"] == "read_committed"
        self._strategy = options["startingOffsetsByTimestampStrategy"]
        self._loss = LossPolicy(options["failOnDataLoss"])
        self.cluster = Cluster(
            options.require("kafka.bootstrap.servers"),
            client_id=options["kafka.client.id"],
            timeout_s=options["kafka.request.timeout.ms"] / 1000,
            security=options.security,
        )
        path = options["read.path"]
        self._manifests = (
            None
            if path == "broker"
            else Manifests(
                self.cluster,
                options["manifest.url"],
                required=path == "segments",
                objects_url=options["objects.url"],
                events=options["events"],
            )
        )

    def close(self) -> None:
        self.cluster.close()
        if self._manifests is not None:
            self._manifests.close()

    def source_partitions(self, *, missing_is_error: bool = True) -> list[SourcePartition]:
        """The partitions to read now, in order of topic and number.

        Raises:
            Rejected: a named topic or partition does not exist.
        """
        pattern = self._wanted.pattern
        if pattern is not None:
            try:
                matches = re.compile(pattern).search
            except re.error as error:
                raise Rejected(f"option subscribePattern is no regular expression: {error}") from None
            topics = [t for t in self.cluster.metadata().topics.values() if not t.is_internal and matches(t.name)]
        else:
            found = self.cluster.metadata(self._wanted.names).topics
            topics = [found[name] for name in self._wanted.names]
        source_partitions: list[SourcePartition] = []
        for topic in sorted(topics, key=lambda t: t.name):
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not missing_is_error:
                continue
            source_partitions += self._source_partitions_of(topic)
        return source_partitions

    def _source_partitions_of(self, topic: TopicMetadata) -> list[SourcePartition]:
        if topic.error_code:
            raise topic_error(topic.name, topic.error_code)
        numbers = self._wanted.partitions.get(topic.name, tuple(topic.partitions))
        for number in numbers:
            if number not in topic.partitions:
                raise Rejected(f"topic {topic.name} has no partition {number}, only {len(topic.partitions)} of them")
        topic_id = topic.topic_id.hex()
        return [SourcePartition(topic.name, topic_id, number, topic.partitions[number].node_id) for number in numbers]

    def earliest(self, source_partitions: Sequence[SourcePartition]) -> dict[TopicPartition, FoundOffset]:
        """Log start offsets."""
        return self._ask({place.key: ASK_EARLIEST for place in source_partitions})

    def latest(self, source_partitions: Sequence[SourcePartition]) -> dict[TopicPartition, FoundOffset]:
        """Log ends (exclusive): the last stable offset for read_committed, else the high watermark."""
        return self._ask({place.key: ASK_LATEST for place in source_partitions})

    def start(self, source_partitions: Sequence[SourcePartition], bound: Bound) -> dict[TopicPartition, int]:
        """Start offsets of a new query.

        Raises:
            Rejected: the bound does not name each partition, or a partition has no record that late.
        """
        wanted = _per_partition(source_partitions, bound)
        if bound.kind == "timestamp":
            return self._start_at_times(source_partitions, wanted)
        lows = self.earliest(source_partitions)
        highs = self.latest(source_partitions)
        return {
            key: self._inside(key, _resolve(offset, lows[key].offset, highs[key].offset), lows, highs, bound.option)
            for key, offset in wanted.items()
        }

    def end(self, source_partitions: Sequence[SourcePartition], bound: Bound) -> dict[TopicPartition, int]:
        """End offsets (exclusive) of a batch. Errors as in ``start``."""
        wanted = _per_partition(source_partitions, bound)
        highs = self.latest(source_partitions)
        if bound.kind == "timestamp":
            found = self._ask(wanted)
            return {
                key: min(found[key].offset, highs[key].offset) if found[key].offset >= 0 else highs[key].offset
                for key in wanted
            }
        lows = self.earliest(source_partitions)
        return {
            key: self._inside(key, _resolve(offset, lows[key].offset, highs[key].offset), lows, highs, bound.option)
            for key, offset in wanted.items()
        }

    def segments(self, source_partitions: Sequence[SourcePartition], spans: Sequence[Span]) -> SegmentMap:
        """Sealed segments of these partitions, archived ones only as far as they are in ``spans``; none without a
        manifest.
        """
        found: SegmentMap = {}
        if self._manifests is not None:
            by_topic: dict[tuple[str, str], set[int]] = {}
            for place in source_partitions:
                by_topic.setdefault((place.topic, place.topic_id), set()).add(place.leader)
            for (topic, topic_id), leaders in by_topic.items():
                found.update(self._manifests.segments(topic, topic_id, leaders, spans))
        return found

    def _start_at_times(
        self, source_partitions: Sequence[SourcePartition], times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        found = self._ask(times)
        late = [key for key in times if found[key].offset < 0]
        if late and self._strategy == "error":
            topic, partition = late[0]
            raise Rejected(
                f"{topic}-{partition} has no record at or after {times[late[0]]} ms; to start such partitions at their "
                "end, set startingOffsetsByTimestampStrategy=latest"
            )
        highs = self.latest([place for place in source_partitions if place.key in late]) if late else {}
        return {key: highs[key].offset if key in highs else found[key].offset for key in times}

    def _inside(
        self,
        key: TopicPartition,
        offset: int,
        lows: Mapping[TopicPartition, FoundOffset],
        highs: Mapping[TopicPartition, FoundOffset],
        option: str,
    ) -> int:
        low, high = lows[key].offset, max(lows[key].offset, highs[key].offset)
        if not low <= offset <= high:
            self._loss.report(f"{key[0]}-{key[1]} holds offsets {low} to {high}, and {option} says {offset}")
        return max(low, min(high, offset))

    def _ask(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        if not timestamps:
            return {}
        return self.cluster.list_offsets(timestamps, read_committed=self._read_committed)


def _resolve(offset: int, low: int, high: int) -> int:
    return low if offset == EARLIEST else high if offset == LATEST else offset


def _per_partition(source_partitions: Sequence[SourcePartition], bound: Bound) -> dict[TopicPartition, int]:
    if bound.everywhere is not None:
        return {place.key: bound.everywhere for place in source_partitions}
    keys = {place.key for place in source_partitions}
    for what, names in (("leaves out", keys - bound.by_partition.keys()), ("names", bound.by_partition.keys() - keys)):
        if names:
            shown = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(names)[:5])
            raise Rejected(f"option {bound.option} {what} {shown}; it must name exactly the partitions of the query")
    return {place.key: bound.by_partition[place.key] for place in source_partitions}
