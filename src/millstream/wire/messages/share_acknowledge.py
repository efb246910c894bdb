"""API key 79, ShareAcknowledge: what a member of a share group did with records that it acquired (KIP-932).

Version 0 was early access, which Kafka 4.1 removed. Version 2 added renewing (KIP-1222).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int8, Int16, Int32, Int64, Message, Request, Response, Uuid


class AcknowledgementBatch(Message):
    """Offsets, both inclusive, with one type for all of them or one for each.

    Types: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
    """

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class AcknowledgePartition(Message):
    """Acknowledgements of one partition."""

    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgeTopic(Message):
    """Acknowledgements of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(Request, api_key=79, versions=(1, 2), flexible=0):
    """Acknowledge in a share session; session epoch -1 closes it."""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[bool, F("2+")] = False
    topics: list[AcknowledgeTopic] = []


class AcknowledgedPartition(Message):
    """What became of a partition's acknowledgements."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch(0, 0)


class ShareAcknowledgeTopicResponse(Message):
    """What became of a topic's acknowledgements."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgedPartition] = []


class ShareAcknowledgeResponse(Response, api_key=79, versions=(1, 2), flexible=0):
    """The outcome of each partition, and where the leaders are that are not here."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, F("2+")] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
