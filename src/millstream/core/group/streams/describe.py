"""Describes a streams group."""

import msgspec

from millstream.core.group.assigned.requests import not_described
from millstream.core.group.group import Group
from millstream.core.group.step import Step
from millstream.core.group.streams.topics import configured_on
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import StreamsMember
from millstream.core.group.streams_state.tasks import TaskSets, listed
from millstream.core.group.streams_state.topology import Topology
from millstream.wire.messages.streams_group_describe import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
)
from millstream.wire.messages.streams_group_heartbeat import StreamsKeyValue, StreamsSubtopology, StreamsTopicInfo


def describe_streams_group(step: Step, group_id: str, holder: Group | None) -> DescribedStreamsGroup:
    """A streams group and its members."""
    streams = None if holder is None else holder.streams
    if streams is None:
        return not_described(DescribedStreamsGroup, StreamsGroup.group_type, group_id, holder)
    topology = streams.topology
    return DescribedStreamsGroup(
        group_id=group_id,
        group_state=streams.state.value,
        group_epoch=streams.epoch,
        assignment_epoch=streams.assignment_epoch,
        topology=None if topology is None else _topology(topology, _partitions(step, streams)),
        members=[_member(streams.target(member.member_id), member) for member in streams.members.values()],
    )


def _partitions(step: Step, streams: StreamsGroup) -> dict[str, int]:
    """The numbers of partitions of internal topics, if the topics are all there."""
    configured = configured_on(step, streams)
    return configured.partitions if configured.problem is None else {}


def _topology(topology: Topology, partitions: dict[str, int]) -> DescribedTopology:
    subtopologies = topology.subtopologies
    shown = [_subtopology(subtopologies[key], partitions) for key in sorted(subtopologies)]
    return DescribedTopology(topology.epoch, shown)


def _subtopology(one: StreamsSubtopology, partitions: dict[str, int]) -> DescribedSubtopology:
    return DescribedSubtopology(
        subtopology_id=one.subtopology_id,
        source_topics=sorted(one.source_topics),
        repartition_sink_topics=sorted(one.repartition_sink_topics),
        state_changelog_topics=_topics(one.state_changelog_topics, partitions),
        repartition_source_topics=_topics(one.repartition_source_topics, partitions),
    )


def _topics(topics: list[StreamsTopicInfo], partitions: dict[str, int]) -> list[StreamsTopicInfo]:
    return [
        msgspec.structs.replace(topic, partitions=partitions.get(topic.name, topic.partitions))
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(target: TaskSets, member: StreamsMember) -> DescribedStreamsMember:
    has = member.assigned
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=member.endpoint,
        client_tags=[StreamsKeyValue(key, member.tags[key]) for key in sorted(member.tags)],
        assignment=DescribedTasks(listed(has.active), listed(has.standby), listed(has.warmup)),
        target_assignment=DescribedTasks(listed(target.active), listed(target.standby), listed(target.warmup)),
    )
