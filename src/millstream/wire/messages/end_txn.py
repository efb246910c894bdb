"""API key 26, EndTxn: commit or abort a transaction.

Version 2 tells that the producer was fenced, 4 allows an abortable answer, 5 ends every transaction with a new epoch,
which the response tells (KIP-890).
"""

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Request, Response


class EndTxnRequest(Request, api_key=26, versions=(0, 5), flexible=3):
    """The transaction, and whether it is committed."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


class EndTxnResponse(Response, api_key=26, versions=(0, 5), flexible=3):
    """The outcome; from version 5 with the producer id and epoch of the next transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, F("5+")] = -1
    producer_epoch: Annotated[Int16, F("5+")] = -1
