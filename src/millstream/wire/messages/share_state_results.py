"""Answers about the state of share partitions that carry an outcome and nothing else (APIs 83, 85 and 86)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Message, Uuid


class StatePartitionResult(Message):
    """What became of one share partition."""

    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


class StateTopicResult(Message):
    """What became of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[StatePartitionResult] = []
