"""API key 87, ReadShareGroupStateSummary: starts and counts of share partitions, without their batches (KIP-932).

Version 1 added the count of finished records (KIP-1226).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.read_share_group_state import ReadStateTopic
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Request, Response, Uuid


class ReadShareGroupStateSummaryRequest(Request, api_key=87, versions=(0, 1), flexible=0):
    """Summarise these share partitions."""

    group_id: str = ""
    topics: list[ReadStateTopic] = []


class StateSummary(Message):
    """A share partition; start -1 is unknown.

    ``delivery_complete_count`` counts the finished offsets from the start on; -1 is unknown.
    """

    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, F("1+")] = -1


class StateSummaryTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[StateSummary] = []


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions=(0, 1), flexible=0):
    """The summary of each."""

    results: list[StateSummaryTopic] = []
