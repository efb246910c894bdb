"""StreamsGroupHeartbeat: a member joins with its topology, reports its tasks, and receives those that it is to run.

Order: the request is checked; the group is found or created; the member is found or created. Then its facts are stored,
the topology is taken or compared, and held against the topics; the group epoch and the target assignment follow if
necessary, and the member is moved towards its target. The changes are written, and the response is sent when they are
durable. Most heartbeats change nothing and are answered at once.

A member proves by its epoch that it knows its last response, or the one before, which may have been lost. Any other is
fenced and must rejoin with epoch 0. What keeps the group from working is in the status of each response, and so is what
its members have to do. The response of the core also has the internal topics that are missing, for the handler, which
knows the client's rights, to create them.

A member that says it owns other tasks than it has gets its tasks again: the response that gave them may have been lost,
which Kafka does not notice if the epoch stayed. While a new assignment is due it gets that one instead.

Kafka 4.3 refuses static members, regular expressions, warm-up tasks and offsets of tasks; so does this.
"""

from collections.abc import Iterable

import msgspec

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.leaving import remove_members
from millstream.core.group.assigned.requests import check_room, fenced, invalid, known_member, refused
from millstream.core.group.assigned.timers import await_revocation, renew
from millstream.core.group.assigned_state.member import JOINS, LEAVES_FOR_A_WHILE
from millstream.core.group.delete import is_being_deleted
from millstream.core.group.outputs import StreamsHeartbeat
from millstream.core.group.step import Step
from millstream.core.group.streams.reconcile import reconcile
from millstream.core.group.streams.target import delay_first_assignment, follow_epoch, is_delayed
from millstream.core.group.streams.topics import (
    assignment_configs,
    check_tasks,
    configured_on,
    follow_topics,
    stale,
    take_topology,
)
from millstream.core.group.streams_state.configured import Configured, Status
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import StreamsMember
from millstream.core.group.streams_state.tasks import NOTHING, Epochs, Tasks, TaskSets, listed, of
from millstream.core.group.streams_state.topology import source_names
from millstream.core.group.topics import Topics
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsEndpointToPartitions,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    StreamsTopicPartition,
)
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
)
from millstream.wire.schema import Message


class StreamsBeaten(Message):
    """The response to a heartbeat, and internal topics that it asks to create."""

    response: StreamsGroupHeartbeatResponse = StreamsGroupHeartbeatResponse()
    missing: list[CreatableTopic] = []  # noqa: RUF012 (msgspec copies an empty list that is a default)


def beaten(response: StreamsGroupHeartbeatResponse, missing: Iterable[CreatableTopic] = ()) -> StreamsBeaten:
    """What the core answers."""
    return StreamsBeaten(response, list(missing))


def refusal(error: ErrorCode, message: str | None) -> StreamsBeaten:
    """The response with an error only."""
    return beaten(StreamsGroupHeartbeatResponse(error_code=error, error_message=message))


# The request


