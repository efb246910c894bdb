"""API key 88, StreamsGroupHeartbeat: everything that a member of a streams group says to its coordinator (KIP-1071).

One request joins with the application's topology (epoch 0), keeps alive, says which tasks are owned, and leaves (epoch
-1). A task is a partition of a subtopology. The member makes its own id.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Int64, Message, Request, Response, UInt16


class StreamsKeyValue(Message):
    """A property of a topic, or a tag of a client."""

    key: str = ""
    value: str = ""


class StreamsTopicInfo(Message):
    """A topic that the coordinator creates. 0 partitions: as many as the topology needs; 0 replicas: the default."""

    name: str = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[StreamsKeyValue] = []


class StreamsCopartitionGroup(Message):
    """Source topics with equal numbers of partitions, each as an index into the lists of its subtopology."""

    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


class StreamsSubtopology(Message):
    """A part of the topology whose tasks depend on no other one's but by topics."""

    subtopology_id: str = ""
    source_topics: list[str] = []
    source_topic_regex: list[str] = []
    state_changelog_topics: list[StreamsTopicInfo] = []
    repartition_sink_topics: list[str] = []
    repartition_source_topics: list[StreamsTopicInfo] = []
    copartition_groups: list[StreamsCopartitionGroup] = []


class StreamsTopology(Message):
    """The topology of an application, as its members have it compiled in."""

    epoch: Int32 = 0
    subtopologies: list[StreamsSubtopology] = []


class StreamsTaskIds(Message):
    """Tasks of one subtopology."""

    subtopology_id: str = ""
    partitions: list[Int32] = []


class StreamsEndpoint(Message):
    """Where an instance of the application answers interactive queries."""

    host: str = ""
    port: UInt16 = 0


class StreamsTaskOffset(Message):
    """How far a task has read its changelogs, all of them together."""

    subtopology_id: str = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupHeartbeatRequest(Request, api_key=88, versions=(0, 0), flexible=0):
    """A member's heartbeat. None, or -1 for the timeout, means "as I said before"."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: StreamsTopology | None = None
    active_tasks: list[StreamsTaskIds] | None = None
    standby_tasks: list[StreamsTaskIds] | None = None
    warmup_tasks: list[StreamsTaskIds] | None = None
    process_id: str | None = None
    user_endpoint: StreamsEndpoint | None = None
    client_tags: list[StreamsKeyValue] | None = None
    task_offsets: list[StreamsTaskOffset] | None = None
    task_end_offsets: list[StreamsTaskOffset] | None = None
    shutdown_application: bool = False


class StreamsStatus(Message):
    """What keeps the group from working, or what its members have to do."""

    status_code: Int8 = 0
    status_detail: str = ""


class StreamsTopicPartition(Message):
    """Partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


class StreamsEndpointToPartitions(Message):
    """The partitions whose state an instance of the application has."""

    user_endpoint: StreamsEndpoint = StreamsEndpoint()
    active_partitions: list[StreamsTopicPartition] = []
    standby_partitions: list[StreamsTopicPartition] = []


class StreamsGroupHeartbeatResponse(Response, api_key=88, versions=(0, 0), flexible=0):
    """The member's epoch and, when they changed or it joined, its tasks."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: list[StreamsStatus] | None = []
    active_tasks: list[StreamsTaskIds] | None = None
    standby_tasks: list[StreamsTaskIds] | None = None
    warmup_tasks: list[StreamsTaskIds] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[StreamsEndpointToPartitions] | None = None
