"""API key 89, StreamsGroupDescribe: topology, epochs, members and tasks of streams groups (KIP-1071)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTaskOffset,
    StreamsTopicInfo,
)
from millstream.wire.schema import Int16, Int32, Message, Request, Response


class StreamsGroupDescribeRequest(Request, api_key=89, versions=(0, 0), flexible=0):
    """Describe these groups."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False


class DescribedSubtopology(Message):
    """A subtopology. The numbers of partitions are the ones in use where the topics are there."""

    subtopology_id: str = ""
    source_topics: list[str] = []
    repartition_sink_topics: list[str] = []
    state_changelog_topics: list[StreamsTopicInfo] = []
    repartition_source_topics: list[StreamsTopicInfo] = []


class DescribedTopology(Message):
    """The topology of a group."""

    epoch: Int32 = 0
    subtopologies: list[DescribedSubtopology] | None = None


class DescribedTasks(Message):
    """The tasks of a member."""

    active_tasks: list[StreamsTaskIds] = []
    standby_tasks: list[StreamsTaskIds] = []
    warmup_tasks: list[StreamsTaskIds] = []


class DescribedStreamsMember(Message):
    """A member, the tasks that it has, and those that it is to have."""

    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: Int32 = 0
    process_id: str = ""
    user_endpoint: StreamsEndpoint | None = None
    client_tags: list[StreamsKeyValue] = []
    task_offsets: list[StreamsTaskOffset] = []
    task_end_offsets: list[StreamsTaskOffset] = []
    assignment: DescribedTasks = DescribedTasks()
    target_assignment: DescribedTasks = DescribedTasks()
    is_classic: bool = False


class DescribedStreamsGroup(Message):
    """A streams group, its epochs, its topology and its members."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: DescribedTopology | None = None
    members: list[DescribedStreamsMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED


class StreamsGroupDescribeResponse(Response, api_key=89, versions=(0, 0), flexible=0):
    """The groups, in the order asked."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedStreamsGroup] = []
