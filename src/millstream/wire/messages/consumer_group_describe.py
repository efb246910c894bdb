"""API key 69, ConsumerGroupDescribe: epochs, members, and both assignments of consumer groups (KIP-848).

Version 1 says which protocol a member speaks (KIP-1099).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID, F, Int8, Int16, Int32, Message, Request, Response, Uuid


class ConsumerGroupDescribeRequest(Request, api_key=69, versions=(0, 1), flexible=0):
    """Describe these groups."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False


class DescribedTopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[Int32] = []


class DescribedAssignment(Message):
    """What a member has, or is to have."""

    topic_partitions: list[DescribedTopicPartitions] = []


class DescribedConsumerMember(Message):
    """A member. ``member_type`` is 0 for the classic protocol, 1 for the consumer protocol."""

    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment = DescribedAssignment()
    target_assignment: DescribedAssignment = DescribedAssignment()
    member_type: Annotated[Int8, F("1+")] = -1


class DescribedConsumerGroup(Message):
    """A consumer group, its epochs and its members."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[DescribedConsumerMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED


class ConsumerGroupDescribeResponse(Response, api_key=69, versions=(0, 1), flexible=0):
    """The groups, in the order asked."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup] = []
