"""API key 46, ListPartitionReassignments: the moves in progress (KIP-455)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Message, Request, Response


class ListPartitionReassignmentsTopics(Message):
    """The partitions of one topic."""

    name: str = ""
    partition_indexes: list[Int32] = []


class ListPartitionReassignmentsRequest(Request, api_key=46, versions=(0, 0), flexible=0):
    """Which of these partitions move? ``None`` is all of them."""

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    """A partition that moves."""

    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


class OngoingTopicReassignment(Message):
    """The moving partitions of one topic."""

    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Response, api_key=46, versions=(0, 0), flexible=0):
    """What moves."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = []
