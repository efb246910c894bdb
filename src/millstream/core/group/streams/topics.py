"""The topology of a group, and the topics that exist: when the group epoch increases, and why nothing can run.

The first member brings the topology, which then stays: Kafka 4.3 takes no other one. A member with an older epoch has
the status STALE_TOPOLOGY. The topology is held against the topics that exist when these have changed. Tasks are given
when all topics are there with the right numbers of partitions; ``validated_topology_epoch`` stores that they are.
"""

import msgspec

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.requests import invalid
from millstream.core.group.assigned.target import next_epoch
from millstream.core.group.step import Step
from millstream.core.group.streams_state.configured import Configured, Status, check_structure, configure
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import StreamsMember
from millstream.core.group.streams_state.tasks import TaskSets
from millstream.core.group.streams_state.topology import Topology, topology_of
from millstream.core.group.topics import metadata_hash
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_heartbeat import StreamsKeyValue, StreamsStatus
from millstream.wire.messages.streams_group_heartbeat import StreamsTopology as RequestedTopology
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupMetadataValue,
    StreamsGroupTopologyKey,
)

STANDBYS = "num.standby.replicas"
NOT_VALIDATED = -1


def take_topology(change: GroupChange[StreamsGroup], requested: RequestedTopology | None) -> None:
    """Take the topology of a member that joins, if it is the first one. Rejected if it differs from the group's."""
    streams = change.content
    if requested is None:
        if streams.topology is None:
            raise Rejected("The group has no topology. The member must rejoin.", ErrorCode.FENCED_MEMBER_EPOCH)
        return
    brought = topology_of(requested)
    check_structure(brought)
    known = streams.topology
    if known is None:
        change.put(StreamsGroupTopologyKey(streams.group_id), brought.value())
    elif known.epoch <= brought.epoch and known != brought:
        raise Rejected("Topology updates are not supported yet.", ErrorCode.INVALID_REQUEST)


def stale(streams: StreamsGroup, member: StreamsMember) -> list[StreamsStatus]:
    """The status of a member whose topology is older than the group's."""
    topology = streams.topology
    if topology is None or member.topology_epoch >= topology.epoch:
        return []
    detail = (
        f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch {topology.epoch}."
    )
    return [StreamsStatus(Status.STALE_TOPOLOGY, detail)]


def follow_topics(step: Step, change: GroupChange[StreamsGroup], *, bump: bool) -> Configured:
    """Hold the topology against the topics, and increase the group epoch if ``bump`` or anything differs."""
    streams = change.content
    topology = _topology(streams)
    configured = configured_on(step, streams)
    now = StreamsGroupMetadataValue(
        epoch=streams.epoch,
        metadata_hash=metadata_hash(topology.required_topics, step.topics.by_name),
        validated_topology_epoch=topology.epoch if configured.problem is None else NOT_VALIDATED,
        last_assignment_configs=assignment_configs(step, streams.group_id),
    )
    if bump or now != streams.metadata:
        next_epoch(step, change, msgspec.structs.replace(now, epoch=now.epoch + 1))
    return configured


def configured_on(step: Step, streams: StreamsGroup) -> Configured:
    """The topology on the topics that exist."""
    live, revision = streams.live, step.topics.revision
    if live.configured is None or streams.checked_revision != revision:
        live.configured = configure(_topology(streams), step.topics)
        streams.checked_revision = revision
    return live.configured


def _topology(streams: StreamsGroup) -> Topology:
    assert streams.topology is not None, "a group with members has a topology"
    return streams.topology


def assignment_configs(step: Step, group_id: str) -> list[StreamsKeyValue]:
    """The settings of the assignor. Another value means another assignment."""
    return [StreamsKeyValue(STANDBYS, str(step.settings.streams.standby_replicas_of(group_id)))]


def check_tasks(streams: StreamsGroup, owned: TaskSets | None) -> None:
    """Rejected if a member says that it owns a task that its topology never had. Kafka refuses the tasks of a topic
    that was made again with fewer partitions, too, which ends the member; here they are taken from it.
    """
    if owned is None:
        return
    known = _topology(streams).subtopologies
    for tasks in (owned.active, owned.standby, owned.warmup):
        for subtopology, partitions in tasks.items():
            if subtopology not in known:
                raise invalid(f"Subtopology {subtopology} does not exist in the topology.")
            if min(partitions) < 0:
                raise invalid(f"Task {min(partitions)} for subtopology {subtopology} is invalid.")
