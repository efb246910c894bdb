"""API key 76, ShareGroupHeartbeat: everything that a member of a share group says to its coordinator (KIP-932).

One request joins (epoch 0), keeps alive, changes the subscription and leaves (epoch -1). The member makes its own id.
Version 0 was early access, which Kafka 4.1 removed.
"""

from millstream.wire.messages.consumer_group_heartbeat import MemberAssignment
from millstream.wire.schema import Int16, Int32, Request, Response


class ShareGroupHeartbeatRequest(Request, api_key=76, versions=(1, 1), flexible=0):
    """A member's heartbeat. None means "as I said before"."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


class ShareGroupHeartbeatResponse(Response, api_key=76, versions=(1, 1), flexible=0):
    """The member's epoch and, when it changed or was asked for, its assignment."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: MemberAssignment | None = None
