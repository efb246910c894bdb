"""API key 77, ShareGroupDescribe: epochs, members and assignments of share groups (KIP-932).

Version 0 was early access, which Kafka 4.1 removed.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.consumer_group_describe import DescribedAssignment
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import Int16, Int32, Message, Request, Response


class ShareGroupDescribeRequest(Request, api_key=77, versions=(1, 1), flexible=0):
    """Describe these groups."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False


class DescribedShareMember(Message):
    """A member, and the partitions that it may fetch."""

    member_id: str = ""
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedShareGroup(Message):
    """A share group, its epochs and its members."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[DescribedShareMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED


class ShareGroupDescribeResponse(Response, api_key=77, versions=(1, 1), flexible=0):
    """The groups, in the order asked."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareGroup] = []
