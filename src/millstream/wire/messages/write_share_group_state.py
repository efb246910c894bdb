"""API key 85, WriteShareGroupState: what changed in share partitions, as their leader says (KIP-932).

Version 1 added the count of finished records (KIP-1226).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.read_share_group_state import StateBatch
from millstream.wire.messages.share_state_results import StateTopicResult
from millstream.wire.schema import ZERO_UUID, F, Int32, Int64, Message, Request, Response, Uuid


class WriteStatePartition(Message):
    """Changed batches of a share partition; start -1 leaves it as it is.

    ``delivery_complete_count`` counts the finished offsets from the start on; -1 is unknown.
    """

    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, F("1+")] = -1
    state_batches: list[StateBatch] = []


class WriteStateTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[WriteStatePartition] = []


class WriteShareGroupStateRequest(Request, api_key=85, versions=(0, 1), flexible=0):
    """Add these changes to the state."""

    group_id: str = ""
    topics: list[WriteStateTopic] = []


class WriteShareGroupStateResponse(Response, api_key=85, versions=(0, 1), flexible=0):
    """The outcome of each."""

    results: list[StateTopicResult] = []
