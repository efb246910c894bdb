"""Topics and groups of the whole broker, gathered from its shards for the HTTP port.

::

    shards' groups ──► their first names, and which partitions they committed to
    shards' topics ──► counts of the first topics by name, and where those partitions end ──► lag

Two questions to all shards, because a group and the partitions that it reads have different home shards. Each shard
answers from a background task, in slices. A group's lag may count records that came between the two answers.
"""

from collections.abc import Callable, Generator
from itertools import islice
from typing import Any, Final

import msgspec

from millstream.admin.overview import GroupView, Overview, TopicView
from millstream.app.shard_queries import ShardQueries
from millstream.cluster.metadata import MetadataCache
from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.overview import GroupSummary, Summaries, summarize_groups
from millstream.partition.overview import TopicCounts, count_topics, end_offsets
from millstream.partition.table import PartitionTable
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor
from millstream.telemetry.render import Named

GROUPS: Final = "groups"
TOPICS: Final = "topics"
_SHARE: Final = 0.1


class _Ask(msgspec.Struct, frozen=True):
    """The second question: ``wanted`` are the partitions whose end is asked for, by topic."""

    topics_max: int
    wanted: dict[str, list[int]]


class _Answer(msgspec.Struct):
    counts: dict[str, TopicCounts]
    topics_total: int
    ends: dict[str, dict[int, int]]


def serve_overview(
    control: ControlEnd, reactor: Reactor, metadata: MetadataCache, table: PartitionTable, groups: LocalGroups
) -> None:
    """Answer both questions on a shard."""

    def answer_groups(groups_max: int, answer: Callable[[Any], None]) -> None:
        found = Summaries([])
        walk = summarize_groups(groups.partitions.values(), groups_max, found)
        reactor.background("other", walk, _SHARE, lambda: answer(msgspec.to_builtins(found)))

    def answer_topics(arguments: Any, answer: Callable[[Any], None]) -> None:
        ask = msgspec.convert(arguments, _Ask)
        names = metadata.names()
        found = _Answer({}, len(names), {})

        def walk() -> Generator[None, None, None]:
            yield from count_topics(table, names[: ask.topics_max], found.counts)
            yield from end_offsets(table, ask.wanted, found.ends)

        reactor.background("other", walk(), _SHARE, lambda: answer(msgspec.to_builtins(found)))

    control.serve(GROUPS, answer_groups)
    control.serve(TOPICS, answer_topics)


def gather(queries: ShardQueries, topics_max: int, groups_max: int, timeout_us: int) -> Overview:
    """The first topics and groups by name.

    Raises:
        MillstreamError: a shard did not answer in time.
    """
    by_shard = [msgspec.convert(each, Summaries) for each in queries.ask_all(GROUPS, groups_max, timeout_us)]
    groups = sorted((group for shard in by_shard for group in shard.groups), key=lambda group: group.name)[:groups_max]
    wanted: dict[str, set[int]] = {}
    for group in groups:
        for topic, committed in group.committed.items():
            wanted.setdefault(topic, set()).update(committed)
    ask = _Ask(topics_max, {topic: sorted(indexes) for topic, indexes in wanted.items()})
    counts: dict[str, TopicCounts] = {}
    ends: dict[str, dict[int, int]] = {}
    topics_total = 0
    for each in queries.ask_all(TOPICS, msgspec.to_builtins(ask), timeout_us):
        answer = msgspec.convert(each, _Answer)
        topics_total = max(topics_total, answer.topics_total)
        for topic, count in answer.counts.items():
            counts.setdefault(topic, TopicCounts()).merge(count)
        for topic, found in answer.ends.items():
            ends.setdefault(topic, {}).update(found)
    return Overview(
        topics=[TopicView(name, *msgspec.structs.astuple(counts[name])) for name in sorted(counts)],
        topics_total=topics_total,
        groups=[GroupView(group.name, group.state, group.members, _lag(group, ends), group.type) for group in groups],
        groups_total=sum(shard.total for shard in by_shard),
    )


def _lag(group: GroupSummary, ends: dict[str, dict[int, int]]) -> dict[str, int]:
    """Records after the committed offsets, by topic; partitions that are not served are left out."""
    return {
        topic: sum(max(ends[topic].get(index, 0) - offset, 0) for index, offset in committed.items())
        for topic, committed in group.committed.items()
        if topic in ends
    }


def named_metrics(overview: Overview, lags_max: int) -> Named:
    """The overview as samples of ``telemetry.table.NAMED``, with the first ``lags_max`` pairs of group and topic."""
    topics = overview.topics
    lags = {(group.name, topic): lag for group in overview.groups for topic, lag in sorted(group.lag.items())}
    shown = dict(islice(lags.items(), lags_max))
    cut = {group for group, _ in lags.keys() - shown.keys()}
    found: Named = {
        "topic_received_records": {(topic.name,): topic.received_records for topic in topics},
        "topic_received_bytes": {(topic.name,): topic.received_bytes for topic in topics},
        "topic_fetched_bytes": {(topic.name,): topic.fetched_bytes for topic in topics},
        "topic_size_bytes": {(topic.name,): topic.size_bytes for topic in topics},
        "topics_left_out": {(): overview.topics_total - len(topics)},
        "group_lag": shown,
        "groups_left_out": {(): overview.groups_total - len(overview.groups) + len(cut)},
    }
    return found
