"""API key 66, ListTransactions: the transactional ids that a broker coordinates (KIP-664).

Version 1 filters by the time that a transaction has been open, 2 by a pattern of the id (KIP-1152).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class ListTransactionsRequest(Request, api_key=66, versions=(0, 2), flexible=0):
    """Which transactions are there? Empty filters mean any; a duration (ms) below 0, too."""

    state_filters: list[str] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, F("1+")] = -1
    transactional_id_pattern: Annotated[str | None, F("2+")] = None


class ListedTransaction(Message):
    """One transactional id."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


class ListTransactionsResponse(Response, api_key=66, versions=(0, 2), flexible=0):
    """The transactions that pass, and the states of the filter that do not exist."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[ListedTransaction] = []