def check_request(step: Step, beat: StreamsHeartbeat) -> None:
    """Check the request itself. Rejected with Kafka's messages."""
    _ = step
    request = beat.request
    _check_supported(request)
    if request.member_id == "":
        raise invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise invalid("RackId can't be empty.")
    owned = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    epoch = request.member_epoch
    if epoch == JOINS:
        if request.rebalance_timeout_ms == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        for kind, tasks in zip(("Active", "Standby", "Warmup"), owned, strict=True):
            if tasks is None or tasks:
                raise invalid(f"{kind}Tasks must be empty when (re-)joining.")
        if request.topology is None:
            raise invalid("Topology must be non-null when (re-)joining.")
    elif epoch == LEAVES_FOR_A_WHILE:
        raise invalid("InstanceId can't be null.")
    elif epoch < LEAVES_FOR_A_WHILE:
        raise invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(tasks is not None for tasks in owned) and any(tasks is None for tasks in owned):
        raise invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOINS and request.topology is not None:
        raise invalid("Topology can only be provided when (re-)joining.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    if request.instance_id is not None:
        raise invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(one.source_topic_regex for one in request.topology.subtopologies):
        raise invalid("Regular expressions for source topics are not supported yet.")


def _owned(request: StreamsGroupHeartbeatRequest) -> TaskSets | None:
    """The tasks that the member says it owns; None if it says nothing."""
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TaskSets(of(request.active_tasks), of(request.standby_tasks), of(request.warmup_tasks))


# The member


def _member(step: Step, streams: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> StreamsMember:
    """The member that sent the request, as it was before."""
    epoch = request.member_epoch
    if epoch == JOINS and request.member_id not in streams.members:
        check_room(step, streams, request.member_id)
        return StreamsMember(request.member_id)
    member = known_member(streams.members, streams.group_id, request.member_id)
    if epoch not in (JOINS, member.epoch):
        owned = _owned(request)
        if epoch != member.previous_epoch or owned is None or not member.assigned.contains(owned):
            raise fenced(streams, member, epoch)  # otherwise the response with the new epoch was lost
    return member


def _take_over(member: StreamsMember, beat: StreamsHeartbeat) -> StreamsMember:
    """The member with the facts of the request; what the request omits stays."""
    request = beat.request
    timeout_ms = request.rebalance_timeout_ms
    tags = request.client_tags
    return msgspec.structs.replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if request.user_endpoint is None else request.user_endpoint,
        tags=member.tags if tags is None else {tag.key: tag.value for tag in tags},
        client_id=beat.client_id,
        client_host=beat.client_host,
    )


# The heartbeat


def _is_quiet(step: Step, streams: StreamsGroup, beat: StreamsHeartbeat) -> bool:
    """Whether the heartbeat reports nothing new, and there is nothing to send to the member but a status."""
    request = beat.request
    member = streams.members.get(request.member_id)
    return (
        member is not None
        and request.member_epoch == member.epoch
        and member.is_reconciled_to(streams.assignment_epoch)
        and (streams.epoch == streams.assignment_epoch or is_delayed(streams))
        and _take_over(member, beat) == member
        and streams.live.configured is not None
        and streams.checked_revision == step.topics.revision
        and streams.metadata.last_assignment_configs == assignment_configs(step, streams.group_id)
    )


def heartbeat(step: Step, change: GroupChange[StreamsGroup], beat: StreamsHeartbeat) -> None:
    """Handle the heartbeat of a member that does not leave. Rejected if it is refused; the caller undoes the change."""
    streams, request = change.content, beat.request
    if request.member_epoch == JOINS and is_being_deleted(step, change.group):
        # The topology that a member would find here is about to be deleted.
        raise Rejected("The group is being deleted.", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    if not change.records and _is_quiet(step, streams, beat):
        member = streams.members[request.member_id]
        configured = configured_on(step, streams)
        check_tasks(streams, _owned(request))
        _end(step, change, beat, member, member, configured, follow_epoch(step, change, configured))
        return
    is_first = not streams.members
    before = _member(step, streams, request)
    member = _take_over(before, beat)
    is_changed = member.member_id not in streams.members or member != before
    if is_changed:
        change.put(StreamsGroupMemberMetadataKey(streams.group_id, member.member_id), member.metadata_value())
    take_topology(change, request.topology)
    owned = _owned(request)
    configured = follow_topics(step, change, bump=is_changed)
    check_tasks(streams, owned)
    if is_first:
        delay_first_assignment(step, change.group, streams)
    waits = follow_epoch(step, change, configured)
    target = NOTHING if is_delayed(streams) else streams.target(member.member_id)
    after = reconcile(streams, streams.members[member.member_id], target, streams.assignment_epoch, owned)
    if after != streams.members[member.member_id]:
        change.put(StreamsGroupCurrentMemberAssignmentKey(streams.group_id, after.member_id), after.current_value())

    def done(step: Step) -> None:
        _end(step, change, beat, before, after, configured, waits)

    change.write(step, beat.token, done, refused(beat.token, refusal))


def _end(
    step: Step,
    change: GroupChange[StreamsGroup],
    beat: StreamsHeartbeat,
    before: StreamsMember,
    after: StreamsMember,
    configured: Configured,
    waits: list[StreamsStatus],
) -> None:
    """The heartbeat is durable: renew the session, and answer."""
    streams, request, live = change.content, beat.request, change.content.live
    renew(step, change.group, streams, after)
    await_revocation(step, change.group, streams, before, after)
    if request.shutdown_application and live.shutdown_by is None:
        step.log(change.group, f"member {after.member_id} asks all others to shut down")
        live.shutdown_by = after.member_id
    owned = _owned(request)
    is_full = (
        request.member_epoch == JOINS
        or after.assigned != before.assigned
        or (owned is not None and owned != after.assigned.sets and not waits)
    )
    if after.endpoint is not None and (after.assigned != before.assigned or after.endpoint != before.endpoint):
        live.endpoint_epoch += 1
    tasks = after.assigned
    response = StreamsGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=step.settings.streams.heartbeat_interval_of(streams.group_id),
        status=[*stale(streams, after), *waits, *_problems(streams, configured)],
        active_tasks=listed(tasks.active) if is_full else None,
        standby_tasks=listed(tasks.standby) if is_full else None,
        warmup_tasks=listed(tasks.warmup) if is_full else None,
        endpoint_information_epoch=live.endpoint_epoch,
        partitions_by_user_endpoint=(
            None if live.endpoint_epoch == request.endpoint_information_epoch else endpoints(streams, step.topics)
        ),
    )
    step.out.answer(beat.token, beaten(response, configured.missing))


def leave(step: Step, change: GroupChange[StreamsGroup], beat: StreamsHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. It may ask all others to shut down.

    Raises Rejected if the group does not have it.
    """
    request, streams = beat.request, change.content
    known_member(streams.members, streams.group_id, request.member_id)
    answer = beaten(StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch))

    def done(step: Step) -> None:
        if request.shutdown_application and streams.members:
            streams.live.shutdown_by = streams.live.shutdown_by or request.member_id
        step.out.answer(beat.token, answer)

    remove_members(step, change, [request.member_id], beat.token, done, refused(beat.token, refusal))


def _problems(streams: StreamsGroup, configured: Configured) -> Iterable[StreamsStatus]:
    if configured.problem is not None:
        yield configured.problem
    by = streams.live.shutdown_by
    if by is not None:
        yield StreamsStatus(
            Status.SHUTDOWN_APPLICATION,
            f"Streams group member {by} encountered a fatal error and requested a shutdown for the entire application.",
        )


def endpoints(streams: StreamsGroup, topics: Topics) -> list[StreamsEndpointToPartitions]:
    """The partitions of each member that has an endpoint, for interactive queries.

    Members get all of them whenever they may have changed: the endpoint epoch of the group increases, and each
    heartbeat that has another one gets the whole list. It is not stored: a successor counts from 0, and members with
    another epoch ask it once.
    """
    return [
        StreamsEndpointToPartitions(
            member.endpoint,
            list(_partitions(streams, member.assigned.active, topics)),
            list(_partitions(streams, member.assigned.standby, topics)),
        )
        for member in streams.members.values()
        if member.endpoint is not None
    ]


def _partitions(streams: StreamsGroup, tasks: Tasks | Epochs, topics: Topics) -> Iterable[StreamsTopicPartition]:
    """The source partitions of tasks. A smaller topic has none for the last tasks of its subtopology."""
    topology = streams.topology
    for name, indexes in tasks.items():
        subtopology = None if topology is None else topology.subtopologies.get(name)
        for source in () if subtopology is None else source_names(subtopology):
            topic = topics.by_name(source)
            found = sorted(index for index in indexes if topic is not None and index < topic.partitions)
            if found:
                yield StreamsTopicPartition(source, found)
