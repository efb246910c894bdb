"""API key 22, InitProducerId: a producer id for idempotence and transactions.

Version 3 lets a producer bump its own epoch (KIP-360), 4 tells that it was fenced, 5 allows an abortable answer
(KIP-890). Version 6 (two-phase commit) is not stable in Kafka 4.3 and is not declared here.
"""

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Request, Response


class InitProducerIdRequest(Request, api_key=22, versions=(0, 5), flexible=2):
    """A producer id, and for a transactional producer the next epoch of its own."""

    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, F("3+")] = -1
    producer_epoch: Annotated[Int16, F("3+")] = -1


class InitProducerIdResponse(Response, api_key=22, versions=(0, 5), flexible=2):
    """The producer id and epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
