"""API key 25, AddOffsetsToTxn: make a group's committed offsets part of a transaction.

Version 2 tells that the producer was fenced, 4 allows an abortable answer (KIP-890).
"""

from millstream.wire.schema import Int16, Int32, Int64, Request, Response


class AddOffsetsToTxnRequest(Request, api_key=25, versions=(0, 4), flexible=3):
    """The transaction, and the group whose offsets it is going to commit."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(Response, api_key=25, versions=(0, 4), flexible=3):
    """The outcome."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
