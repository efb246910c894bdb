"""API key 78, ShareFetch: acquire records for a member of a share group, and acknowledge earlier ones (KIP-932).

Version 0 was early access, which Kafka 4.1 removed. Version 2 added the acquire mode (KIP-1206) and renewing
(KIP-1222).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.messages.share_acknowledge import AcknowledgementBatch
from millstream.wire.schema import ZERO_UUID, F, Int8, Int16, Int32, Int64, Message, Records, Request, Response, Uuid


class ShareFetchPartition(Message):
    """A partition to add to the session, with acknowledgements that are applied before anything is acquired."""

    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class ShareFetchTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareFetchPartition] = []


class ShareForgottenTopic(Message):
    """Partitions that leave the session."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareFetchRequest(Request, api_key=78, versions=(1, 2), flexible=0):
    """Acquire records in a share session. Session epoch 0 opens it, -1 closes it.

    Acquire mode: 0 whole batches, which may exceed ``max_records``; 1 at most ``max_records``.
    """

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, F("2+")] = 0
    is_renew_ack: Annotated[bool, F("2+")] = False
    topics: list[ShareFetchTopic] = []
    forgotten_topics_data: list[ShareForgottenTopic] = []


class AcquiredRecords(Message):
    """Offsets, both inclusive, that the member now holds, and how often they have been delivered."""

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class SharePartitionData(Message):
    """A partition's batches; the member holds only those of their records that are acquired."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch(0, 0)
    records: Annotated[Records | None, F("0+", nullable="0")] = b""
    acquired_records: list[AcquiredRecords] = []


class ShareFetchableTopicResponse(Message):
    """What was acquired of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[SharePartitionData] = []


class ShareFetchResponse(Response, api_key=78, versions=(1, 2), flexible=0):
    """The records, how long they are locked, and where the leaders are that are not here."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
