"""API key 27, WriteTxnMarkers: end transactions in partitions. A coordinator or an administrator sends it.

Version 2 names the version of the transaction, by which the epoch is checked.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Int64, Message, Request, Response


class WritableTxnMarkerTopic(Message):
    """Partitions of one topic."""

    name: str = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    """The end of one producer's transaction; ``transaction_result`` is True for a commit."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, F("2+")] = 0


class WriteTxnMarkersRequest(Request, api_key=27, versions=(1, 2), flexible=1):
    """Markers to write."""

    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    """The outcomes of one topic."""

    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    """The outcomes of one marker."""

    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Response, api_key=27, versions=(1, 2), flexible=1):
    """The outcome for each partition."""

    markers: list[WritableTxnMarkerResult] = []
