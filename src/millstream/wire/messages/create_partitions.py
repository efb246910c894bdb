"""API key 37, CreatePartitions: raise the number of partitions of a topic; it never goes down."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Message, Request, Response


class CreatePartitionsAssignment(Message):
    """Replicas of one new partition, set by hand."""

    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    """A topic and the number of partitions it should have in total."""

    name: str = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Request, api_key=37, versions=(0, 3), flexible=2):
    """Raise the number of partitions of topics."""

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    """The outcome for one topic."""

    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


class CreatePartitionsResponse(Response, api_key=37, versions=(0, 3), flexible=2):
    """The result for each topic."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
