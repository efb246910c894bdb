"""API key 68, ConsumerGroupHeartbeat: everything that a member of a consumer group says to its coordinator (KIP-848).

One request joins (epoch 0), keeps alive, says what is owned, changes the subscription and leaves (epoch -1, or -2 for
a static member that will be back). Version 1 added subscriptions by regular expression, and member ids that the client
makes (KIP-1082).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Message, Request, Response, Uuid


class OwnedTopicPartitions(Message):
    """Partitions of one topic that the member owns."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions=(0, 1), flexible=0):
    """A member's heartbeat. None, or -1 for the timeout, means "as I said before"."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, F("1+")] = None
    server_assignor: str | None = None
    topic_partitions: list[OwnedTopicPartitions] | None = None


class AssignedTopicPartitions(Message):
    """Partitions of one topic that the member may use."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class MemberAssignment(Message):
    """All that the member may use now."""

    topic_partitions: list[AssignedTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions=(0, 1), flexible=0):
    """The member's epoch and, when it changed or was asked for, its assignment."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: MemberAssignment | None = None
