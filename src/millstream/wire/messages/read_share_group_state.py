"""API key 84, ReadShareGroupState: the state of share partitions, for the leader that loads them (KIP-932)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Message, Request, Response, Uuid


class ReadStatePartition(Message):
    """A share partition, and the epoch of the leader that asks; writes of older leaders are refused from then on."""

    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadStatePartition] = []


class ReadShareGroupStateRequest(Request, api_key=84, versions=(0, 0), flexible=0):
    """Read these share partitions."""

    group_id: str = ""
    topics: list[ReadStateTopic] = []


class StateBatch(Message):
    """Offsets, both inclusive, of one state (0 available, 2 acknowledged, 4 archived) and one delivery count."""

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ReadStatePartitionResult(Message):
    """A share partition's state; start -1 is one that no leader has resolved yet."""

    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = []


class ReadStateTopicResult(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[ReadStatePartitionResult] = []


class ReadShareGroupStateResponse(Response, api_key=84, versions=(0, 0), flexible=0):
    """The state of each."""

    results: list[ReadStateTopicResult] = []
