"""A topology on the topics that exist: numbers of partitions and tasks, and which internal topics are missing.

::

    source topics ──► are all there? ──no──► MISSING_SOURCE_TOPICS
                          │ yes
                          ▼
    repartition topics: as many partitions as the topology says, or as the largest topic that their writers read
                          │
                          ▼
    copartition groups: equal numbers ──no──► INCORRECTLY_PARTITIONED_TOPICS
                          │ yes
                          ▼
    changelog topics: as many partitions as the subtopology has tasks
                          │
                          ▼
    internal topics: all there, with these numbers ──no──► MISSING_INTERNAL_TOPICS, INCORRECTLY_PARTITIONED_TOPICS
                          │ yes
                          ▼
                        ready

A subtopology has as many tasks as its largest source topic has partitions. Where a topic exists, its own number counts.
A topology whose repartition topics depend on each other in a circle fits no topics: ``check_structure`` refuses it.
"""

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec

from millstream.core.group.streams_state.topology import Topology, copartitioned, names, source_names
from millstream.core.group.topics import NoTopics, Topic, Topics
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from millstream.wire.messages.streams_group_heartbeat import StreamsStatus, StreamsSubtopology, StreamsTopicInfo

_NAMED: Final = 3
"""Topics that a status names, as in Kafka."""


