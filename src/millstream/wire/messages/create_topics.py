"""API key 19, CreateTopics.

Version 4 allows the broker's defaults for partitions and replicas, 5 returns the created properties, 7 the topic id.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int8, Int16, Int32, Message, Request, Response, Uuid


class CreatableReplicaAssignment(Message):
    """Replicas of one partition, set by hand."""

    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    """A property of the topic to create."""

    name: str = ""
    value: str | None = ""


class CreatableTopic(Message):
    """A topic to create; -1 partitions or replicas mean the broker's default (version 4 and later)."""

    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Request, api_key=19, versions=(2, 7), flexible=5):
    """Create topics, or only check that they could be."""

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Message):
    """One property as the created topic has it."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False


class CreatableTopicResult(Message):
    """A created topic with its properties, or the reason against it."""

    name: str = ""
    topic_id: Annotated[Uuid, F("7+")] = ZERO_UUID
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Annotated[Int16, F("5+", tag=0)] = 0
    num_partitions: Annotated[Int32, F("5+")] = -1
    replication_factor: Annotated[Int16, F("5+")] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, F("5+")] = []


class CreateTopicsResponse(Response, api_key=19, versions=(2, 7), flexible=5):
    """The result for each topic."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