class Status(IntEnum):
    """Kafka's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Configured(msgspec.Struct, frozen=True):
    """What a topology comes to. ``problem`` None: its tasks may run."""

    problem: StreamsStatus | None
    tasks: dict[str, int] = {}
    """Subtopology → number of tasks. Empty if source topics are missing, or numbers of partitions do not match."""
    partitions: dict[str, int] = {}
    """Internal topic → number of partitions."""
    missing: tuple[CreatableTopic, ...] = ()
    """Internal topics to create."""


class _Misfit(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, code: Status, detail: str) -> None:
        self.status = StreamsStatus(code, detail)


class _Circle(_Misfit):
    """The topology fits no topics."""

    def __init__(self, detail: str) -> None:
        super().__init__(Status.INCORRECTLY_PARTITIONED_TOPICS, detail)


class _OneEach(NoTopics):
    """The source topics of a topology, with one partition each."""

    def __init__(self, topology: Topology) -> None:
        self._sources = {name for one in topology.subtopologies.values() for name in one.source_topics}

    def by_name(self, name: str) -> Topic | None:
        return Topic(name, b"", 1) if name in self._sources else None


def check_structure(topology: Topology) -> None:
    """Rejected if the topology fits no topics."""
    try:
        _Configuring(topology, _OneEach(topology)).decide_repartition_topics()
    except _Circle as circle:
        raise Rejected(circle.status.status_detail, ErrorCode.STREAMS_INVALID_TOPOLOGY) from None


def configure(topology: Topology, topics: Topics) -> Configured:
    """The topology on ``topics``."""
    try:
        return _Configuring(topology, topics).result()
    except _Misfit as misfit:
        return Configured(misfit.status)


class _Configuring:
    """One computation. ``decided``: numbers of partitions of internal topics."""

    def __init__(self, topology: Topology, topics: Topics) -> None:
        self.subtopologies = topology.subtopologies
        self.topics = topics
        self.decided: dict[str, int] = {}
        self.fixed = {
            topic.name: bool(topic.partitions)
            for one in self.subtopologies.values()
            for topic in one.repartition_source_topics
        }
        """Repartition topic → whether the topology says how many partitions it has."""

    def result(self) -> Configured:
        self._require_sources()
        self.decide_repartition_topics()
        for one in self.subtopologies.values():
            for group in copartitioned(one):
                self._match(group)
        for one in self.subtopologies.values():
            self.decided |= dict.fromkeys(names(one.state_changelog_topics), self._tasks(one))
        missing = tuple(self._missing())
        problem = None
        if missing:
            listed = _some(topic.name for topic in missing)
            problem = StreamsStatus(Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {listed}")
        tasks = {key: self._tasks(one) for key, one in self.subtopologies.items()}
        return Configured(problem, tasks, self.decided, missing)

    def _known(self, name: str) -> int | None:
        """The number of partitions of a topic: its own, or the one that was decided."""
        topic = self.topics.by_name(name)
        return self.decided.get(name) if topic is None else topic.partitions

    def _count(self, name: str) -> int:
        count = self._known(name)
        assert count is not None, f"the number of partitions of {name} is decided"
        return count

    def _tasks(self, one: StreamsSubtopology) -> int:
        return max(map(self._count, source_names(one)))

    def _require_sources(self) -> None:
        sources = {name for one in self.subtopologies.values() for name in one.source_topics}
        missing = [name for name in sources if self.topics.by_name(name) is None]
        if missing:
            raise _Misfit(Status.MISSING_SOURCE_TOPICS, f"Source topics {_some(missing)} are missing.")

    def decide_repartition_topics(self) -> None:
        """Decide the numbers of partitions of repartition topics, before those of copartition groups are matched."""
        readers: dict[str, list[StreamsSubtopology]] = {}
        for one in self.subtopologies.values():
            for topic in one.repartition_source_topics:
                readers.setdefault(topic.name, []).append(one)
                if topic.partitions:
                    self.decided[topic.name] = topic.partitions
        waiting = dict(self.subtopologies)
        queue = deque(self.subtopologies.values())
        while queue:
            one = queue.popleft()
            if one.subtopology_id not in waiting:
                continue
            found = [self.decided.get(name) for name in names(one.repartition_source_topics)]
            found += [self._known(name) for name in one.source_topics]
            counts = [count for count in found if count is not None]
            if not counts:
                continue  # it comes again when a topic that it reads is decided
            del waiting[one.subtopology_id]
            for sink in one.repartition_sink_topics:
                if sink not in self.decided:
                    self.decided[sink] = max(counts)
                    queue.extend(readers.get(sink, ()))
        if any(sink not in self.decided for one in waiting.values() for sink in one.repartition_sink_topics):
            raise _Circle(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the "
                "topology that cannot be resolved."
            )
        for one in self.subtopologies.values():
            if any(name not in self.decided for name in names(one.repartition_source_topics)):
                raise _Circle(
                    "Failed to compute number of partitions for all repartition topics, because a repartition source "
                    "topic is never used as a sink topic."
                )

    def _match(self, group: set[str]) -> None:
        """Give the topics of a copartition group one number of partitions."""
        internal = {name: self.fixed[name] for name in group if name in self.fixed}
        external = group - internal.keys()
        setting = external or {name for name, is_fixed in internal.items() if is_fixed}
        counts = {name: self._count(name) for name in sorted(setting)}
        if len(set(counts.values())) > 1:
            raise _mismatch(f"Following topics do not have the same number of partitions: [{_counts(counts)}]")
        agreed = next(iter(counts.values())) if counts else max(map(self._count, internal), default=0)
        for name, is_fixed in internal.items():
            if is_fixed and self._count(name) != agreed:
                raise _mismatch(
                    f"Number of partitions [{self._count(name)}] of repartition topic [{name}] doesn't match number of "
                    f"partitions [{agreed}] of the source topic."
                )
            self.decided[name] = agreed

    def _missing(self) -> Iterable[CreatableTopic]:
        """The internal topics that do not exist, each once."""
        infos = {
            topic.name: topic
            for one in self.subtopologies.values()
            for topic in (*one.repartition_source_topics, *one.state_changelog_topics)
        }
        for name in sorted(infos):
            expected = self.decided[name]
            topic = self.topics.by_name(name)
            if topic is None:
                yield _creatable(infos[name], expected)
            elif topic.partitions != expected:
                raise _mismatch(
                    f"Existing topic {name} has different number of partitions: expected {expected}, found "
                    f"{topic.partitions}"
                )


def _creatable(info: StreamsTopicInfo, partitions: int) -> CreatableTopic:
    return CreatableTopic(
        info.name,
        partitions,
        info.replication_factor or -1,
        configs=[CreatableTopicConfig(config.key, config.value) for config in info.topic_configs],
    )


def _some(topics: Iterable[str]) -> str:
    ordered = sorted(topics)
    more = f" and {len(ordered) - _NAMED} additional topics" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in counts.items())


def _mismatch(detail: str) -> _Misfit:
    return _Misfit(Status.INCORRECTLY_PARTITIONED_TOPICS, detail)
